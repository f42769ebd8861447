package iwarp_test

import (
	"bytes"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
)

// TestRemoteInvalidation is Send with Invalidate on every kind of key.
func TestRemoteInvalidation(t *testing.T) {
	fast := func(t *testing.T, k *keys, a verbs.Access) *verbs.MR {
		mr, err := k.pd.AllocFastMR(4096)
		require.NoError(t, err)
		k.do(t, verbs.SendWR{Op: verbs.OpRegMR, MR: mr, Access: a})
		return mr
	}
	for _, c := range []struct {
		name string
		make func(t *testing.T, k *keys) (verbs.Key, func() bool)
		term uint16
	}{
		{"a plain region", func(t *testing.T, k *keys) (verbs.Key, func() bool) { return k.mr.Key(), k.mr.Valid }, 0x0109},
		{"a plain region that the peer may write", func(t *testing.T, k *keys) (verbs.Key, func() bool) { return k.end.mr.Key(), k.end.mr.Valid }, 0x0109},
		{"a window of type 1", func(t *testing.T, k *keys) (verbs.Key, func() bool) {
			w := k.window(t, verbs.MWType1, rights)
			return w.Key(), w.Valid
		}, 0x0109},
		{"a window of another queue pair", func(t *testing.T, k *keys) (verbs.Key, func() bool) {
			w := k.other(t)
			return w.Key(), w.Valid
		}, 0x0109},
		{"a region of another domain", func(t *testing.T, k *keys) (verbs.Key, func() bool) {
			o := newEnd(t, k.dev, 64)
			return o.mr.Key(), o.mr.Valid
		}, 0x0109},
		{"a fast region without remote rights", func(t *testing.T, k *keys) (verbs.Key, func() bool) {
			m := fast(t, k, bindable)
			return m.Key(), m.Valid
		}, 0x0109},
		{"a fast region with a window", func(t *testing.T, k *keys) (verbs.Key, func() bool) {
			m := fast(t, k, bindable|rights)
			w, err := k.pd.AllocMW(verbs.MWType2)
			require.NoError(t, err)
			k.do(t, bindTo(w, m.SGE(0, 8), rights))
			return m.Key(), func() bool { return m.Valid() && w.Valid() }
		}, 0x0109},
		{"another last octet of the key of a window", func(t *testing.T, k *keys) (verbs.Key, func() bool) {
			w := k.window(t, verbs.MWType2, rights)
			return w.Key() ^ 1, w.Valid
		}, 0x0100},
		{"SEC-12 key 0", func(t *testing.T, k *keys) (verbs.Key, func() bool) { return 0, func() bool { return true } }, 0x0100},
		{"a window of this queue pair", func(t *testing.T, k *keys) (verbs.Key, func() bool) {
			w := k.window(t, verbs.MWType2, rights)
			return w.Key(), w.Valid
		}, 0},
		{"a fast region with remote rights", func(t *testing.T, k *keys) (verbs.Key, func() bool) {
			m := fast(t, k, bindable|rights)
			return m.Key(), m.Valid
		}, 0},
	} {
		t.Run("VRB-50 RDM-39 SEC-08 "+c.name, func(t *testing.T) {
			p, e := victim(t, 2)
			k := newKeys(t, &e)
			key, valid := c.make(t, k)
			p.Send(takeBack(1, key))
			if c.term != 0 {
				p.ExpectTerminate(c.term)
				require.Equal(t, flushed(2), statuses(e.wait(t, 2)), "the message is not completed")
				require.True(t, valid(), "it stays usable")
				return
			}
			wc := e.wait(t, 1)[0]
			require.False(t, valid(), "RDM-38 dead when the completion is visible")
			require.NoError(t, wc.Err())
			require.Equal(t, verbs.WCWithInv, wc.Flags)
			require.Equal(t, key, wc.Inv)
			require.EqualValues(t, 3, wc.ByteLen)
		})
	}
	for name, say := range map[string]func(r verbs.RemoteBuf) []byte{
		"Write, 0x1100": func(r verbs.RemoteBuf) []byte { return writeTo(r, 0, "x") },
		"Read, 0x0100":  func(r verbs.RemoteBuf) []byte { return readFrom(1, r, 0, 1) },
	} {
		t.Run("RDM-38 RDM-40 DDP-43 a window that the peer took back meets its next "+name, func(t *testing.T) {
			p, e := victim(t, 2)
			k := newKeys(t, &e)
			was := bytes.Clone(k.mr.Bytes())
			w := k.window(t, verbs.MWType2, rights)
			copy(was[1024:], "data")
			p.Send(writeTo(w.Remote(), 0, "data"), takeBack(1, w.Key()), say(w.Remote()))
			term := uint16(0x1100)
			if name[0] == 'R' {
				term = 0x0100
			}
			p.ExpectTerminate(term)
			require.Equal(t, []verbs.WCStatus{verbs.WCSuccess, verbs.WCWRFlushErr}, statuses(e.wait(t, 2)))
			require.Equal(t, was, k.mr.Bytes())
		})
	}
	t.Run("RDM-41 twice is no error, nor behind the owner's own", func(t *testing.T) {
		p, e := victim(t, 3)
		k := newKeys(t, &e)
		w := k.window(t, verbs.MWType2, rights)
		p.Send(takeBack(1, w.Key()), takeBack(2, w.Key()))
		for _, wc := range e.wait(t, 2) {
			require.NoError(t, wc.Err())
			require.Equal(t, w.Key(), wc.Inv)
		}
		k.do(t, invalidate(w.Key()))
		m := fast(t, k, bindable|rights)
		k.do(t, invalidate(m.Key()))
		p.Send(takeBack(3, m.Key()))
		require.NoError(t, e.wait(t, 1)[0].Err())
		require.Equal(t, verbs.QPSRTS, e.State())
	})
	t.Run("SEC-15 VRB-52 bound again after the peer took it back", func(t *testing.T) {
		p, e := victim(t, 2)
		k := newKeys(t, &e)
		w := k.window(t, verbs.MWType2, rights)
		old := w.Remote()
		p.Send(takeBack(1, w.Key()))
		require.NoError(t, e.wait(t, 1)[0].Err())
		k.do(t, bindTo(w, k.mr.SGE(0, 16), rights))
		p.Send(writeTo(w.Remote(), 0, "new"), writeTo(old, 0, "old"))
		p.ExpectTerminate(0x1100)
		<-e.Done()
		require.Equal(t, "new", string(k.mr.Bytes()[:3]))
	})
}

// TestBusyRegion is what windows keep and what frees them.
func TestBusyRegion(t *testing.T) {
	t.Run("VRB-47 VRB-01 a region with windows is not closed, and changes nothing", func(t *testing.T) {
		p, e := victim(t, 1)
		k := newKeys(t, &e)
		w := k.window(t, verbs.MWType2, rights)
		one := k.window(t, verbs.MWType1, rights)
		var busy *verbs.BusyError
		require.ErrorAs(t, k.mr.Close(), &busy)
		require.ErrorIs(t, busy, syscall.EBUSY)
		require.ElementsMatch(t, []string{fmt.Sprintf("mw %v", w.Key()), fmt.Sprintf("mw %v", one.Key())}, busy.Users)
		p.Send(writeTo(w.Remote(), 0, "still"), readFrom(1, w.Remote(), 0, 5))
		p.Expect(wiretest.Tagged(2, true, 0x01020304, 0x100, []byte("still")))
		k.do(t, invalidate(w.Key()), bindTo(one, k.mr.SGE(0, 8), rights))
		require.ErrorAs(t, k.mr.Close(), &busy)
		require.Equal(t, []string{fmt.Sprintf("mw %v", one.Key())}, busy.Users)
		require.NoError(t, one.Close())
		require.NoError(t, k.mr.Close())
		require.Equal(t, verbs.QPSRTS, e.State())
	})
	t.Run("VRB-15 VRB-55 the close of a queue pair takes back what it has bound", func(t *testing.T) {
		_, e := victim(t, 1)
		k := newKeys(t, &e)
		w, one := k.window(t, verbs.MWType2, rights), k.window(t, verbs.MWType1, rights)
		other := k.other(t)
		require.NoError(t, e.QP.Close())
		require.False(t, w.Valid())
		require.True(t, one.Valid(), "type 1 serves the others of the domain")
		require.True(t, other.Valid())
		require.NoError(t, one.Close())
		require.NoError(t, other.Close())
		require.NoError(t, k.mr.Close(), "nothing is bound to it")
		require.NoError(t, w.Close())
	})
	t.Run("VRB-55 VRB-01 the close of a domain takes all of it", func(t *testing.T) {
		_, e := victim(t, 1)
		k := newKeys(t, &e)
		w, one := k.window(t, verbs.MWType2, rights), k.window(t, verbs.MWType1, rights)
		require.NoError(t, e.pd.Close())
		require.False(t, w.Valid() || one.Valid() || k.mr.Valid())
		s := e.dev.Stats()
		require.Zero(t, s.MRs+s.MWs+s.QPs)
	})
}

package iwarp_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
)

// TestBindFails has one row for each reason not to bind: a completion with
// MW_BIND_ERR, Terminate 0x0000, and the rest flushed.
func TestBindFails(t *testing.T) {
	mr := func(t *testing.T, pd *verbs.PD, a verbs.Access) *verbs.MR {
		m, err := pd.AllocMR(64, a)
		require.NoError(t, err)
		return m
	}
	for _, c := range []struct {
		name string
		make func(t *testing.T, k *keys, w *verbs.MW) verbs.SendWR
	}{
		{"VRB-53 a region without MW_BIND", func(t *testing.T, k *keys, w *verbs.MW) verbs.SendWR {
			return bindTo(w, k.end.mr.SGE(0, 8), rights)
		}},
		{"VRB-53 a ZERO_BASED region", func(t *testing.T, k *keys, w *verbs.MW) verbs.SendWR {
			return bindTo(w, mr(t, k.pd, bindable|verbs.AccessZeroBased).SGE(0, 8), rights)
		}},
		{"VRB-53 a region of another domain", func(t *testing.T, k *keys, w *verbs.MW) verbs.SendWR {
			return bindTo(w, mr(t, newEnd(t, k.dev, 64).pd, bindable).SGE(0, 8), rights)
		}},
		{"VRB-53 a window of another domain", func(t *testing.T, k *keys, _ *verbs.MW) verbs.SendWR {
			w, err := newEnd(t, k.dev, 64).pd.AllocMW(verbs.MWType2)
			require.NoError(t, err)
			return bindTo(w, k.mr.SGE(0, 8), rights)
		}},
		{"VRB-53 one octet past the region", func(t *testing.T, k *keys, w *verbs.MW) verbs.SendWR {
			return bindTo(w, k.mr.SGE(4089, 8), rights)
		}},
		{"VRB-53 REMOTE_WRITE on a region without LOCAL_WRITE", func(t *testing.T, k *keys, w *verbs.MW) verbs.SendWR {
			return bindTo(w, mr(t, k.pd, verbs.AccessMWBind).SGE(0, 8), verbs.AccessRemoteWrite)
		}},
		{"VRB-53 REMOTE_ATOMIC on a region without LOCAL_WRITE", func(t *testing.T, k *keys, w *verbs.MW) verbs.SendWR {
			return bindTo(w, mr(t, k.pd, verbs.AccessMWBind).SGE(0, 8), verbs.AccessRemoteAtomic)
		}},
		{"VRB-53 a region that is closed", func(t *testing.T, k *keys, w *verbs.MW) verbs.SendWR {
			m := mr(t, k.pd, bindable)
			require.NoError(t, m.Close())
			return bindTo(w, m.SGE(0, 8), rights)
		}},
		{"VRB-52 a window of type 2 that is bound", func(t *testing.T, k *keys, w *verbs.MW) verbs.SendWR {
			k.do(t, bindTo(w, k.mr.SGE(0, 8), rights))
			return bindTo(w, k.mr.SGE(0, 8), rights)
		}},
		{"VRB-48 a fast region that is valid", func(t *testing.T, k *keys, _ *verbs.MW) verbs.SendWR {
			m, err := k.pd.AllocFastMR(64)
			require.NoError(t, err)
			reg := verbs.SendWR{Op: verbs.OpRegMR, MR: m, Access: verbs.AccessRemoteRead}
			k.do(t, reg)
			return reg
		}},
		{"VRB-48 a fast region of another domain", func(t *testing.T, k *keys, _ *verbs.MW) verbs.SendWR {
			m, err := newEnd(t, k.dev, 64).pd.AllocFastMR(64)
			require.NoError(t, err)
			return verbs.SendWR{Op: verbs.OpRegMR, MR: m}
		}},
		{"VRB-49 OpLocalInv of a fast region with a window", func(t *testing.T, k *keys, w *verbs.MW) verbs.SendWR {
			m, err := k.pd.AllocFastMR(64)
			require.NoError(t, err)
			k.do(t, verbs.SendWR{Op: verbs.OpRegMR, MR: m, Access: bindable})
			k.do(t, bindTo(w, m.SGE(0, 8), rights))
			return invalidate(m.Key())
		}},
	} {
		t.Run(c.name, func(t *testing.T) { failsLocally(t, c.make, verbs.WCMWBindErr) })
	}
	for _, c := range []struct {
		name string
		key  func(t *testing.T, k *keys, w *verbs.MW) verbs.Key
	}{
		{"an unknown key", func(_ *testing.T, _ *keys, w *verbs.MW) verbs.Key { return w.Key() ^ 0x100 }},
		{"another last octet of a key", func(t *testing.T, k *keys, w *verbs.MW) verbs.Key {
			k.do(t, bindTo(w, k.mr.SGE(0, 8), rights))
			return w.Key() ^ 1
		}},
		{"a region of RegMR", func(_ *testing.T, k *keys, _ *verbs.MW) verbs.Key { return k.mr.Key() }},
		{"a region of RegMR with a window", func(t *testing.T, k *keys, w *verbs.MW) verbs.Key {
			k.do(t, bindTo(w, k.mr.SGE(0, 8), rights))
			return k.mr.Key()
		}},
		{"a region of another domain", func(t *testing.T, k *keys, _ *verbs.MW) verbs.Key { return newEnd(t, k.dev, 64).mr.Key() }},
		{"a window of another domain", func(t *testing.T, k *keys, _ *verbs.MW) verbs.Key {
			w, err := newEnd(t, k.dev, 64).pd.AllocMW(verbs.MWType2)
			require.NoError(t, err)
			return w.Key()
		}},
		{"a window of type 1", func(t *testing.T, k *keys, _ *verbs.MW) verbs.Key { return k.window(t, verbs.MWType1, rights).Key() }},
		{"a window of another queue pair", func(t *testing.T, k *keys, _ *verbs.MW) verbs.Key { return k.other(t).Key() }},
		{"a window that is closed", func(t *testing.T, _ *keys, w *verbs.MW) verbs.Key { require.NoError(t, w.Close()); return w.Key() }},
	} {
		t.Run("VRB-49 OpLocalInv of "+c.name, func(t *testing.T) {
			failsLocally(t, func(t *testing.T, k *keys, w *verbs.MW) verbs.SendWR { return invalidate(c.key(t, k, w)) }, verbs.WCLocProtErr)
		})
	}
	t.Run("VRB-49 OpLocalInv of what is invalid already", func(t *testing.T) {
		_, e := victim(t, 1)
		k := newKeys(t, &e)
		w := k.window(t, verbs.MWType2, rights)
		k.do(t, invalidate(w.Key()), invalidate(w.Key()))
		m, err := k.pd.AllocFastMR(8)
		require.NoError(t, err)
		k.do(t, invalidate(m.Key()))
		require.Equal(t, verbs.QPSRTS, e.State())
	})
}

// failsLocally posts a request that fails on this side, with two behind it that
// must not be done: a Send, and a bind that nothing speaks against.
func failsLocally(t *testing.T, build func(t *testing.T, k *keys, w *verbs.MW) verbs.SendWR, want verbs.WCStatus) {
	p, e := victim(t, 2)
	p.Send(send(1, "go")) // so that the Terminate may leave
	require.NoError(t, e.wait(t, 1)[0].Err())
	k := newKeys(t, &e)
	w, err := e.pd.AllocMW(verbs.MWType2)
	require.NoError(t, err)
	good, err := e.pd.AllocMW(verbs.MWType2)
	require.NoError(t, err)
	wr := build(t, k, w)
	wr.ID = 10
	k.send(t, wr, bindTo(good, k.mr.SGE(0, 8), rights), verbs.SendWR{ID: 12, Op: verbs.OpSend, Inline: []byte("never")})
	wcs := e.wait(t, 4) // the receive's among them
	byID := map[uint64]verbs.WCStatus{}
	for _, wc := range wcs {
		byID[wc.ID] = wc.Status
	}
	require.Equal(t, map[uint64]verbs.WCStatus{10: want, 0: verbs.WCWRFlushErr, 12: verbs.WCWRFlushErr, 2: verbs.WCWRFlushErr}, byID)
	require.False(t, good.Valid(), "what is behind it is not done")
	p.ExpectTerminate(0x0000)
	p.ExpectEOF()
	<-e.Done()
	var term *verbs.TerminateError
	require.ErrorAs(t, e.Err(), &term)
	require.False(t, term.Remote)
}

// TestLocalFence is the order of OpLocalInv among its neighbours.
func TestLocalFence(t *testing.T) {
	fast := func(t *testing.T, k *keys) *verbs.MR {
		m, err := k.pd.AllocFastMR(4096)
		require.NoError(t, err)
		k.do(t, verbs.SendWR{Op: verbs.OpRegMR, MR: m, Access: bindable})
		return m
	}
	// start is a victim that may send, and a peer that does not answer yet.
	start := func(t *testing.T) (*wiretest.Peer, *keys) {
		p, e := victim(t, 1)
		p.Send(send(1, "go"))
		require.NoError(t, e.wait(t, 1)[0].Err())
		return p, newKeys(t, &e)
	}
	readInto := func(s verbs.SGE) verbs.SendWR {
		return verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{s}, Remote: verbs.RemoteBuf{RKey: 5, Addr: 64}}
	}
	asked := func(t *testing.T, p *wiretest.Peer, m *verbs.MR) {
		p.Expect(wiretest.ReadRequest(1, uint32(m.Key()), m.Remote().Addr, 8, 5, 64))
	}
	answer := func(m *verbs.MR) []byte {
		return wiretest.Tagged(2, true, uint32(m.Key()), m.Remote().Addr, []byte("answered"))
	}
	t.Run("VRB-38 behind a Write that uses the key, before one that does", func(t *testing.T) {
		p, k := start(t)
		m := fast(t, k)
		fill(m.Bytes(), 5)
		wr := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{m.SGE(0, 1000)}, Remote: verbs.RemoteBuf{RKey: 5, Addr: 64}}
		inv := invalidate(m.Key())
		inv.Flags = verbs.SendSignaled
		k.send(t, wr, inv, wr)
		require.Equal(t, []verbs.WCStatus{verbs.WCSuccess, verbs.WCSuccess, verbs.WCLocProtErr}, statuses(k.wait(t, 3)))
		p.Expect(wiretest.Tagged(0, true, 5, 64, m.Bytes()[:1000]))
		p.ExpectTerminate(0x0000)
	})
	t.Run("VRB-38 a Read into the region has to be answered first", func(t *testing.T) {
		p, k := start(t)
		m := fast(t, k)
		w := k.window(t, verbs.MWType2, rights)
		inv := invalidate(m.Key())
		inv.ID, inv.Flags = 2, verbs.SendSignaled
		k.send(t, readInto(m.SGE(0, 8)), inv, verbs.SendWR{ID: 3, Op: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("behind")})
		asked(t, p, m)
		p.ExpectSilence(50 * time.Millisecond)
		require.True(t, m.Valid(), "the answer may still come")
		require.True(t, w.Valid())
		k.quiet(t)
		p.Send(answer(m))
		p.Expect(wiretest.Untagged(3, true, 0, 0, 1, 0, []byte("behind")))
		require.False(t, m.Valid())
		wcs := k.wait(t, 3)
		require.Equal(t, []uint64{1, 2, 3}, ids(wcs))
		require.Equal(t, []verbs.WCStatus{verbs.WCSuccess, verbs.WCSuccess, verbs.WCSuccess}, statuses(wcs))
		require.Equal(t, verbs.OpLocalInv, wcs[1].Op)
		require.Equal(t, "answered", string(m.Bytes()[:8]))
	})
	t.Run("VRB-38 a Read into another region holds nothing up", func(t *testing.T) {
		p, k := start(t)
		m := fast(t, k)
		k.send(t, readInto(k.end.mr.SGE(0, 8)), invalidate(m.Key()), verbs.SendWR{ID: 3, Op: verbs.OpSend, Inline: []byte("behind")})
		asked(t, p, k.end.mr)
		p.Expect(wiretest.Untagged(3, true, 0, 0, 1, 0, []byte("behind")))
		require.False(t, m.Valid())
		k.quiet(t)
	})
	for _, op := range []verbs.Opcode{verbs.OpLocalInv, verbs.OpBindMW, verbs.OpRegMR} {
		t.Run(fmt.Sprintf("VRB-38 SendFence makes %v wait for every Read", op), func(t *testing.T) {
			p, k := start(t)
			m := fast(t, k)
			w, err := k.pd.AllocMW(verbs.MWType2)
			require.NoError(t, err)
			wr, done := invalidate(m.Key()), func() bool { return !m.Valid() }
			switch op {
			case verbs.OpBindMW:
				wr, done = bindTo(w, k.mr.SGE(0, 8), rights), w.Valid
			case verbs.OpRegMR:
				n, err := k.pd.AllocFastMR(8)
				require.NoError(t, err)
				wr, done = verbs.SendWR{Op: verbs.OpRegMR, MR: n, Access: verbs.AccessRemoteRead}, n.Valid
			}
			wr.Flags = verbs.SendFence | verbs.SendSignaled
			k.send(t, readInto(k.end.mr.SGE(0, 8)), wr)
			asked(t, p, k.end.mr)
			time.Sleep(20 * time.Millisecond)
			require.False(t, done())
			p.Send(answer(k.end.mr))
			for _, wc := range k.wait(t, 2) {
				require.NoError(t, wc.Err())
			}
			require.True(t, done())
		})
	}
	t.Run("SEC-26 SEC-07 a peer that does not take its answer cannot keep a window", func(t *testing.T) {
		const size = 16 << 20
		p, k := start(t)
		require.NoError(t, p.Conn().(*net.TCPConn).SetReadBuffer(32<<10)) // so that few octets are under way
		mr, err := k.pd.AllocMR(size, verbs.AccessMWBind)
		require.NoError(t, err)
		w, err := k.pd.AllocMW(verbs.MWType2)
		require.NoError(t, err)
		k.do(t, bindTo(w, mr.SGE(0, size), verbs.AccessRemoteRead))
		p.Send(readFrom(1, w.Remote(), 0, size))
		u := p.Next() // the first part of the answer
		k.do(t, invalidate(w.Key()))
		got := len(u) - 14
		for u = p.Next(); u[0]&0x80 != 0; u = p.Next() {
			got += len(u) - 14
		}
		t.Run("RDM-18 SEC-11 and the Terminate says where the answer has stopped", func(t *testing.T) {
			require.Equal(t, []byte{0x01, 0x00}, u[18:20])
			require.Less(t, got, size)
			// Behind the control field: the segment length, the header of DDP, that of RDMAP.
			h := u[18+4+2+18:]
			require.Equal(t, wiretest.ReadRequest(1, 0x01020304, 0x100+uint64(got), uint32(size-got), uint32(w.Key()), w.Remote().Addr+uint64(got))[18:], h[:28])
		})
	})
}

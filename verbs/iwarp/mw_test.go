package iwarp_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

const (
	rights   = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	bindable = verbs.AccessLocalWrite | verbs.AccessMWBind // and no remote right
)

// keys are what the tests of windows work with, on one end: a region of 4096
// octets that no peer may touch by itself.
type keys struct {
	*end
	mr *verbs.MR
}

func newKeys(t testing.TB, e *end) *keys {
	mr, err := e.pd.AllocMR(4096, bindable)
	require.NoError(t, err)
	fill(mr.Bytes(), 77)
	return &keys{e, mr}
}

// window is bound to octets 1024 to 2047.
func (k *keys) window(t testing.TB, typ verbs.MWType, a verbs.Access) *verbs.MW {
	w, err := k.pd.AllocMW(typ)
	require.NoError(t, err)
	k.do(t, bindTo(w, k.mr.SGE(1024, 1024), a))
	require.True(t, w.Valid())
	return w
}

func bindTo(w *verbs.MW, s verbs.SGE, a verbs.Access) verbs.SendWR {
	return verbs.SendWR{Op: verbs.OpBindMW, MW: w, SGL: []verbs.SGE{s}, Access: a}
}

func invalidate(k verbs.Key) verbs.SendWR { return verbs.SendWR{Op: verbs.OpLocalInv, Inv: k} }

// do posts requests and waits until all have succeeded; receives may complete
// meanwhile.
func (k *keys) do(t testing.TB, wrs ...verbs.SendWR) {
	for i := range wrs {
		wrs[i].Flags |= verbs.SendSignaled
	}
	k.send(t, wrs...)
	for _, wc := range k.wait(t, len(wrs)) {
		require.NoError(t, wc.Err(), "%v", wc.Op)
	}
}

// otherQP makes a queue pair of the same domain, connected to nothing that
// matters, with a window of its own.
func (k *keys) other(t testing.TB) *verbs.MW {
	l := kernel(t, iwarp.Protocol{})
	l.b, l.a = k.dev, k.dev
	p := l.connectWith(t, end{dev: k.dev, pd: k.pd, cq: newEnd(t, k.dev, 64).cq}, newEnd(t, k.dev, 64))
	w := (&keys{&p.mine, k.mr}).window(t, verbs.MWType2, rights)
	require.Equal(t, verbs.QPSRTS, p.mine.State())
	return w
}

func writeTo(r verbs.RemoteBuf, off int, b string) []byte {
	return wiretest.Tagged(0, true, uint32(r.RKey), r.Addr+uint64(off), []byte(b))
}

func readFrom(msn uint32, r verbs.RemoteBuf, off int, n uint32) []byte {
	return wiretest.ReadRequest(msn, 0x01020304, 0x100, n, uint32(r.RKey), r.Addr+uint64(off))
}

func takeBack(msn uint32, k verbs.Key) []byte {
	return wiretest.Untagged(4, true, uint32(k), 0, msn, 0, []byte("bye"))
}

// TestWindowsOnTheWire holds what a peer may do with a window, and what it may
// not, against octets made by hand.
func TestWindowsOnTheWire(t *testing.T) {
	type setup func(t *testing.T, k *keys) verbs.RemoteBuf
	of := func(typ verbs.MWType, a verbs.Access) setup {
		return func(t *testing.T, k *keys) verbs.RemoteBuf { return k.window(t, typ, a).Remote() }
	}
	both := func(name string, a verbs.Access, say func(r verbs.RemoteBuf) []byte, term uint16) (rows []wireRow) {
		for _, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType2} {
			rows = append(rows, wireRow{fmt.Sprintf("%s, %v", name, typ), of(typ, a), say, term})
		}
		return rows
	}
	var rows []wireRow
	for _, r := range [][]wireRow{
		both("SEC-14 DDP-56 a Write to the octet before", rights, func(r verbs.RemoteBuf) []byte { return writeTo(r, -1, "x") }, 0x1101),
		both("SEC-14 DDP-56 a Write to the octet behind", rights, func(r verbs.RemoteBuf) []byte { return writeTo(r, 1024, "x") }, 0x1101),
		both("SEC-14 DDP-44 SEC-04 a Write that ends one behind", rights, func(r verbs.RemoteBuf) []byte { return writeTo(r, 1017, "12345678") }, 0x1101),
		both("SEC-14 DDP-56 a Read of the octet before", rights, func(r verbs.RemoteBuf) []byte { return readFrom(1, r, -1, 2) }, 0x0101),
		both("SEC-14 DDP-56 a Read that ends one behind", rights, func(r verbs.RemoteBuf) []byte { return readFrom(1, r, 1000, 25) }, 0x0101),
		both("SEC-05 DDP-46 a Write to 2^64-1", rights, func(r verbs.RemoteBuf) []byte {
			return wiretest.Tagged(0, true, uint32(r.RKey), 1<<64-1, []byte("xy"))
		}, 0x1103),
		both("VRB-54 SEC-06 a Write by a window for reading", verbs.AccessRemoteRead, func(r verbs.RemoteBuf) []byte { return writeTo(r, 0, "x") }, 0x1102),
		both("VRB-54 SEC-06 SEC-11 a Read by a window for writing", verbs.AccessRemoteWrite, func(r verbs.RemoteBuf) []byte { return readFrom(1, r, 0, 1) }, 0x0102),
		both("VRB-54 SEC-06 an atomic by a window for reading and writing", rights&^verbs.AccessRemoteAtomic, func(r verbs.RemoteBuf) []byte {
			return addOne(r.RKey, r.Addr)
		}, 0x0102),
		both("SEC-13 DDP-43 a Write with another last octet of the key", rights, func(r verbs.RemoteBuf) []byte { r.RKey ^= 1; return writeTo(r, 0, "x") }, 0x1100),
	} {
		rows = append(rows, r...)
	}
	another := func(t *testing.T, k *keys) verbs.RemoteBuf { return k.other(t).Remote() }
	rebound := func(typ verbs.MWType) setup {
		return func(t *testing.T, k *keys) verbs.RemoteBuf {
			w := k.window(t, typ, rights)
			r := w.Remote()
			if typ == verbs.MWType2 {
				k.do(t, invalidate(w.Key()))
			}
			k.do(t, bindTo(w, k.mr.SGE(1024, 1024), rights))
			require.NotEqual(t, r.RKey, w.Key(), "VRB-51")
			require.True(t, w.Valid())
			return r
		}
	}
	closed := func(end func(t *testing.T, k *keys, w *verbs.MW)) setup {
		return func(t *testing.T, k *keys) verbs.RemoteBuf {
			w := k.window(t, verbs.MWType1, rights)
			r := w.Remote()
			end(t, k, w)
			require.False(t, w.Valid())
			return r
		}
	}
	writes := func(r verbs.RemoteBuf) []byte { return writeTo(r, 0, "x") }
	reads := func(r verbs.RemoteBuf) []byte { return readFrom(1, r, 0, 1) }
	rows = append(rows,
		wireRow{"VRB-55 VRB-52 DDP-45 DDP-54 SEC-03 SEC-15 a Write to a window of another queue pair", another, writes, 0x1102},
		wireRow{"VRB-55 VRB-52 SEC-03 SEC-15 a Read from a window of another queue pair", another, reads, 0x0103},
		wireRow{"VRB-55 SEC-47 an atomic on a window of another queue pair", another, func(r verbs.RemoteBuf) []byte { return addOne(r.RKey, r.Addr) }, 0x0103},
		wireRow{"VRB-51 a Write with the key of before the next bind, type 1", rebound(verbs.MWType1), writes, 0x1100},
		wireRow{"VRB-51 a Read with the key of before the next bind, type 1", rebound(verbs.MWType1), reads, 0x0100},
		wireRow{"SEC-15 VRB-52 a Write with the key of before the next bind, type 2", rebound(verbs.MWType2), writes, 0x1100},
		wireRow{"SEC-15 VRB-52 a Read with the key of before the next bind, type 2", rebound(verbs.MWType2), reads, 0x0100},
		wireRow{"VRB-51 a Write to a window that was unbound by a bind of no octets", closed(func(t *testing.T, k *keys, w *verbs.MW) {
			k.do(t, verbs.SendWR{Op: verbs.OpBindMW, MW: w})
		}), writes, 0x1100},
		wireRow{"VRB-55 SEC-13 a Write to a window that was closed", closed(func(t *testing.T, k *keys, w *verbs.MW) {
			require.NoError(t, w.Close())
		}), writes, 0x1100},
		wireRow{"VRB-54 a Write to the region itself, which has no remote right", func(t *testing.T, k *keys) verbs.RemoteBuf {
			k.window(t, verbs.MWType1, rights)
			return k.mr.Remote()
		}, writes, 0x1102},
		wireRow{"VRB-56 SEC-46 DDP-47 a Write of nothing to a key that was taken back", rebound(verbs.MWType2), func(r verbs.RemoteBuf) []byte { return writeTo(r, -9, "") }, 0},
		wireRow{"VRB-56 SEC-46 a Read of nothing from a key that was taken back", rebound(verbs.MWType2), func(r verbs.RemoteBuf) []byte { return readFrom(1, r, -9, 0) }, 0},
		wireRow{"VRB-56 SEC-46 a Write of nothing to a window of another queue pair", another, func(r verbs.RemoteBuf) []byte { return writeTo(r, 5000, "") }, 0},
	)
	for _, c := range rows {
		t.Run(c.name, func(t *testing.T) {
			p, e := victim(t, 2)
			k := newKeys(t, &e)
			r := c.make(t, k)
			was := bytes.Clone(k.mr.Bytes())
			p.Send(c.say(r))
			if c.term == 0 {
				p.Send(send(1, "hello"))
				require.NoError(t, k.wait(t, 1)[0].Err())
				require.Equal(t, was, k.mr.Bytes())
				return
			}
			p.ExpectTerminate(c.term)
			<-e.Done()
			require.Equal(t, was, k.mr.Bytes(), "nothing was moved")
			p.ExpectEOF()
		})
	}
}

type wireRow struct {
	name string
	make func(t *testing.T, k *keys) verbs.RemoteBuf
	say  func(r verbs.RemoteBuf) []byte
	term uint16 // 0: no error
}

// addOne asks to add 1 at addr (RFC 7306, Section 5.2.1).
func addOne(k verbs.Key, addr uint64) []byte {
	b := []byte{0, 0, 0, 0, 0, 0, 0, 1}
	b = append(b, byte(k>>24), byte(k>>16), byte(k>>8), byte(k))
	for i := range 8 {
		b = append(b, byte(addr>>(56-8*i)))
	}
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 1)
	b = append(b, make([]byte, 16)...)
	return wiretest.Untagged(10, true, 0, 1, 1, 0, append(b, bytes.Repeat([]byte{0xff}, 8)...))
}

// TestWindowServes is what a peer may do with windows.
func TestWindowServes(t *testing.T) {
	for _, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType2} {
		t.Run(fmt.Sprintf("VRB-54 VRB-51 VRB-52 a window of %v grants more than its region", typ), func(t *testing.T) {
			p, e := victim(t, 1)
			k := newKeys(t, &e)
			want := bytes.Clone(k.mr.Bytes())
			w := k.window(t, typ, rights)
			copy(want[1024:], "first")
			copy(want[2044:], "last")
			p.Send(writeTo(w.Remote(), 0, "first"), writeTo(w.Remote(), 1020, "last"), readFrom(1, w.Remote(), 0, 1024))
			p.Expect(wiretest.Tagged(2, true, 0x01020304, 0x100, want[1024:2048]))
			p.Send(send(1, "done"))
			require.NoError(t, k.wait(t, 1)[0].Err())
			require.Equal(t, want, k.mr.Bytes())
			require.Equal(t, verbs.QPSRTS, e.State())
		})
	}
	t.Run("VRB-51 a window of type 1 serves another queue pair of its domain", func(t *testing.T) {
		l := pipe(t, iwarp.PipeConfig{})
		p := l.connect(t, 4096, nil)
		q := l.connectWith(t, newEnd(t, l.a, 4096), end{dev: l.b, pd: p.theirs.pd, cq: p.theirs.cq, mr: p.theirs.mr})
		k := newKeys(t, &p.theirs)
		w := k.window(t, verbs.MWType1, rights)
		for _, e := range []*keys{{&p.mine, nil}, {&q.mine, nil}} {
			e.do(t, verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{e.end.mr.SGE(0, 1024)}, Remote: w.Remote()})
			require.Equal(t, k.mr.Bytes()[1024:2048], e.end.mr.Bytes()[:1024])
		}
	})
	t.Run("VRB-38 a bind is done before the Send behind it tells of it", func(t *testing.T) {
		p, e := victim(t, 2)
		k := newKeys(t, &e)
		p.Send(send(1, "go")) // so that it may send
		require.NoError(t, k.wait(t, 1)[0].Err())
		w, err := e.pd.AllocMW(verbs.MWType2)
		require.NoError(t, err)
		for i := range 50 {
			// What w.Remote will be is known before.
			k.send(t, bindTo(w, k.mr.SGE(i, 8), rights),
				verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("bound")})
			p.Expect(wiretest.Untagged(3, true, 0, 0, uint32(2*i+1), 0, []byte("bound")))
			p.Send(writeTo(w.Remote(), 0, "12345678"), readFrom(uint32(i+1), w.Remote(), 0, 8))
			p.Expect(wiretest.Tagged(2, true, 0x01020304, 0x100, []byte("12345678")))
			k.send(t, invalidate(w.Key()), verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("gone")})
			p.Expect(wiretest.Untagged(3, true, 0, 0, uint32(2*i+2), 0, []byte("gone")))
			require.False(t, w.Valid())
			k.wait(t, 2)
		}
	})
}

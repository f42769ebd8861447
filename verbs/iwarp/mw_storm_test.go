package iwarp_test

import (
	"bytes"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// TestTakenBackUnderWrites takes keys back in every way while two connections write
// by them, and holds the octets of that moment against those of a second later.
func TestTakenBackUnderWrites(t *testing.T) {
	old := runtime.GOMAXPROCS(4)
	defer runtime.GOMAXPROCS(old)
	l := pipe(t, iwarp.PipeConfig{})
	const size = 256 << 10
	// storm is two writers into one domain; k has the queue pair of the first.
	type storm struct {
		p, q pair
		k    *keys
		mr   *verbs.MR
	}
	window := func(typ verbs.MWType, s *storm) *verbs.MW {
		w, err := s.k.pd.AllocMW(typ)
		require.NoError(t, err)
		s.k.do(t, bindTo(w, s.mr.SGE(0, size), rights))
		return w
	}
	fast := func(s *storm) *verbs.MR {
		m, err := s.k.pd.AllocFastMR(size)
		require.NoError(t, err)
		s.k.do(t, verbs.SendWR{Op: verbs.OpRegMR, MR: m, Access: rights | bindable})
		s.mr = m
		return m
	}
	// shared says that both connections may write by the key.
	type way struct {
		name   string
		shared bool
		begin  func(s *storm) (r verbs.RemoteBuf, end func(t *testing.T))
	}
	ways := []way{
		{"OpLocalInv of a window", false, func(s *storm) (verbs.RemoteBuf, func(t *testing.T)) {
			w := window(verbs.MWType2, s)
			return w.Remote(), func(t *testing.T) { s.k.do(t, invalidate(w.Key())) }
		}},
		{"the close of a window", true, func(s *storm) (verbs.RemoteBuf, func(t *testing.T)) {
			w := window(verbs.MWType1, s)
			return w.Remote(), func(t *testing.T) { require.NoError(t, w.Close()) }
		}},
		{"another bind of a window", true, func(s *storm) (verbs.RemoteBuf, func(t *testing.T)) {
			w := window(verbs.MWType1, s)
			return w.Remote(), func(t *testing.T) { s.k.do(t, verbs.SendWR{Op: verbs.OpBindMW, MW: w}) }
		}},
		{"OpLocalInv of a fast region", true, func(s *storm) (verbs.RemoteBuf, func(t *testing.T)) {
			m := fast(s)
			return m.Remote(), func(t *testing.T) { s.k.do(t, invalidate(m.Key())) }
		}},
		{"a Send with Invalidate, while another connection writes", true, func(s *storm) (verbs.RemoteBuf, func(t *testing.T)) {
			m := fast(s)
			// The second connection's peer takes it back; its Writes are through then.
			s.q.theirs.recv(t, verbs.RecvWR{})
			return m.Remote(), func(t *testing.T) {
				s.q.mine.send(t, verbs.SendWR{Op: verbs.OpSendWithInv, Inv: m.Key()})
				wc := s.q.theirs.wait(t, 1)[0]
				require.NoError(t, wc.Err())
				require.Equal(t, m.Key(), wc.Inv)
			}
		}},
		{"the close of the queue pair", false, func(s *storm) (verbs.RemoteBuf, func(t *testing.T)) {
			w := window(verbs.MWType2, s)
			return w.Remote(), func(t *testing.T) { require.NoError(t, s.k.QP.Close()) }
		}},
		{"the close of the region", true, func(s *storm) (verbs.RemoteBuf, func(t *testing.T)) {
			m, err := s.k.pd.AllocMR(size, rights|verbs.AccessLocalWrite)
			require.NoError(t, err)
			s.mr = m
			return m.Remote(), func(t *testing.T) { require.NoError(t, m.Close()) }
		}},
	}
	type after struct {
		name string
		mem  *verbs.MR
		was  []byte
	}
	var all []after
	ctx := within(t, time.Minute)
	for _, c := range ways {
		s := &storm{p: l.connect(t, size, nil)}
		s.q = l.connectWith(t, newEnd(t, l.a, size), end{dev: l.b, pd: s.p.theirs.pd, cq: newEnd(t, l.b, 64).cq, mr: s.p.theirs.mr})
		s.k = newKeys(t, &s.p.theirs)
		var err error
		s.mr, err = s.k.pd.AllocMR(size, bindable)
		require.NoError(t, err)
		remote, end := c.begin(s)
		writers := []*pair{&s.p}
		if c.shared {
			writers = append(writers, &s.q)
		}
		var posts sync.WaitGroup
		for i, w := range writers {
			n := size / 2
			fill(w.mine.mr.Bytes(), uint64(i+1))
			// round does one Write, other in each segment than the one before.
			round := func() bool {
				for at := 0; at < n; at += 256 {
					w.mine.mr.Bytes()[at]++
				}
				_, err := w.mine.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, Flags: verbs.SendSignaled,
					SGL: []verbs.SGE{w.mine.mr.SGE(0, n)}, Remote: remote.Slice(i*n, n)}})
				if err != nil {
					return false // it has just ended
				}
				var wcs [1]verbs.WC
				k, err := w.mine.cq.Wait(ctx, wcs[:])
				return k == 1 && err == nil && wcs[0].Err() == nil
			}
			require.True(t, round())
			posts.Go(func() {
				for round() {
				}
			})
		}
		require.Eventually(t, func() bool { // one has come
			return s.mr.Uint64(0).Load() != 0
		}, 20*time.Second, time.Millisecond)
		end(t)
		all = append(all, after{c.name, s.mr, bytes.Clone(s.mr.Bytes())})
		posts.Wait() // their next Write ends the connection
		for _, w := range writers {
			require.NotEqual(t, verbs.QPSRTS, w.mine.State())
		}
	}
	time.Sleep(time.Second)
	for _, a := range all {
		t.Run("SEC-07 SEC-10 SEC-56 DDP-55 VRB-47 nothing changes after "+a.name, func(t *testing.T) {
			require.True(t, bytes.Equal(a.was, a.mem.Bytes()))
			require.NotEqual(t, make([]byte, 64), a.was[:64], "a Write had come")
		})
	}
}

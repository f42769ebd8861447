package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// The tests here do what the programs of rdma-core and perftest do, in their order and
// with their depths.

// program is a connection with one side's queues as a program makes them.
func program(t *testing.T, l link, q verbs.QPConfig, depth int, prepare func(e *end, qp *verbs.QP) error) pair {
	p := pair{newEnd(t, l.a, arena), newEnd(t, l.b, arena)}
	ctx := within(t, 20*time.Second)
	lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, l.addr.String()+":0")
	require.NoError(t, err)
	defer lis.Close()
	queues := func(e *end) verbs.QPConfig {
		c := q
		c.SendCQ, c.RecvCQ = e.cq, e.cq
		return c
	}
	accepted := make(chan error, 1)
	go func() {
		req, err := lis.Accept(ctx)
		if err == nil {
			p.theirs.Conn, err = req.Accept(ctx, rdmacm.AcceptConfig{PD: p.theirs.pd, QP: queues(&p.theirs), IRD: depth, ORD: depth,
				Prepare: func(qp *verbs.QP) error { return prepare(&p.theirs, qp) }})
		}
		accepted <- err
	}()
	d := rdmacm.Dialer{Device: l.a, PD: p.mine.pd, QP: queues(&p.mine), IRD: depth, ORD: depth,
		Prepare: func(qp *verbs.QP) error { return prepare(&p.mine, qp) }}
	p.mine.Conn, err = d.Dial(ctx, lis.Addr().String())
	require.NoError(t, err)
	require.NoError(t, <-accepted)
	return p
}

// rounds is how often the programs do what they do.
func rounds(n int) int {
	if testing.Short() || raceEnabled {
		return n / 20
	}
	return n
}

// relax is between two looks at what another goroutine will change: who spins must not keep
// the processors from those that bring it about.
func relax() { time.Sleep(20 * time.Microsecond) }

// TestRpingLike is rping's exchange: the depth of Reads is 1, two receives are posted, and
// the client ends it.
func TestRpingLike(t *testing.T) {
	// Where things are in each end's region.
	const info, start, back = 0, 4096, 4096 + 65536
	two := func(e *end, qp *verbs.QP) error {
		for i := range 2 {
			if _, err := qp.PostRecv([]verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{e.mr.SGE(info+i*16, 16)}}}); err != nil {
				return err
			}
		}
		return nil
	}
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		for _, size := range []int{26, 64, 65535} {
			t.Run(fmt.Sprintf("IOP-25 IOP-26 IOP-27 IOP-28 pings of %d octets", size), func(t *testing.T) {
				p := program(t, l, verbs.QPConfig{MaxSendWR: 16, MaxRecvWR: 2}, 1, two)
				client, server := &p.mine, &p.theirs
				say := func(e *end, name verbs.RemoteBuf) {
					b := name.Addr
					msg := binary.BigEndian.AppendUint64(nil, b)
					msg = binary.BigEndian.AppendUint32(msg, uint32(name.RKey))
					e.send(t, verbs.SendWR{ID: 2, Op: verbs.OpSend, Inline: binary.BigEndian.AppendUint32(msg, name.Len)})
				}
				slot := map[*end]int{}
				hear := func(e *end) verbs.RemoteBuf {
					wc := e.wait(t, 1)[0]
					require.NoError(t, wc.Err())
					require.EqualValues(t, 1, wc.ID, "a receive")
					require.EqualValues(t, 16, wc.ByteLen)
					at := info + slot[e]*16
					slot[e] ^= 1
					b := bytes.Clone(e.mr.Bytes()[at : at+16])
					e.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{e.mr.SGE(at, 16)}})
					return verbs.RemoteBuf{Addr: binary.BigEndian.Uint64(b), RKey: verbs.Key(binary.BigEndian.Uint32(b[8:])), Len: binary.BigEndian.Uint32(b[12:])}
				}
				for n := range rounds(600) {
					text := client.mr.Bytes()[start : start+size]
					fill(text, uint64(n))
					clear(client.mr.Bytes()[back : back+size])
					say(client, client.remote.Slice(start, size))
					source := hear(server)
					server.send(t, verbs.SendWR{ID: 3, Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{server.mr.SGE(start, size)}, Remote: source})
					require.NoError(t, server.wait(t, 1)[0].Err())
					say(server, verbs.RemoteBuf{})
					hear(client)
					say(client, client.remote.Slice(back, size))
					server.send(t, verbs.SendWR{ID: 4, Op: verbs.OpWrite, SGL: []verbs.SGE{server.mr.SGE(start, size)}, Remote: hear(server)})
					say(server, verbs.RemoteBuf{})
					hear(client)
					require.True(t, bytes.Equal(text, client.mr.Bytes()[back:back+size]), "ping %d", n)
				}
				require.NoError(t, client.Disconnect(within(t, 10*time.Second)))
				p.over(t)
				for _, e := range []*end{client, server} {
					require.NoError(t, e.Err())
					require.Equal(t, flushed(2), statuses(e.wait(t, 2)), "nothing but flushed receives")
					e.quiet(t)
				}
			})
		}
	})
}

// TestWriteLatLike is ib_write_lat: each side waits for the other's Write by looking at its
// last octet, and no receive is ever posted.
func TestWriteLatLike(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		for _, size := range []int{8, 64, 5000} {
			t.Run(fmt.Sprintf("IOP-31 IOP-30 Writes of %d octets answer each other", size), func(t *testing.T) {
				p := program(t, l, verbs.QPConfig{}, -1, func(*end, *verbs.QP) error { return nil })
				n := rounds(1000)
				// The place the Writes go to ends on a word, which can be looked at while it changes.
				at := 8192 - size
				play := func(e *end, peer *end, first bool) error {
					word := e.mr.Uint64(8184)
					seen := func(i int) bool {
						var b [8]byte
						binary.NativeEndian.PutUint64(b[:], word.Load())
						return b[7] == byte(i)
					}
					for i := 1; i <= n; i++ {
						for limit := time.Now().Add(20 * time.Second); (!first || i > 1) && !seen(i-btoi(first)); {
							if time.Now().After(limit) {
								return fmt.Errorf("Write %d was not seen", i)
							}
							relax()
						}
						out := e.mr.Bytes()[64<<10 : 64<<10+size]
						out[size-1] = byte(i)
						if _, err := e.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(64<<10, size)}, Remote: peer.remote.Slice(at, size)}}); err != nil {
							return err
						}
						if err := e.wait(t, 1)[0].Err(); err != nil {
							return err
						}
					}
					return nil
				}
				var sides sync.WaitGroup
				var err [2]error
				sides.Go(func() { err[0] = play(&p.mine, &p.theirs, true) })
				sides.Go(func() { err[1] = play(&p.theirs, &p.mine, false) })
				sides.Wait()
				require.NoError(t, err[0])
				require.NoError(t, err[1])
			})
		}
	})
	t.Run("IOP-31 the last octet is seen with its segment, and the first ones before", func(t *testing.T) {
		o := agree(t, 0, -1, -1, plain(0, 0))
		first, last := o.e.mr.Uint64(8192), o.e.mr.Uint64(8192+2*1424)
		key, to := uint32(o.e.remote.RKey), o.e.remote.Addr+8192
		full := bytesOf(7, 1424)
		o.Send(wiretest.Tagged(0, false, key, to, full), wiretest.Tagged(0, false, key, to+1424, full))
		require.Eventually(t, func() bool { return first.Load() != 0 }, 5*time.Second, time.Millisecond)
		time.Sleep(20 * time.Millisecond)
		require.Zero(t, last.Load())
		o.Send(wiretest.Tagged(0, true, key, to+2848, full[:8]))
		require.Eventually(t, func() bool { return last.Load() != 0 }, 5*time.Second, time.Millisecond)
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestSendBWLike is ib_send_bw on iWARP: Sends one way, and the other way Writes that tell
// the sender how many receives there are.
func TestSendBWLike(t *testing.T) {
	const rx, tx, every = 512, 128, 64
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		t.Run("IOP-32 IOP-30 Sends and credit by Writes cross", func(t *testing.T) {
			p := program(t, l, verbs.QPConfig{MaxSendWR: tx, MaxRecvWR: rx}, -1, func(e *end, qp *verbs.QP) error {
				for i := range rx {
					if _, err := qp.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{e.mr.SGE(8192+i*64, 64)}}}); err != nil {
						return err
					}
				}
				return nil
			})
			n := rounds(100_000)
			credit := p.mine.mr.Uint64(0)
			var sides sync.WaitGroup
			var errs [2]error
			sides.Go(func() { // the receiver
				wcs := make([]verbs.WC, 64)
				word := p.theirs.mr.Bytes()[:8]
				for got := 0; got < n; {
					k, err := p.theirs.cq.Wait(t.Context(), wcs)
					if err != nil {
						errs[1] = err
						return
					}
					for _, wc := range wcs[:k] {
						if wc.Err() != nil {
							errs[1] = wc.Err()
							return
						}
						if wc.Op != verbs.OpRecv {
							continue
						}
						if b := p.theirs.mr.Bytes()[8192+wc.ID*64:]; wc.ByteLen != 64 || binary.BigEndian.Uint64(b) != uint64(got) {
							errs[1] = fmt.Errorf("Send %d has %d octets, number %d", got, wc.ByteLen, binary.BigEndian.Uint64(b))
							return
						}
						got++
						_, err := p.theirs.PostRecv([]verbs.RecvWR{{ID: wc.ID, SGL: []verbs.SGE{p.theirs.mr.SGE(8192+int(wc.ID)*64, 64)}}})
						if err == nil && got%every == 0 {
							binary.NativeEndian.PutUint64(word, uint64(got))
							_, err = p.theirs.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, Flags: verbs.SendSignaled, Inline: word, Remote: p.mine.remote.Slice(0, 8)}})
						}
						if err != nil {
							errs[1] = err
							return
						}
					}
				}
			})
			sides.Go(func() { // the sender
				wcs := make([]verbs.WC, 64)
				room := tx
				limit := time.Now().Add(2 * time.Minute)
				var msg [64]byte
				for sent := 0; sent < n; {
					if room == 0 || sent >= int(credit.Load())+rx {
						k, err := p.mine.cq.Poll(wcs)
						if err != nil || time.Now().After(limit) {
							errs[0] = fmt.Errorf("%d sent, credit %d: %v", sent, credit.Load(), err)
							return
						}
						room += k
						relax()
						continue
					}
					binary.BigEndian.PutUint64(msg[:], uint64(sent))
					if _, err := p.mine.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, Inline: msg[:]}}); err != nil {
						errs[0] = err
						return
					}
					sent++
					room--
				}
			})
			sides.Wait()
			require.NoError(t, errs[0])
			require.NoError(t, errs[1])
		})
	})
}

// TestWriteBWLike is ib_write_bw -q 16: the queues are full, and only every hundredth
// Write makes a completion.
func TestWriteBWLike(t *testing.T) {
	const qps, tx, rx, mod = 16, 128, 512, 100
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		t.Run("IOP-33 IOP-34 16 queue pairs, one completion of 100 Writes", func(t *testing.T) {
			n := rounds(4_000) / mod * mod
			var all sync.WaitGroup
			var bad atomic.Pointer[error]
			var ps [qps]pair
			for i := range ps {
				ps[i] = program(t, l, verbs.QPConfig{MaxSendWR: tx, MaxRecvWR: rx}, -1, func(*end, *verbs.QP) error { return nil })
			}
			for i := range ps {
				p := &ps[i]
				all.Go(func() {
					fail := func(err error) { bad.CompareAndSwap(nil, &err) }
					e := &p.mine
					open := 0
					var wc [1]verbs.WC
					for k := 1; k <= n; k++ {
						wr := verbs.SendWR{ID: uint64(k), Op: verbs.OpWrite, SGL: []verbs.SGE{e.mr.SGE(0, 256)}, Remote: p.theirs.remote.Slice(k%64*256, 256)}
						if k%mod == 0 {
							wr.Flags = verbs.SendSignaled
						}
						for open == tx { // full: a completion frees a hundred
							if _, err := e.cq.Wait(t.Context(), wc[:]); err != nil || wc[0].Err() != nil {
								fail(fmt.Errorf("%d of %d: %v %v", k, n, err, wc[0].Err()))
								return
							}
							open -= mod
						}
						if _, err := e.PostSend([]verbs.SendWR{wr}); err != nil {
							fail(err)
							return
						}
						open++
					}
					for ; open > 0; open -= mod {
						if _, err := e.cq.Wait(t.Context(), wc[:]); err != nil || wc[0].Err() != nil {
							fail(fmt.Errorf("at the end: %v %v", err, wc[0].Err()))
							return
						}
					}
					if wc[0].ID != uint64(n) {
						fail(fmt.Errorf("the last completion is that of %d", wc[0].ID))
					}
				})
			}
			all.Wait()
			if err := bad.Load(); err != nil {
				require.NoError(t, *err)
			}
			for i := range ps { // the client leaves first, the server waits for it
				require.Equal(t, verbs.QPSRTS, ps[i].theirs.State())
				require.NoError(t, ps[i].mine.Disconnect(within(t, 10*time.Second)))
				ps[i].over(t)
				require.NoError(t, ps[i].theirs.Err())
				ps[i].theirs.quiet(t)
			}
		})
	})
}

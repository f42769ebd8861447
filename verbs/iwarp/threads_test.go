package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

var models = []iwarp.Threads{iwarp.ThreadsAdaptive, iwarp.ThreadsIO, iwarp.ThreadsRunToCompletion, iwarp.ThreadsSplit}

// forModels runs test under each threading model.
func forModels(t *testing.T, test func(t *testing.T, m iwarp.Threads)) {
	for _, m := range models {
		t.Run(m.String(), func(t *testing.T) { test(t, m) })
	}
}

// openThreads opens a device on the host's TCP sockets.
func openThreads(t testing.TB, m iwarp.Threads, p iwarp.Protocol) *verbs.Device {
	d, err := iwarp.Open(within(t, time.Minute), iwarp.Config{Backend: iwarp.Kernel, Threads: m, Protocol: p})
	require.NoError(t, err)
	closeAfter(t, d)
	return d
}

// Every kind of operation, both ways at once and one way at a time, from the first
// octet to the end in order.
func TestThreadsConversation(t *testing.T) {
	conversation := func(t *testing.T, l link) {
		t.Run("operations", func(t *testing.T) { operations(t, l) })
		t.Run("both ways", func(t *testing.T) { bothWays(t, l) })
		t.Run("atomics and the end", func(t *testing.T) {
			p := l.connect(t, arena, post5)
			word := verbs.SendWR{Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.mine.mr.SGE(0, 8)}, Remote: p.theirs.remote.Slice(256, 8)}
			atomic := func() uint64 {
				p.mine.send(t, word)
				require.NoError(t, p.mine.wait(t, 1)[0].Err())
				return p.mine.mr.Uint64(0).Load()
			}
			word.Op, word.Val = verbs.OpFetchAdd, 3
			for i := range uint64(100) {
				require.Equal(t, 3*i, atomic())
			}
			word.Op, word.Compare, word.Val = verbs.OpCompareSwap, 300, 7
			require.EqualValues(t, 300, atomic())
			require.EqualValues(t, 7, p.theirs.mr.Uint64(256).Load())
			require.NoError(t, p.mine.Disconnect(within(t, 20*time.Second)))
			p.over(t)
			require.NoError(t, p.mine.Err())
			require.NoError(t, p.theirs.Err())
			require.Equal(t, flushed(5), statuses(p.theirs.wait(t, 5)))
		})
	}
	forModels(t, func(t *testing.T, m iwarp.Threads) {
		t.Run("pipe", func(t *testing.T) { conversation(t, pipe(t, iwarp.PipeConfig{Threads: m})) })
		for _, peer := range models {
			if testing.Short() && peer != m {
				continue
			}
			t.Run("kernel, with "+peer.String(), func(t *testing.T) {
				conversation(t, link{openThreads(t, m, iwarp.Protocol{}), openThreads(t, peer, iwarp.Protocol{}), netip.MustParseAddr("127.0.0.1")})
			})
		}
	})
}

// watched is a port that takes note of the goroutines that use it.
type watched struct {
	pktio.Port
	mu         sync.Mutex
	recv, send map[string]int // frames, by goroutine; of those sent only long ones
}

// longFrame is more than any frame that carries no payload.
const longFrame = 300

func (w *watched) Recv(batch []pktio.Frame, wait time.Duration) (int, error) {
	n, err := w.Port.Recv(batch, wait)
	w.note(w.recv, n)
	return n, err
}

func (w *watched) Send(batch []pktio.Frame) (int, error) {
	long := 0
	for i := range batch {
		if batch[i].Len() > longFrame {
			long++
		}
	}
	w.note(w.send, long)
	return w.Port.Send(batch)
}

func (w *watched) note(by map[string]int, n int) {
	if n > 0 {
		w.mu.Lock()
		by[goroutine()] += n
		w.mu.Unlock()
	}
}

func (w *watched) by(who string) (recv, send int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.recv[who], w.send[who]
}

func (w *watched) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.recv)
	clear(w.send)
}

// goroutine names the calling one.
func goroutine() string {
	var b [64]byte
	name, _, _ := bytes.Cut(b[:runtime.Stack(b[:], false)], []byte(" ["))
	return string(name)
}

// turns are the counters that tell who did the work.
type turns struct{ rxDevice, rxApp, txDevice, txApp uint64 }

func turnsOf(d *verbs.Device) turns {
	s := d.Stats()
	return turns{s.Counter("rx.turns_device"), s.Counter("rx.turns_application"), s.Counter("tx.turns_device"), s.Counter("tx.turns_application")}
}

func (a turns) since(b turns) turns {
	return turns{a.rxDevice - b.rxDevice, a.rxApp - b.rxApp, a.txDevice - b.txDevice, a.txApp - b.txApp}
}

// The goroutine that posts and polls, and no other, does what its model says, as the
// port sees it and as the counters tell.
func TestThreadsWork(t *testing.T) {
	const size, rounds, tries = 16 << 10, 20, 20
	forModels(t, func(t *testing.T, m iwarp.Threads) {
		w := &watched{recv: map[string]int{}, send: map[string]int{}}
		l := pipe(t, iwarp.PipeConfig{Threads: m, Tap: func(p pktio.Port) (pktio.Port, error) { w.Port = p; return w, nil }})
		p := l.connect(t, arena, nil)
		me := goroutine()
		work := func() {
			for i := range rounds {
				op := verbs.OpWrite
				if i%2 == 1 {
					op = verbs.OpRead
				}
				p.mine.send(t, verbs.SendWR{Op: op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.mine.mr.SGE(0, size)}, Remote: p.theirs.remote.Slice(size, size)})
				var wc [1]verbs.WC
				for end := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
					n, err := p.mine.cq.Poll(wc[:])
					require.NoError(t, err)
					if n > 0 {
						break
					}
					require.True(t, time.Now().Before(end), "round %d hangs", i)
				}
				require.NoError(t, wc[0].Err())
			}
		}
		var recv, send int
		var did turns
		// On a busy host the application's goroutine may be away for so long that others stand in.
		for try := 1; try <= tries; try++ {
			w.forget()
			before := turnsOf(l.a)
			work()
			recv, send = w.by(me)
			did = turnsOf(l.a).since(before)
			if m != iwarp.ThreadsRunToCompletion || recv > 0 && did.rxDevice == 0 && did.txDevice == 0 {
				break
			}
			t.Logf("try %d: %+v, %d frames received by the application", try, did, recv)
		}
		switch m {
		case iwarp.ThreadsAdaptive:
			require.Positive(t, send, "PostSend transmits")
			require.Positive(t, did.txApp)
		case iwarp.ThreadsIO:
			require.Zero(t, recv, "the application receives")
			require.Zero(t, send, "the application sends")
			require.Zero(t, did.rxApp+did.txApp)
			require.Positive(t, did.rxDevice)
			require.GreaterOrEqual(t, did.txDevice, uint64(rounds), "a turn for each post")
		case iwarp.ThreadsRunToCompletion:
			require.Positive(t, recv, "the application receives")
			require.Positive(t, send, "and sends")
			require.Zero(t, did.rxDevice+did.txDevice, "nobody else does")
			require.Positive(t, did.rxApp)
		case iwarp.ThreadsSplit:
			require.Zero(t, recv, "the application receives")
			require.Zero(t, did.rxApp)
			require.Positive(t, did.rxDevice)
			require.Positive(t, send, "PostSend transmits")
			require.Positive(t, did.txApp)
		}
	})
}

// What arrives while the application neither polls nor waits: under run to completion
// it waits for the application, but not for ever.
func TestThreadsAway(t *testing.T) {
	forModels(t, func(t *testing.T, m iwarp.Threads) {
		l := pipe(t, iwarp.PipeConfig{Threads: m})
		p := l.connect(t, arena, nil)
		word := p.mine.mr.Uint64(0)
		write := func(v uint64) {
			p.theirs.mr.Uint64(8).Store(v)
			p.theirs.send(t, verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{p.theirs.mr.SGE(8, 8)}, Remote: p.mine.remote.Slice(0, 8)})
		}
		arrives := func(v uint64) {
			require.Eventually(t, func() bool { return word.Load() == v }, 10*time.Second, time.Millisecond)
		}
		p.mine.quiet(t) // a poll
		write(1)
		arrives(1)
		if m != iwarp.ThreadsRunToCompletion {
			return
		}
		for v := uint64(2); ; v++ {
			require.Less(t, v, uint64(50), "the host is too busy")
			polled := time.Now()
			for time.Since(polled) < 5*time.Millisecond { // the device's goroutine hands over
				p.mine.quiet(t)
				runtime.Gosched()
			}
			polled = time.Now()
			write(v)
			time.Sleep(5 * time.Millisecond)
			got := word.Load()
			if time.Since(polled) > 15*time.Millisecond {
				continue // nearly time to stand in
			}
			require.Equal(t, v-1, got, "it arrived while the application computed")
			for word.Load() != v { // the test's time limit ends it
				p.mine.quiet(t)
				runtime.Gosched()
			}
			return
		}
	})
}

// A peer that takes nothing for a while, and then little by little: no goroutine is
// stuck in PostSend, Poll or Close meanwhile.
func TestThreadsShutWindow(t *testing.T) {
	const size, n = arena / 4, 48 // 12 MiB: more than TCP takes
	start := func(t *testing.T, m iwarp.Threads) *outgoing {
		o := meetFrom(t, openThreads(t, m, iwarp.Protocol{ClientServer: true, DrainTimeout: time.Second}), 0, nil)
		require.NoError(t, o.Conn().(*net.TCPConn).SetReadBuffer(32<<10))
		o.Respond(plain(1, 1))
		require.NoError(t, <-o.dialed)
		fill(o.e.mr.Bytes(), 3)
		for i := range n {
			o.e.send(t, verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{o.e.mr.SGE(i%4*size, size)}})
		}
		return o
	}
	// poll takes the completions that come within d, most at most, and returns how many.
	poll := func(o *outgoing, d time.Duration, most int) (got int, err error) {
		var wcs [n]verbs.WC
		for end := time.Now().Add(d); got < most && err == nil && time.Now().Before(end); runtime.Gosched() {
			var k int
			k, err = o.e.cq.Poll(wcs[:most-got])
			for _, wc := range wcs[:k] {
				err = errors.Join(err, wc.Err())
			}
			got += k
		}
		return got, err
	}
	// read has the peer take all Sends, and compares them.
	read := func(t *testing.T, o *outgoing) {
		for msg, mo := 0, 0; msg < n; {
			u := o.Next()
			payload := u[18:]
			require.EqualValues(t, msg+1, binary.BigEndian.Uint32(u[10:]), "MSN")
			require.EqualValues(t, mo, binary.BigEndian.Uint32(u[14:]), "MO")
			at := msg%4*size + mo
			require.True(t, bytes.Equal(o.e.mr.Bytes()[at:at+len(payload)], payload), "message %d from octet %d on", msg, mo)
			if mo += len(payload); u[0]&0x40 != 0 {
				require.Equal(t, size, mo)
				msg, mo = msg+1, 0
			}
		}
	}
	forModels(t, func(t *testing.T, m iwarp.Threads) {
		t.Run("a slow peer gets all", func(t *testing.T) {
			o := start(t, m)
			got, err := poll(o, 200*time.Millisecond, n)
			require.NoError(t, err)
			require.Less(t, got, n, "TCP took all of it: the window never shut")
			rest := make(chan int, 1)
			go func() {
				k, err := poll(o, 20*time.Second, n-got)
				if err != nil {
					t.Errorf("poll: %v", err)
				}
				rest <- k
			}()
			read(t, o)
			require.Equal(t, n, got+<-rest)
			require.NoError(t, o.e.QP.Close())
		})
		t.Run("a slow peer gets all, and nobody polls", func(t *testing.T) {
			o := start(t, m)
			read(t, o)
			got, err := poll(o, 20*time.Second, n)
			require.NoError(t, err)
			require.Equal(t, n, got)
			require.NoError(t, o.e.QP.Close())
		})
		t.Run("Close does not wait for the peer", func(t *testing.T) {
			o := start(t, m)
			got, err := poll(o, 100*time.Millisecond, n)
			require.NoError(t, err)
			require.Less(t, got, n)
			closes(t, o.e)
			rest := o.e.wait(t, n-got)
			require.Equal(t, verbs.WCWRFlushErr, rest[len(rest)-1].Status)
		})
	})
}

// closes closes a queue pair, which must not take long.
func closes(t *testing.T, e *end) {
	closed := make(chan error, 1)
	go func() { closed <- e.QP.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		require.Fail(t, "Close hangs")
	}
}

// Close of one goroutine while others post and poll, on both sides at once.
func TestThreadsCloseWhilePosting(t *testing.T) {
	forModels(t, func(t *testing.T, m iwarp.Threads) {
		l := pipe(t, iwarp.PipeConfig{Threads: m})
		for round := range 5 {
			p := l.connect(t, arena, nil)
			var users sync.WaitGroup
			for _, e := range []*end{&p.mine, &p.theirs} {
				far := &p.theirs
				if e == far {
					far = &p.mine
				}
				users.Go(func() {
					wr := []verbs.SendWR{{Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(0, arena/8)}, Remote: far.remote.Slice(arena/2, arena/8)}}
					var wcs [16]verbs.WC
					for e.State() == verbs.QPSRTS {
						_, _ = e.PostSend(wr) // full, or closed: whichever comes first
						_, _ = e.cq.Poll(wcs[:])
						runtime.Gosched()
					}
				})
			}
			time.Sleep(time.Duration(round) * time.Millisecond)
			closes(t, &p.mine)
			users.Wait()
			p.over(t)
		}
	})
}

func TestThreadsNames(t *testing.T) {
	for _, m := range models {
		got, err := iwarp.ParseThreads(m.String())
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
	_, err := iwarp.ParseThreads("c4")
	require.ErrorContains(t, err, "take adaptive, c1, c2 or c3")
	_, err = iwarp.Open(t.Context(), iwarp.Config{Backend: iwarp.Kernel, Threads: 4})
	require.ErrorContains(t, err, "Threads(4): take ThreadsAdaptive")
	_, _, err = iwarp.Pipe(iwarp.PipeConfig{Threads: 4})
	require.ErrorContains(t, err, "Threads(4)")

	require.Contains(t, iwarp.Explain(openThreads(t, iwarp.ThreadsSplit, iwarp.Protocol{})), "; threads c3")
	require.NotContains(t, iwarp.Explain(openThreads(t, iwarp.ThreadsAdaptive, iwarp.Protocol{})), "threads")
}

// What a device takes of TCP's options, and what it refuses.
func TestTCPOptions(t *testing.T) {
	for _, c := range []struct {
		tcp  iwarp.TCP
		want string // part of the error; empty: none
	}{
		{iwarp.TCP{}, ""},
		{iwarp.TCP{Recovery: iwarp.RecoveryRACK, Congestion: iwarp.CongestionReno, MinRTO: 200 * time.Millisecond, KeepACKs: -1, Handoff: true}, ""},
		{iwarp.TCP{Recovery: iwarp.RecoverySACK, MinRTO: time.Millisecond, KeepACKs: 500 * time.Millisecond}, ""},
		{iwarp.TCP{MinRTO: time.Second}, ""},
		{iwarp.TCP{Congestion: 3}, "TCP.Congestion 3: take CongestionPath or CongestionReno"},
		{iwarp.TCP{Recovery: 3}, "TCP.Recovery 3: take RecoverySACK or RecoveryRACK"},
		{iwarp.TCP{MinRTO: -1}, "TCP.MinRTO -1ns: it must be 1ms to 1s, or 0 for 5ms"},
		{iwarp.TCP{MinRTO: time.Microsecond}, "TCP.MinRTO 1µs"},
		{iwarp.TCP{MinRTO: 2 * time.Second}, "TCP.MinRTO 2s"},
		{iwarp.TCP{KeepACKs: time.Second}, "TCP.KeepACKs 1s: it must not be more than 500ms"},
	} {
		t.Run(fmt.Sprintf("%+v", c.tcp), func(t *testing.T) {
			if c.want == "" {
				p := pipe(t, iwarp.PipeConfig{TCP: c.tcp}).connect(t, 4096, nil)
				p.mine.send(t, verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.mine.mr.SGE(0, 4096)}, Remote: p.theirs.remote})
				require.NoError(t, p.mine.wait(t, 1)[0].Err())
				return
			}
			_, _, err := iwarp.Pipe(iwarp.PipeConfig{TCP: c.tcp})
			require.ErrorContains(t, err, c.want)
			_, err = iwarp.Open(t.Context(), iwarp.Config{Backend: iwarp.Kernel, TCP: c.tcp})
			require.ErrorContains(t, err, c.want, "though the kernel backend has no use for it")
		})
	}
}

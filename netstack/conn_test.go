package netstack

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConnectKnowsBothEnds(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, cb, l := p.connect()
		require.Equal(t, p.addrB, l.Addr().Addr())
		require.Equal(t, l.Addr(), ca.RemoteAddr())
		require.Equal(t, ca.RemoteAddr(), cb.LocalAddr())
		require.Equal(t, ca.LocalAddr(), cb.RemoteAddr())
		require.Equal(t, p.addrA, ca.LocalAddr().Addr())
		require.NotZero(t, ca.LocalAddr().Port())
		require.Equal(t, 1, p.a.Stats().Conns)
		require.EqualValues(t, 1, p.a.Stats().Opened)
		require.EqualValues(t, 1, p.b.Stats().Accepted)
		require.Equal(t, 1, p.b.Stats().Listeners)
	})
}

func TestDialFrom(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 1)
		require.NoError(t, err)
		c, err := p.a.Dial(p.addrA, l.Addr())
		require.NoError(t, err)
		p.until("connect", func() bool { ok, err := c.Connected(); require.NoError(t, err); return ok })
		require.Equal(t, p.addrA, c.LocalAddr().Addr())

		_, err = p.a.Dial(p.fam.far, l.Addr())
		require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
		_, err = p.a.Dial(netip.Addr{}, netip.AddrPort{})
		require.Error(t, err)
		require.Equal(t, 1, p.a.Stats().Conns, "what failed is not kept")
	})
}

func TestListenPorts(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 1)
		require.NoError(t, err)
		_, err = p.b.Listen(l.Addr(), 1)
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		_, err = p.b.Listen(netip.AddrPortFrom(p.fam.far, 4000), 1)
		require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)

		require.NoError(t, l.Close())
		require.NoError(t, l.Close())
		_, ok := l.Accept()
		require.False(t, ok)
		again, err := p.b.Listen(l.Addr(), 1)
		require.NoError(t, err, "the port is free again")

		// Of all addresses.
		all, err := p.b.Listen(netip.AddrPortFrom(p.fam.any, 0), 1)
		require.NoError(t, err)
		ca, _ := p.connectTo(all)
		require.NotNil(t, ca)
		require.NoError(t, again.Close())
	})
}

func TestRefused(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 1)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		c, err := p.a.Dial(netip.Addr{}, l.Addr())
		require.NoError(t, err)
		var failure error
		p.until("refusal", func() bool { _, failure = c.Connected(); return failure != nil && p.a.seen[c] > 0 })
		require.ErrorIs(t, failure, syscall.ECONNREFUSED)
		_, err = c.Peek()
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.ErrorIs(t, c.Writev([][]byte{{1}}), syscall.ECONNREFUSED)
		require.Zero(t, c.Room())
		c.Close()
		require.Zero(t, p.a.Stats().Conns)
	})
}

func TestBeforeConnected(t *testing.T) {
	bothFamilies(t, testBeforeConnected)
}

func testBeforeConnected(t *testing.T, fam family) {
	p := newUserPairOf(t, fam, pipe1500, Config{})
	p.portA.Cut(true)
	c, err := p.a.Dial(netip.Addr{}, netip.AddrPortFrom(p.addrB, 1))
	require.NoError(t, err)
	ok, err := c.Connected()
	require.NoError(t, err)
	require.False(t, ok)
	pieces, err := c.Peek()
	require.NoError(t, err)
	require.Nil(t, pieces)
	require.Zero(t, c.Room())
	require.ErrorIs(t, c.Writev([][]byte{{1}}), syscall.ENOTCONN)
	require.ErrorIs(t, c.CloseWrite(), syscall.ENOTCONN)
	require.Equal(t, 1500-fam.headers()-40, c.MSS())
	c.Abort()
	_, err = c.Connected()
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestEcho(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		sizes := []int{1, 2, 3, 17, 64, 191, 192, 193, 1419, 1420, 1421, 4096, 65535, 65536, 65537, 100_000, writeMax, 5}
		toB, toA := checker{}, checker{}
		at := 0
		for _, n := range sizes {
			p.until("room", func() bool { return ca.Room() >= n })
			require.Equal(t, n, send(t, ca, 0, at, n))
			at += n
			p.until("the octets at b", func() bool { require.NoError(t, toB.receive(t, cb)); return toB.at == at })
			p.until("room", func() bool { return cb.Room() >= n })
			require.Equal(t, n, send(t, cb, 0, at-n, n))
			p.until("the octets back at a", func() bool { require.NoError(t, toA.receive(t, ca)); return toA.at == at })
		}
	})
}

func TestHalfClose(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		require.Equal(t, 1000, send(t, ca, 1, 0, 1000))
		require.NoError(t, ca.CloseWrite())
		require.NoError(t, ca.CloseWrite(), "again")
		require.ErrorIs(t, ca.Writev([][]byte{{1}}), syscall.EPIPE)
		require.Zero(t, ca.Room())

		k := checker{stream: 1}
		var end error
		p.until("the end at b", func() bool { end = k.receive(t, cb); return end != nil })
		require.Equal(t, io.EOF, end)
		require.Equal(t, 1000, k.at)

		// The other direction is open.
		require.Equal(t, 50_000, send(t, cb, 2, 0, 50_000))
		k = checker{stream: 2}
		p.until("the answer", func() bool { require.NoError(t, k.receive(t, ca)); return k.at == 50_000 })
		require.Equal(t, 7, send(t, cb, 2, 50_000, 7))
		require.NoError(t, cb.CloseWrite())
		p.until("the end at a", func() bool { end = k.receive(t, ca); return end != nil })
		require.Equal(t, io.EOF, end)
		require.Equal(t, 50_007, k.at)

		ca.Close()
		cb.Close()
		ca.Abort()
		_, err := ca.Peek()
		require.ErrorIs(t, err, net.ErrClosed)
		require.Zero(t, p.a.Stats().Conns+p.b.Stats().Conns)
	})
}

func TestEndComesWithTheLastOctets(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		require.Equal(t, 100, send(t, ca, 0, 0, 100))
		require.NoError(t, ca.CloseWrite())
		var pieces [][]byte
		var err error
		p.until("the end", func() bool { pieces, err = cb.Peek(); return err != nil })
		require.Equal(t, io.EOF, err)
		require.Equal(t, 100, length(pieces))
		cb.Discard(99)
		pieces, err = cb.Peek()
		require.Equal(t, 1, length(pieces))
		require.Equal(t, io.EOF, err)
		cb.Discard(1)
		pieces, err = cb.Peek()
		require.Nil(t, pieces)
		require.Equal(t, io.EOF, err)
	})
}

func TestResetLeavesOctets(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		const n = 100_000
		require.Equal(t, n, send(t, ca, 0, 0, n))
		var before [][]byte
		p.until("the octets", func() bool {
			pieces, err := cb.Peek()
			require.NoError(t, err)
			before = append(before[:0], pieces...)
			return length(pieces) == n
		})
		ca.Abort()
		ca.Abort()
		var end error
		var pieces [][]byte
		p.until("the reset", func() bool { pieces, end = cb.Peek(); return end != nil })
		require.ErrorIs(t, end, syscall.ECONNRESET)
		require.Equal(t, n, length(pieces))
		k := checker{}
		for _, b := range before {
			require.NoError(t, k.check(b), "what was borrowed before the reset")
		}
		require.ErrorIs(t, cb.Writev([][]byte{{1}}), syscall.ECONNRESET)
		require.Zero(t, cb.Room())
		k = checker{}
		require.ErrorIs(t, k.receive(t, cb), syscall.ECONNRESET)
		require.Equal(t, n, k.at)
		cb.Close()
	})
}

// A write that was told of the reset must not make the read look like an orderly end.
func TestResetSeenByWriteFirst(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		ca.Abort()
		p.until("the failing write", func() bool {
			err := cb.Writev([][]byte{{1}})
			if err != nil && !errors.Is(err, ErrNoRoom) {
				require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE), "%v", err)
				return true
			}
			return false
		})
		var err error
		p.until("the failing read", func() bool { _, err = cb.Peek(); return err != nil })
		require.NotErrorIs(t, err, io.EOF)
	})
}

func TestCloseWithUnreadOctetsResets(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		require.Equal(t, 100, send(t, ca, 0, 0, 100))
		p.until("the octets", func() bool { pieces, _ := cb.Peek(); return length(pieces) == 100 })
		cb.Discard(50)
		cb.Close()
		var err error
		p.until("the reset", func() bool { _, err = ca.Peek(); return err != nil })
		require.ErrorIs(t, err, syscall.ECONNRESET)
	})
}

func TestCloseAfterAllIsDiscardedEndsInOrder(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		require.Equal(t, 100, send(t, ca, 0, 0, 100))
		p.until("the octets", func() bool { pieces, _ := cb.Peek(); return length(pieces) == 100 })
		cb.Discard(50)
		cb.Discard(50)
		cb.Close()
		var err error
		p.until("the end", func() bool { _, err = ca.Peek(); return err != nil })
		require.Equal(t, io.EOF, err)
	})
}

// What was written before Close arrives, also what TCP had no room for.
func TestCloseSendsWhatWasWritten(t *testing.T) {
	onAll(t, Config{SendBuffer: MinBuffer, RecvBuffer: MinBuffer}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		sent := 0
		for {
			n := send(t, ca, 0, sent, writeMax)
			if n == 0 {
				break
			}
			sent += n
		}
		require.Greater(t, sent, writeMax)
		ca.Close()
		ca.Close()
		require.Zero(t, ca.Room())
		events := p.a.seen[ca]
		k := checker{}
		var end error
		p.until("all and the end", func() bool { end = k.receive(t, cb); return end != nil })
		require.Equal(t, io.EOF, end)
		require.Equal(t, sent, k.at)
		require.Equal(t, events, p.a.seen[ca], "no event after Close")
		p.until("the conn to be forgotten", func() bool { return p.a.Stats().Conns == 0 })
	})
}

func TestCloseWriteSendsWhatWasWritten(t *testing.T) {
	onAll(t, Config{SendBuffer: MinBuffer, RecvBuffer: MinBuffer}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		sent := 0
		for {
			n := send(t, ca, 0, sent, writeMax)
			if n == 0 {
				break
			}
			sent += n
		}
		require.NoError(t, ca.CloseWrite())
		k := checker{}
		var end error
		p.until("all and the end", func() bool { end = k.receive(t, cb); return end != nil })
		require.Equal(t, io.EOF, end)
		require.Equal(t, sent, k.at)
	})
}

func TestAbortWhilePeerWrites(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		sent, aborted := 0, false
		var failure error
		p.until("the write to fail", func() bool {
			if n := min(10_000, ca.Room()); n > 0 {
				b := make([]byte, n)
				failure = ca.Writev([][]byte{b})
				sent += n
			} else {
				_, failure = ca.Peek()
			}
			if sent > 200_000 && !aborted {
				aborted = true
				cb.Abort()
			}
			return failure != nil
		})
		require.True(t, errors.Is(failure, syscall.ECONNRESET) || errors.Is(failure, syscall.EPIPE), "%v", failure)
		ca.Abort()
		require.Error(t, ca.Writev([][]byte{{1}}))
	})
}

func TestWritevMisuse(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		require.NoError(t, ca.Writev(nil))
		require.NoError(t, ca.Writev([][]byte{nil, {}}))
		require.ErrorIs(t, ca.Writev([][]byte{make([]byte, ca.Room()+1)}), ErrNoRoom)
		require.Equal(t, 10, send(t, ca, 0, 0, 10), "the refused write changed nothing")
		k := checker{}
		p.until("ten octets", func() bool { require.NoError(t, k.receive(t, cb)); return k.at == 10 })
		require.Panics(t, func() { cb.Discard(1) })
		require.Panics(t, func() { cb.Discard(-1) })
		cb.Discard(0)

		many := make([][]byte, 3000) // more parts than one system call takes
		for i := range many {
			many[i] = make([]byte, 7)
			pattern(many[i], 0, 10+7*i)
		}
		require.NoError(t, ca.Writev(many))
		p.until("the many parts", func() bool { require.NoError(t, k.receive(t, cb)); return k.at == 10+7*len(many) })
	})
}

func TestDiscardAtOddSizes(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		const total = 1 << 20
		sent, step := 0, 0
		k := checker{}
		p.until("all octets", func() bool {
			sent += send(t, ca, 0, sent, min(total-sent, 77_777))
			pieces, err := cb.Peek()
			require.NoError(t, err)
			n := length(pieces)
			// Take some; what stays has to be the same when seen again.
			for _, size := range []int{1, 3, 1419, 64, 65537, 2, 1421} {
				step++
				if size*step%11 > 5 {
					size++
				}
				if size > n {
					break
				}
				left := size
				for _, b := range pieces {
					part := b[:min(left, len(b))]
					require.NoError(t, k.check(part))
					left -= len(part)
				}
				cb.Discard(size)
				n -= size
				var again [][]byte
				again, err = cb.Peek()
				require.NoError(t, err)
				require.GreaterOrEqual(t, length(again), n)
				pieces = again
				n = length(again)
			}
			if sent == total && n < 1500 {
				require.NoError(t, k.receive(t, cb))
			}
			return k.at == total
		})
	})
}

func TestBackpressure(t *testing.T) {
	onAll(t, Config{SendBuffer: 512 << 10, RecvBuffer: 512 << 10}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		sent := 0
		fill := func() {
			for {
				n := send(t, ca, 0, sent, 30_000)
				if n == 0 {
					return
				}
				sent += n
			}
		}
		// The reader stands still: at some point there is no more room, for good.
		late := time.Now().Add(30 * time.Second)
		for still := time.Now(); time.Since(still) < 100*time.Millisecond || ca.Room() > 0 && time.Now().Before(late); {
			at := sent
			fill()
			p.a.poll(0)
			p.b.poll(0)
			if sent > at {
				still = time.Now()
			}
		}
		require.Zero(t, ca.Room())
		require.LessOrEqual(t, sent, p.windowMost)
		require.Greater(t, sent, 512<<10)

		// The reader goes on: an event tells of the room.
		events := p.a.seen[ca]
		k := checker{}
		p.until("the event", func() bool { require.NoError(t, k.receive(t, cb)); return p.a.seen[ca] > events && ca.Room() > 0 })
		fill()
		p.until("all octets", func() bool { require.NoError(t, k.receive(t, cb)); return k.at == sent })
	})
}

func TestListenerCloseResetsWaiting(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 4)
		require.NoError(t, err)
		var conns [2]*Conn
		for i := range conns {
			conns[i], err = p.a.Dial(netip.Addr{}, l.Addr())
			require.NoError(t, err)
		}
		p.until("connections", func() bool {
			ok0, _ := conns[0].Connected()
			ok1, _ := conns[1].Connected()
			return ok0 && ok1 && p.b.news[l] > 0
		})
		// The last acknowledgement of the handshake may still be on its way: an octet behind it shows that it came.
		kept, _ := l.Accept()
		require.NotNil(t, kept)
		time.Sleep(20 * time.Millisecond)
		require.NoError(t, l.Close())
		failed := 0
		p.until("the reset of the one that waited", func() bool {
			failed = 0
			for _, c := range conns {
				if _, err := c.Peek(); err != nil {
					require.ErrorIs(t, err, syscall.ECONNRESET)
					failed++
				}
			}
			return failed > 0
		})
		require.Equal(t, 1, failed, "the accepted one lives")
	})
}

func TestStackCloseResetsConns(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		require.Equal(t, 1000, send(t, cb, 0, 0, 1000))
		require.NoError(t, p.b.Close())
		require.NoError(t, p.b.Close())
		require.Zero(t, p.b.Poll(make([]Event, 1), -1), "Poll returns after Close")
		var err error
		until(t, "the reset", func() bool { _, err = ca.Peek(); return err != nil }, p.a)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.Error(t, cb.Writev([][]byte{{1}}))
		cb.Abort()

		_, err = p.b.Dial(netip.Addr{}, netip.AddrPortFrom(p.addrA, 1))
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 1)
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

func TestOwner(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, _, _ := p.connect()
		require.Nil(t, ca.Owner())
		ca.SetOwner(42)
		require.Equal(t, 42, ca.Owner())
		ca.Close()
		require.Nil(t, ca.Owner())
	})
}

func length(pieces [][]byte) int {
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	return n
}

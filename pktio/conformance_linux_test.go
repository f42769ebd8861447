package pktio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What every kind of port on an interface has to do, whatever it is made of.

// portConfig is what the kinds of port have in common.
type portConfig struct {
	name  string
	addr  netip.Addr
	ring  int
	grace time.Duration
}

// portKinds are the kinds of port on an interface.
var portKinds = []struct {
	name string
	open func(c portConfig) (Port, error)
}{
	{"packet", func(c portConfig) (Port, error) {
		return OpenPacket(PacketConfig{Interface: c.name, RingFrames: c.ring, DownGrace: c.grace})
	}},
	{"xdp native", func(c portConfig) (Port, error) {
		return OpenXDP(XDPConfig{Interface: c.name, Addrs: []netip.Addr{c.addr}, RxFrames: c.ring, DownGrace: c.grace, Mode: XDPNative})
	}},
	{"xdp generic", func(c portConfig) (Port, error) {
		return OpenXDP(XDPConfig{Interface: c.name, Addrs: []netip.Addr{c.addr}, RxFrames: c.ring, DownGrace: c.grace, Mode: XDPGeneric})
	}},
}

// end is one end of a veth pair with a port on it.
type end struct {
	Port
	addr netip.Addr
}

// eachKind runs a test with every kind of port on both ends of a veth pair in a namespace of its own. The a side gets
// what c asks for.
func eachKind(t *testing.T, mtu int, c portConfig, f func(t *testing.T, a, b end)) {
	for _, kind := range portKinds {
		t.Run(kind.name, func(t *testing.T) {
			enterNetns(t)
			newVeth(t, mtu)
			open := func(c portConfig) Port {
				p, err := kind.open(c)
				leaveOut(t, err)
				require.NoError(t, err)
				t.Cleanup(func() {
					require.NoError(t, p.Close())
					_, err := p.Recv(nil, 0)
					require.ErrorIs(t, err, ErrClosed)
				})
				return p
			}
			c := c
			c.name, c.addr = vethA, addrA
			a := end{open(c), addrA}
			f(t, a, end{open(portConfig{name: vethB, addr: addrB}), addrB})
		})
	}
}

// frameTo makes a frame of n octets from one end to another.
func (e end) frameTo(to end, n int) []byte {
	return ipFrame(to.Link().Addr, e.Link().Addr, to.addr, n)
}

// numbered makes a frame with a number in it, which numberOf reads.
func (e end) numbered(to end, n, number int) []byte {
	b := e.frameTo(to, n)
	binary.BigEndian.PutUint32(b[34:], uint32(number))
	return b
}

func numberOf(b []byte) int { return int(binary.BigEndian.Uint32(b[34:])) }

// sendAll sends a batch, waiting for room.
func (e end) sendAll(t testing.TB, batch []Frame) {
	t.Helper()
	for len(batch) > 0 {
		n, err := e.Send(batch)
		require.NoError(t, err)
		batch = batch[n:]
		if n == 0 {
			runtime.Gosched()
		}
	}
}

// inPieces cuts a frame at random places, some of them the same.
func inPieces(r *rand.Rand, b []byte) Frame {
	var f Frame
	for k := r.IntN(4); k > 0 && len(b) > 0; k-- {
		n := r.IntN(len(b))
		f.Data = append(f.Data, b[:n])
		b = b[n:]
	}
	f.Data = append(f.Data, b)
	return f
}

func TestPortsCarryFramesOfEverySize(t *testing.T) {
	for _, mtu := range []int{1500, xdpPlain - EthernetHeader, xdpRxRoom - EthernetHeader + 1, 9000, 65535} {
		var sizes []int
		for n := 34; n <= min(mtu, 1500)+EthernetHeader; n += 1 + n/200 {
			sizes = append(sizes, n)
		}
		for _, edge := range []int{xdpPlain, xdpRxRoom, xdpTxRoom, xdpChunk, 2 * xdpRxRoom, 2 * xdpTxRoom, mtu + EthernetHeader} {
			for n := edge - 2; n <= edge+2 && n <= mtu+EthernetHeader; n++ {
				sizes = append(sizes, n)
			}
		}
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			eachKind(t, mtu, portConfig{}, func(t *testing.T, a, b end) {
				r := rand.New(rand.NewPCG(1, uint64(mtu)))
				require.Equal(t, mtu, a.Link().MTU)
				for _, n := range sizes {
					for _, dir := range [][2]end{{a, b}, {b, a}} {
						whole := dir[0].frameTo(dir[1], n)
						k, err := dir[0].Send([]Frame{inPieces(r, whole)})
						require.NoError(t, err)
						require.Equal(t, 1, k)
						require.Equal(t, whole, recvIP(t, dir[1], 5*time.Second), "%d octets", n)
					}
				}
				long := make([]byte, mtu+EthernetHeader+1)
				n, err := a.Send([]Frame{{Data: [][]byte{a.frameTo(b, 60)}}, {Data: [][]byte{long}}, {Data: [][]byte{a.frameTo(b, 61)}}})
				require.ErrorIs(t, err, ErrTooLong)
				require.Equal(t, 1, n, "up to the one at fault")
				n, err = a.Send(one(long[:13]))
				require.ErrorIs(t, err, ErrBadFrame)
				require.Zero(t, n)
				require.Len(t, recvIP(t, b, time.Second), 60)
			})
		})
	}
}

// Frames come in the order they were sent in, in whatever batches they go in and out, round and round the rings.
func TestPortsKeepOrder(t *testing.T) {
	const total = 10000
	eachKind(t, 1500, portConfig{}, func(t *testing.T, a, b end) {
		r := rand.New(rand.NewPCG(3, 4))
		sent, got := 0, 0
		rx := make([]Frame, 100) // and lent
		for got < total {
			var batch []Frame
			for k := 1 + r.IntN(70); k > 0 && sent < total && sent-got < 100; k-- { // fewer than every ring has free
				batch = append(batch, Frame{Data: [][]byte{a.numbered(b, 60+r.IntN(1400), sent)}})
				sent++
			}
			a.sendAll(t, batch)
			n, err := b.Recv(rx[:1+r.IntN(len(rx))], time.Second)
			require.NoError(t, err)
			for i := range rx[:n] {
				if isIPFrame(&rx[i]) {
					require.Equal(t, got, numberOf(octets(&rx[i])))
					got++
				}
			}
		}
	})
}

// What Recv has lent stays as it is until the next Recv, whatever arrives meanwhile, and the port goes on receiving.
func TestPortsLend(t *testing.T) {
	eachKind(t, 1500, portConfig{}, func(t *testing.T, a, b end) {
		const n = 40
		rx := make([]Frame, n)
		for round := range 10 {
			for i := range n {
				a.sendAll(t, one(a.numbered(b, 200, round*1000+i)))
			}
			var held []int
			for len(held) == 0 {
				k, err := b.Recv(rx, time.Second)
				require.NoError(t, err)
				for i := range rx[:k] {
					if isIPFrame(&rx[i]) {
						held = append(held, i)
					}
				}
			}
			first := numberOf(octets(&rx[held[0]]))
			for i := range 60 { // over and over
				a.sendAll(t, one(a.numbered(b, 200, round*1000+n+i)))
			}
			for i, h := range held {
				require.Equal(t, first+i, numberOf(octets(&rx[h])))
			}
			for last := 0; last != round*1000+n+59; {
				last = numberOf(recvIP(t, b, time.Second))
			}
		}
	})
}

func TestPortsWait(t *testing.T) {
	eachKind(t, 1500, portConfig{}, func(t *testing.T, a, b end) {
		batch := make([]Frame, 4)
		for range 3 {
			start := time.Now()
			n, err := b.Recv(batch, 30*time.Millisecond)
			require.NoError(t, err)
			if n == 0 {
				require.GreaterOrEqual(t, time.Since(start), 30*time.Millisecond)
			}
		}
		n, err := b.Recv(nil, -1)
		require.NoError(t, err)
		require.Zero(t, n, "an empty batch does not wait")
		// A receiver that has polled for long wakes up all the same.
		for _, polls := range []int{0, 3 * lookEvery} {
			for _, wait := range []time.Duration{-1, time.Minute} {
				for range polls {
					_, err := b.Recv(batch, 0)
					require.NoError(t, err)
				}
				var sent sync.WaitGroup
				sent.Go(func() {
					time.Sleep(20 * time.Millisecond)
					_, _ = a.Send(one(a.frameTo(b, 60)))
				})
				for got := false; !got; {
					n, err := b.Recv(batch, wait)
					require.NoError(t, err)
					got = n > 0 && isIPFrame(&batch[n-1])
				}
				sent.Wait()
			}
		}
	})
}

func TestPortsIdleForFree(t *testing.T) {
	eachKind(t, 1500, portConfig{}, func(t *testing.T, a, b end) {
		_, err := a.Send(one(a.frameTo(b, 60)))
		require.NoError(t, err)
		recvIP(t, b, time.Second)
		batch := make([]Frame, 4)
		// A busy host may charge us for what others do: once is enough.
		used := time.Duration(0)
		for range 5 {
			var before, after unix.Rusage
			require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &before))
			for until := time.Now().Add(300 * time.Millisecond); time.Now().Before(until); {
				_, err := b.Recv(batch, time.Until(until))
				require.NoError(t, err)
			}
			require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &after))
			used = time.Duration(after.Utime.Nano() - before.Utime.Nano() + after.Stime.Nano() - before.Stime.Nano())
			if used < 20*time.Millisecond {
				return
			}
		}
		require.Fail(t, "an idle port works", "%v of 300 ms", used)
	})
}

// A ring that is full drops what does not fit. It goes on with what does.
func TestPortsRingFull(t *testing.T) {
	eachKind(t, 1500, portConfig{ring: 64}, func(t *testing.T, a, b end) {
		const total = 4000
		for i := range total {
			b.sendAll(t, one(b.numbered(a, 100, i)))
		}
		rx := make([]Frame, 8)
		kept, last := 0, -1
		for idle := 0; idle < 3; {
			n, err := a.Recv(rx, 50*time.Millisecond)
			require.NoError(t, err)
			if n == 0 {
				idle++
			}
			for i := range rx[:n] {
				if isIPFrame(&rx[i]) {
					number := numberOf(octets(&rx[i]))
					require.Greater(t, number, last)
					last = number
					kept++
				}
			}
		}
		require.Positive(t, kept)
		require.Less(t, kept, total)
		dropped := uint64(0)
		switch p := a.Port.(type) {
		case *Packet:
			dropped = p.Stats().RxRingFull
		case *XDP:
			st := p.Stats()
			dropped = st.RxRingFull + st.RxDropped
			require.Positive(t, st.RxNoBuffer)
		}
		require.EqualValues(t, total-kept, dropped, "every one is counted")
		for i := range 500 {
			b.sendAll(t, one(b.numbered(a, 100, total+i)))
			require.Equal(t, total+i, numberOf(recvIP(t, a, 5*time.Second)))
		}
	})
}

func TestPortsDoNotAllocate(t *testing.T) {
	for _, mtu := range []int{1500, 9000} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			eachKind(t, mtu, portConfig{}, func(t *testing.T, a, b end) {
				whole := a.frameTo(b, mtu)
				tx := one(whole[:14], whole[14:])
				rx := make([]Frame, 8)
				for _, wait := range []time.Duration{0, time.Second, -1, 0} {
					exchange := func() {
						if n, err := a.Send(tx); n != 1 || err != nil {
							t.Error(n, err)
						}
						for got := false; !got; {
							n, err := b.Recv(rx, wait)
							if err != nil {
								t.Error(err)
							}
							got = n > 0 && isIPFrame(&rx[n-1])
						}
					}
					for range 20 {
						exchange() // slices of the frames grow
					}
					require.Zero(t, testing.AllocsPerRun(200, exchange), "wait %v", wait)
				}
				require.Zero(t, testing.AllocsPerRun(20, func() { _, _ = b.Recv(rx, time.Microsecond) }), "blocking")
				require.Zero(t, testing.AllocsPerRun(3*lookEvery, func() { _, _ = b.Recv(rx, 0) }), "looking")
			})
		})
	}
}

func TestPortsClose(t *testing.T) {
	eachKind(t, 1500, portConfig{}, func(t *testing.T, a, b end) {
		for _, wait := range []time.Duration{-1, time.Minute, 0} {
			failed := make(chan error)
			go func() {
				for {
					if _, err := b.Recv(make([]Frame, 4), wait); err != nil {
						failed <- err
						return
					}
				}
			}()
			if wait == -1 {
				time.Sleep(10 * time.Millisecond) // most likely it is blocked by now
				require.NoError(t, b.Close())
			}
			require.ErrorIs(t, <-failed, ErrClosed)
		}
		require.NoError(t, b.Close(), "idempotent")
		_, err := b.Send(one(b.frameTo(a, 60)))
		require.ErrorIs(t, err, ErrClosed)
	})
}

func TestPortsKeepLentFramesAcrossClose(t *testing.T) {
	eachKind(t, 9000, portConfig{}, func(t *testing.T, a, b end) {
		for _, n := range []int{100, 9000} {
			a.sendAll(t, one(a.numbered(b, n, n)))
		}
		batch := make([]Frame, 8)
		var held []Frame
		for len(held) == 0 || held[len(held)-1].Len() != 9000 {
			time.Sleep(10 * time.Millisecond)
			n, err := b.Recv(batch, time.Second)
			require.NoError(t, err)
			held = batch[:n]
		}
		require.NoError(t, b.Close())
		require.Equal(t, a.numbered(b, 9000, 9000), octets(&held[len(held)-1]))
		_, err := b.Recv(batch, -1)
		require.ErrorIs(t, err, ErrClosed)
	})
}

// Close at any moment, with a sender and a receiver at work, and the next port at once.
func TestPortsCloseConcurrently(t *testing.T) {
	for _, kind := range portKinds {
		t.Run(kind.name, func(t *testing.T) {
			enterNetns(t)
			newVeth(t, 1500)
			peer, err := kind.open(portConfig{name: vethB, addr: addrB, ring: 64})
			leaveOut(t, err)
			require.NoError(t, err)
			defer peer.Close()
			b := end{peer, addrB}
			for range 20 {
				p, err := kind.open(portConfig{name: vethA, addr: addrA, ring: 64})
				require.NoError(t, err)
				a := end{p, addrA}
				var wg sync.WaitGroup
				sum := 0
				wg.Go(func() {
					batch := make([]Frame, 4)
					for i := 0; ; i++ {
						wait := time.Duration(-1)
						if i%2 == 0 {
							wait = time.Millisecond
						}
						n, err := a.Recv(batch, wait)
						if err != nil {
							if !errors.Is(err, ErrClosed) {
								t.Error(err)
							}
							return
						}
						for i := range batch[:n] {
							for _, o := range batch[i].Data[0] {
								sum += int(o) // a fault here would be fatal
							}
						}
					}
				})
				for _, dir := range [][2]end{{a, b}, {b, a}} {
					f := one(dir[0].frameTo(dir[1], 1000))
					wg.Go(func() {
						for range 1000 {
							if _, err := dir[0].Send(f); err != nil {
								if dir[0] == b || !errors.Is(err, ErrClosed) {
									t.Error(err)
								}
								return
							}
						}
					})
				}
				time.Sleep(time.Millisecond)
				require.NoError(t, p.Close())
				wg.Wait()
			}
		})
	}
}

// await sends a frame again and again until it comes: an interface that came up takes a while to find its carrier.
func await(t *testing.T, from, to end) {
	t.Helper()
	batch := make([]Frame, 4)
	for until := time.Now().Add(20 * time.Second); ; {
		_, err := from.Send(one(from.frameTo(to, 60)))
		require.NoError(t, err)
		n, err := to.Recv(batch, time.Millisecond)
		require.NoError(t, err)
		if n > 0 && isIPFrame(&batch[n-1]) {
			break
		}
		require.True(t, time.Now().Before(until), "no frame came")
	}
	for n := 1; n > 0; { // leave nothing over
		var err error
		n, err = to.Recv(batch, 0)
		require.NoError(t, err)
	}
}

func TestPortsInterfaceGoesDown(t *testing.T) {
	eachKind(t, 1500, portConfig{grace: -1}, func(t *testing.T, a, b end) {
		const text = `pktio: interface sr-pktio-a is down: "ip link set sr-pktio-a up" brings it up: network is down`
		failed := make(chan error)
		for _, d := range []time.Duration{-1, time.Minute, time.Millisecond, 0} {
			go func() {
				for {
					if _, err := a.Recv(make([]Frame, 4), d); err != nil {
						failed <- err
						return
					}
				}
			}()
			time.Sleep(10 * time.Millisecond) // most likely it is blocked by now
			setUp(t, vethA, false)
			err := <-failed
			require.ErrorIs(t, err, syscall.ENETDOWN, "wait %v", d)
			require.EqualError(t, err, text)
			_, err = a.Recv(make([]Frame, 4), -1)
			require.EqualError(t, err, text, "as long as it is down")
			for range 3 {
				_, err = a.Send(one(a.frameTo(b, 60)))
				require.ErrorIs(t, err, syscall.ENETDOWN)
				require.EqualError(t, err, text)
			}
			n, err := a.Send(one(a.frameTo(b, 60)))
			require.EqualError(t, err, text)
			require.Zero(t, n)
			setUp(t, vethA, true)
			await(t, a, b)
			await(t, b, a)
		}
	})
}

// An interface that is down for less than the grace is nobody's business.
func TestPortsInterfaceFlaps(t *testing.T) {
	eachKind(t, 1500, portConfig{}, func(t *testing.T, a, b end) {
		for range 3 {
			got := make(chan error, 1)
			go func() {
				batch := make([]Frame, 1)
				for {
					n, err := a.Recv(batch, -1)
					if err != nil || n == 1 && isIPFrame(&batch[0]) {
						got <- err
						return
					}
				}
			}()
			setUp(t, vethA, false)
			time.Sleep(10 * time.Millisecond)
			setUp(t, vethA, true)
			for until := time.Now().Add(20 * time.Second); len(got) == 0 && time.Now().Before(until); time.Sleep(time.Millisecond) {
				_, err := b.Send(one(b.frameTo(a, 60)))
				require.NoError(t, err)
			}
			require.NoError(t, <-got)
		}
	})
}

// The grace runs out for a receiver that waits, whether or not it gave the wait an end.
func TestPortsInterfaceStaysDown(t *testing.T) {
	const grace = 200 * time.Millisecond
	eachKind(t, 1500, portConfig{grace: grace}, func(t *testing.T, a, _ end) {
		for _, wait := range []time.Duration{-1, time.Minute, 10 * time.Millisecond} {
			start := time.Now()
			setUp(t, vethA, false)
			for {
				n, err := a.Recv(make([]Frame, 1), wait)
				if err != nil {
					require.ErrorIs(t, err, syscall.ENETDOWN)
					break
				}
				require.Zero(t, n)
			}
			require.GreaterOrEqual(t, time.Since(start), grace-10*time.Millisecond)
			setUp(t, vethA, true)
			for n, err := 0, error(nil); n == 0 && err == nil; { // it sees that it is up
				n, err = a.Recv(make([]Frame, 1), 50*time.Millisecond)
				if n == 0 {
					break
				}
			}
		}
	})
}

func TestPortsPeerGoesDown(t *testing.T) {
	eachKind(t, 1500, portConfig{}, func(t *testing.T, a, b end) {
		setUp(t, vethB, false)
		for range 200 {
			_, err := a.Send(one(a.frameTo(b, 60)))
			require.NoError(t, err, "no carrier is no error: the frame has no way to go")
		}
		setUp(t, vethB, true)
		for until := time.Now().Add(20 * time.Second); ; {
			_, err := a.Send(one(a.frameTo(b, 777)))
			require.NoError(t, err)
			rx := make([]Frame, 1)
			if n, _ := b.Recv(rx, time.Millisecond); n == 1 && isIPFrame(&rx[0]) {
				require.Equal(t, 777, rx[0].Len(), "nothing from before")
				break
			}
			require.True(t, time.Now().Before(until))
		}
	})
}

func TestPortsInterfaceIsDeleted(t *testing.T) {
	const text = `pktio: interface sr-pktio-a is gone, deleted or moved to another network namespace: open the device anew when it is back: network is down`
	for _, d := range []time.Duration{-1, 0} {
		eachKind(t, 1500, portConfig{}, func(t *testing.T, a, b end) {
			failed, sent := make(chan error, 1), make(chan error, 1)
			go func() {
				for {
					if _, err := a.Recv(make([]Frame, 4), d); err != nil {
						failed <- err
						return
					}
				}
			}()
			// The sender may hear of it first.
			go func() {
				frame := one(a.frameTo(b, 60))
				for {
					if _, err := a.Send(frame); err != nil {
						sent <- err
						return
					}
				}
			}()
			time.Sleep(10 * time.Millisecond)
			l, err := netlink.LinkByName(vethA)
			require.NoError(t, err)
			require.NoError(t, netlink.LinkDel(l))
			err = <-failed
			require.ErrorIs(t, err, syscall.ENETDOWN)
			require.EqualError(t, err, text)
			require.ErrorIs(t, <-sent, syscall.ENETDOWN)
			for range 3 {
				_, err = a.Send(one(make([]byte, 60)))
				require.EqualError(t, err, text)
			}
			// One of the same name does not bring it back.
			newVeth(t, 1500)
			_, err = a.Recv(make([]Frame, 1), -1)
			require.EqualError(t, err, text)
		})
	}
}

func TestPortsMisusePanics(t *testing.T) {
	eachKind(t, 1500, portConfig{}, func(t *testing.T, a, _ end) {
		var state interface {
			Or(uint32) uint32
			And(uint32) uint32
		}
		switch p := a.Port.(type) {
		case *Packet:
			state = &p.state
			p.sending.Store(true)
			require.PanicsWithValue(t, "pktio: two goroutines in Send", func() { _, _ = a.Send(nil) })
			p.sending.Store(false)
		case *XDP:
			state = &p.state
			state.Or(stateSending)
			require.PanicsWithValue(t, "pktio: two goroutines in Send", func() { _, _ = a.Send(nil) })
			state.And(^uint32(stateSending))
		}
		state.Or(stateReceiving)
		require.PanicsWithValue(t, "pktio: two goroutines in Recv", func() { _, _ = a.Recv(nil, 0) })
		state.And(^uint32(stateReceiving))
	})
}

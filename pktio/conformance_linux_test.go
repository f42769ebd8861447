package pktio

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	{"xdp native, socket", func(c portConfig) (Port, error) {
		return OpenXDP(XDPConfig{Interface: c.name, Addrs: []netip.Addr{c.addr}, RxFrames: c.ring, DownGrace: c.grace, Mode: XDPNative, SendSocket: true})
	}},
	{"xdp generic, socket", func(c portConfig) (Port, error) {
		return OpenXDP(XDPConfig{Interface: c.name, Addrs: []netip.Addr{c.addr}, RxFrames: c.ring, DownGrace: c.grace, Mode: XDPGeneric, SendSocket: true})
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
				start := time.Now()
				for got := false; !got; {
					n, err := b.Recv(batch, wait)
					require.NoError(t, err)
					got = n > 0 && isIPFrame(&batch[n-1])
				}
				require.Less(t, time.Since(start), 5*time.Second)
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

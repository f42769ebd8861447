package netstack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/pktio"
)

// router stands between two links and passes packets on, unless they are too big for what lies behind: then it says so,
// as RFC 1191 and RFC 8201 ask. On either link it is whatever gateway it is asked for.
type router struct {
	t     testing.TB
	ports [2]pktio.Port
	hosts [2][6]byte      // Ethernet addresses of the host on either link
	mtu   [2]atomic.Int64 // octets of a packet that leaves by either port
	mute  atomic.Bool     // says nothing of what is too big

	tooBig atomic.Int64 // packets dropped
	seen   func(segment header.TCP, gso int)

	ends sync.WaitGroup
}

var routerMAC = [6]byte{2, 0, 0, 0, 0, 0xfe}

func (r *router) serve(in int) {
	defer r.ends.Done()
	frames := make([]pktio.Frame, 32)
	for {
		n, err := r.ports[in].Recv(frames, -1)
		if err != nil {
			return
		}
		for i := range n {
			r.take(in, &frames[i])
		}
	}
}

func (r *router) take(in int, f *pktio.Frame) {
	b := make([]byte, f.Len())
	f.CopyTo(b)
	proto := binary.BigEndian.Uint16(b[12:])
	switch {
	case proto == 0x0806 && b[21] == 1:
		reply := append(ethernet(r.hosts[in], routerMAC, 0x0806), b[14:]...)
		reply[21] = 2
		copy(reply[22:], routerMAC[:])
		copy(reply[28:], b[38:42])
		copy(reply[32:], b[22:32])
		r.send(in, pktio.Frame{Data: [][]byte{reply}})
	case proto == 0x86dd && b[20] == 58 && b[54] == 135:
		icmp := append([]byte{136, 0, 0, 0, 0x60, 0, 0, 0}, b[62:78]...)
		icmp = append(append(icmp, 2, 1), routerMAC[:]...)
		ip := header.IPv6(ipPacket(netip.AddrFrom16([16]byte(b[62:])), netip.AddrFrom16([16]byte(b[22:])), 58, len(icmp)))
		ip.SetHopLimit(255)
		sumICMPv6(ip, icmp)
		r.send(in, pktio.Frame{Data: [][]byte{ethernet(r.hosts[in], routerMAC, 0x86dd), ip, icmp}})
	case proto == 0x0800 || proto == 0x86dd && b[0]&1 == 0:
		r.pass(in, b, f.Offload)
	}
}

// pass sends a packet on.
func (r *router) pass(in int, b []byte, off pktio.Offload) {
	out := 1 - in
	size := len(b) - 14
	if off.GSO != pktio.GSONone {
		size = int(off.HdrLen) - 14 + int(off.GSOSize)
	}
	if mtu := int(r.mtu[out].Load()); size > mtu {
		r.tooBig.Add(1)
		if !r.mute.Load() {
			r.complain(in, b[14:], mtu)
		}
		return
	}
	if seg := segmentOf(b); seg != nil && r.seen != nil && in == 0 {
		r.seen(seg, int(off.GSOSize))
	}
	copy(b, r.hosts[out][:])
	copy(b[6:], routerMAC[:])
	r.send(out, pktio.Frame{Data: [][]byte{b}, Offload: off})
}

// complain says that a packet is too big.
func (r *router) complain(in int, packet []byte, mtu int) {
	if packet[0]>>4 == 4 {
		icmp := append(binary.BigEndian.AppendUint32([]byte{3, 4, 0, 0}, uint32(mtu)), packet[:28]...)
		binary.BigEndian.PutUint16(icmp[2:], ^checksum.Checksum(icmp, 0))
		ip := ipPacket(inet4.gateway, netip.AddrFrom4([4]byte(packet[12:])), 1, len(icmp))
		r.send(in, pktio.Frame{Data: [][]byte{ethernet(r.hosts[in], routerMAC, 0x0800), ip, icmp}})
		return
	}
	icmp := append(binary.BigEndian.AppendUint32([]byte{2, 0, 0, 0}, uint32(mtu)), packet[:min(len(packet), 1232)]...)
	ip := ipPacket(inet6.gateway, netip.AddrFrom16([16]byte(packet[8:])), 58, len(icmp))
	sumICMPv6(ip, icmp)
	r.send(in, pktio.Frame{Data: [][]byte{ethernet(r.hosts[in], routerMAC, 0x86dd), ip, icmp}})
}

func (r *router) send(out int, f pktio.Frame) { _, _ = r.ports[out].Send([]pktio.Frame{f}) }

// newRoutedPair has a router between a and b, who are in networks of their own.
func newRoutedPair(t testing.TB, fam family, pipe pktio.PipeConfig, c Config) (*pair, *router) {
	pipe.Depth = 1024
	p := &pair{t: t, fam: fam, addrA: fam.a, addrB: netip.MustParseAddr("10.88.0.2")}
	gateways := []netip.Addr{fam.gateway, netip.MustParseAddr("10.88.0.254")}
	if fam == inet6 {
		p.addrB, gateways[1] = netip.MustParseAddr("fd88::2"), netip.MustParseAddr("fe80::fe")
	}
	r := &router{t: t}
	for i, host := range []**host{&p.a, &p.b} {
		near, far, err := pktio.NewPipe(pipe)
		require.NoError(t, err)
		r.ports[i], r.hosts[i] = far, near.Link().Addr
		r.mtu[i].Store(int64(far.Link().MTU))
		c.Addrs = []netip.Prefix{netip.PrefixFrom([]netip.Addr{p.addrA, p.addrB}[i], fam.bits)}
		c.Gateways = gateways[i : i+1]
		s, err := New(near, c)
		require.NoError(t, err)
		*host = newHost(t, s)
		r.ends.Add(1)
		go r.serve(i)
	}
	t.Cleanup(func() {
		p.close()
		for _, port := range r.ports {
			require.NoError(t, port.Close())
		}
		r.ends.Wait()
	})
	return p, r
}

// To another network and back, through a gateway.
func TestRouted(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		for _, pipe := range []pktio.PipeConfig{pipe1500, pipeGSO} {
			p, r := newRoutedPair(t, fam, pipe, Config{})
			runEcho(t, p, 2, 1<<20)
			require.Zero(t, r.tooBig.Load())
		}
	})
}

// A path with a smaller MTU than the link's: the size of segments follows it, what was lost is sent again, and what is
// written after it comes in segments of the new size.
func TestPathMTU(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		for _, pipe := range []struct {
			name string
			pktio.PipeConfig
		}{{"1500", pipe1500}, {"GSO", pipeGSO}, {"9000", pktio.PipeConfig{MTU: 9000}}, {"9000 GSO", pktio.PipeConfig{MTU: 9000, GSO: true}}} {
			for _, mtu := range []int{1400, 1280, 600} {
				if fam == inet6 && mtu < minMTU6 {
					continue
				}
				t.Run(fmt.Sprintf("%s to %d", pipe.name, mtu), func(t *testing.T) {
					p, r := newRoutedPair(t, fam, pipe.PipeConfig, Config{MinRTO: 10 * time.Millisecond})
					r.mtu[1].Store(int64(mtu))
					mss := mtu - fam.headers() - 40
					var mu sync.Mutex
					var base uint32 // where the octets begin that are written after all
					aligned, counting := 0, false
					r.seen = func(seg header.TCP, gso int) {
						mu.Lock()
						defer mu.Unlock()
						n := len(seg) - int(seg.DataOffset())
						if !counting || n == 0 || int32(seg.SequenceNumber()-base) < 0 {
							return
						}
						if d := int(seg.SequenceNumber() - base); d%mss != 0 || n%mss != 0 || n > mss && gso != mss {
							t.Errorf("a segment of %d octets at %d, cut at %d: not in pieces of %d", n, d, gso, mss)
						}
						aligned += n
					}
					ca, cb := p.exchange(2 << 20)
					require.Equal(t, mss, ca.MSS())
					require.Positive(t, r.tooBig.Load())
					require.Positive(t, p.a.Stats().Retransmits)
					require.Less(t, p.a.Stats().Timeouts, uint64(10))
					lost := r.tooBig.Load()

					// FPDUs of that size stay whole.
					mu.Lock()
					_, nxt, ok := underWay(ca.user.ep)
					base, counting = uint32(nxt), true
					mu.Unlock()
					require.True(t, ok)
					k := checker{stream: 1}
					const fpdus = 300
					for sent := 0; k.at < fpdus*mss; {
						for sent < fpdus && ca.Room() > 0 {
							require.Equal(t, mss, send(t, ca, 1, sent*mss, mss))
							sent++
						}
						p.a.poll(0)
						p.b.poll(0)
						require.NoError(t, k.receive(t, cb))
					}
					mu.Lock()
					require.GreaterOrEqual(t, aligned, fpdus*mss)
					mu.Unlock()
					require.Equal(t, lost, r.tooBig.Load(), "nothing is too big any more")
					require.Zero(t, p.a.Stats().ChecksumErrors+p.b.Stats().ChecksumErrors)

					// The other direction learns by itself.
					r.mtu[0].Store(int64(mtu))
					sent := 0
					k = checker{stream: 2}
					p.until("the way back", func() bool {
						sent += send(t, cb, 2, sent, min(1<<20-sent, 100_000))
						require.NoError(t, k.receive(t, ca))
						return k.at == 1<<20
					})
					require.Equal(t, mss, cb.MSS())
				})
			}
		}
	})
}

// The path gets narrower again and again while octets flow both ways.
func TestPathMTUChanges(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		p, r := newRoutedPair(t, fam, pktio.PipeConfig{MTU: 9000, GSO: true}, Config{MinRTO: 10 * time.Millisecond})
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for mtu := int64(8000); mtu >= 1280; mtu -= 700 {
				r.mtu[0].Store(mtu)
				r.mtu[1].Store(mtu - 10)
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
		}()
		runEcho(t, p, 1, 8<<20)
		close(stop)
		<-done
		require.Positive(t, r.tooBig.Load())
	})
}

// A router that says nothing of what it drops takes the connection's large segments away, and only those.
func TestMuteRouter(t *testing.T) {
	p, r := newRoutedPair(t, inet6, pipe1500, Config{})
	r.mtu[1].Store(1280)
	r.mute.Store(true)
	ca, cb, _ := p.connect()
	require.Equal(t, 1000, send(t, ca, 0, 0, 1000))
	k := checker{}
	p.until("a small message", func() bool { require.NoError(t, k.receive(t, cb)); return k.at == 1000 })
	require.Equal(t, 4000, send(t, ca, 0, 1000, 4000))
	p.until("large segments, again", func() bool { return r.tooBig.Load() > 5 })
	require.NoError(t, k.receive(t, cb))
	require.Equal(t, 1000, k.at)
	r.mute.Store(false)
	p.until("the rest", func() bool { require.NoError(t, k.receive(t, cb)); return k.at == 5000 })
	require.Equal(t, 1180, ca.MSS())
}

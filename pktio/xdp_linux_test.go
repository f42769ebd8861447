package pktio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// tcpTo makes a TCP segment of tcpFrame for the port at address 10.77.0.2.
func tcpTo(t testing.TB, dst, src Port, payload int, o tcpOpts) Frame {
	o.dst, o.src = dst.Link().Addr, src.Link().Addr
	return tcpFrame(t, pattern(payload), o)
}

// isTCP tells whether a frame is one of tcpFrame's.
func isTCP(f *Frame) bool {
	d := f.Data[0]
	return len(d) > 54 && (d[12] == 0x08 && d[23] == 6 || d[12] == 0x86 && d[20] == 6)
}

// recvTCP receives the next frame of tcpFrame.
func recvTCP(t testing.TB, p Port) Frame {
	t.Helper()
	batch := make([]Frame, 1)
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); {
		n, err := p.Recv(batch, time.Until(until))
		require.NoError(t, err)
		if n == 1 && isTCP(&batch[0]) {
			return Frame{Data: [][]byte{octets(&batch[0])}, Offload: batch[0].Offload}
		}
	}
	require.Fail(t, "no segment came")
	return Frame{}
}

var tcpAddrs = []netip.Addr{addrB, netip.MustParseAddr("fd77::2")} // where tcpFrame's segments go

// Checksums that are left to the link are right wherever the frame gets to.
func TestXDPChecksums(t *testing.T) {
	xdpModes(t, func(t *testing.T, mode XDPMode) {
		for _, mtu := range []int{1500, 9000} {
			enterNetns(t)
			newVeth(t, mtu)
			a := openXDP(t, XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, Mode: mode})
			b := openXDP(t, XDPConfig{Interface: vethB, Addrs: tcpAddrs, Mode: mode})
			if !a.link.Checksum {
				t.Skip("LEFT OUT: checksums of frames sent need Linux 6.11")
			}
			kernel := openPacket(t, PacketConfig{Interface: vethA})
			for _, v6 := range []bool{false, true} {
				for _, n := range []int{0, 1, 2, 1000, 1399, mtu - 80} {
					o := tcpOpts{v6: v6, partial: true}
					f := tcpTo(t, b, a, n, o)
					k, err := a.Send([]Frame{f})
					require.NoError(t, err)
					require.Equal(t, 1, k)
					got := recvTCP(t, b)
					require.Equal(t, f.Data[0], got.Data[0], "over a veth nobody finishes it")
					require.Equal(t, f.Offload, got.Offload)
					require.True(t, tcpOK(&got))

					// Whole checksums are nothing special, right or wrong.
					o.partial = false
					f = tcpTo(t, b, a, n, o)
					for range 2 {
						_, err = a.Send([]Frame{f})
						require.NoError(t, err)
						got = recvTCP(t, b)
						require.Equal(t, f.Data[0], got.Data[0])
						require.Zero(t, got.Offload)
						f.Data[0][len(f.Data[0])-3] ^= 4
					}
					require.False(t, tcpOK(&got))

					// The kernel sees it as one of its own.
					f = tcpTo(t, kernel, b, n, tcpOpts{v6: v6, partial: true})
					_, err = b.Send([]Frame{f})
					require.NoError(t, err)
					got = recvTCP(t, kernel)
					require.True(t, tcpOK(&got))
				}
			}
			// What the kernel would refuse does not get there, and does no harm.
			for _, o := range []Offload{
				{NeedsCsum: true, CsumStart: 1400, CsumOffset: 16},
				{NeedsCsum: true, CsumStart: 65535, CsumOffset: 65535},
				{NeedsCsum: true, CsumStart: 34, CsumOffset: 1300},
				{NeedsCsum: true, GSO: GSOTCPv4, GSOSize: 100},
			} {
				f := tcpTo(t, b, a, 1000, tcpOpts{})
				f.Offload = o
				n, err := a.Send([]Frame{f})
				require.ErrorIs(t, err, ErrBadFrame)
				require.Zero(t, n)
			}
			require.EqualValues(t, 4, a.Stats().TxErrors)
			_, err := a.Send([]Frame{tcpTo(t, b, a, 10, tcpOpts{partial: true})})
			require.NoError(t, err)
			recvTCP(t, b)
		}
	})
}

// A virtual machine that wants whole checksums gets them, and its own unfinished ones are understood.
func TestXDPOnTap(t *testing.T) {
	xdpModes(t, func(t *testing.T, mode XDPMode) {
		enterNetns(t)
		vm := newTap(t)
		p := openXDP(t, XDPConfig{Interface: tapName, Addrs: tcpAddrs, Mode: mode})
		require.True(t, p.rx.trusted)
		vmAddr := [6]byte{2, 0, 0, 0, 0, 1}
		exchange := func(o tcpOpts, want Offload) {
			o.dst, o.src = vmAddr, p.link.Addr
			f := tcpFrame(t, pattern(1000), o)
			_, err := p.Send([]Frame{f})
			require.NoError(t, err)
			d, off := vm.read(t)
			got := Frame{Data: [][]byte{d}, Offload: off}
			require.True(t, tcpOK(&got))
			require.Equal(t, want.NeedsCsum, off.NeedsCsum)

			o.dst, o.src = p.link.Addr, vmAddr
			f = tcpFrame(t, pattern(1000), o)
			vm.write(t, f.Data[0], f.Offload)
			got = recvTCP(t, p)
			require.Equal(t, f.Data[0], got.Data[0])
			require.True(t, tcpOK(&got))
		}
		for _, v6 := range []bool{false, true} {
			exchange(tcpOpts{v6: v6}, Offload{})
			if p.link.Checksum {
				exchange(tcpOpts{v6: v6, partial: true}, Offload{NeedsCsum: true})
			}
		}
		if p.link.Checksum {
			// From now on the machine cannot finish checksums: the kernel does.
			require.NoError(t, unix.IoctlSetInt(vm.fd, unix.TUNSETOFFLOAD, 0))
			exchange(tcpOpts{partial: true}, Offload{})
			require.NoError(t, p.Close())
			p = openXDP(t, XDPConfig{Interface: tapName, Addrs: tcpAddrs, Mode: mode})
			require.False(t, p.link.Checksum, "nothing to be saved by leaving the checksum to a device that does none")
		}
	})
}

// A kernel peer sends super-frames if nobody stops it; a program in native mode does.
func TestXDPReceivesSuperFrames(t *testing.T) {
	xdpModes(t, func(t *testing.T, mode XDPMode) {
		enterNetns(t)
		newVeth(t, 1500)
		if can, err := canPieces(vethA); mode == XDPGeneric && err == nil && !can {
			t.Skip("LEFT OUT: frames longer than a buffer need Linux 6.6")
		}
		p := openXDP(t, XDPConfig{Interface: vethA, Addrs: tcpAddrs, Mode: mode})
		peer := openPacket(t, PacketConfig{Interface: vethB})
		for _, v6 := range []bool{false, true} {
			for _, n := range []int{1449, 4000, 20000, 65000} {
				f := tcpTo(t, p, peer, n, tcpOpts{v6: v6, gso: 1400})
				_, err := peer.Send([]Frame{f})
				require.NoError(t, err)
				head := int(f.HdrLen)
				var payload []byte
				for len(payload) < n {
					got := recvTCP(t, p)
					require.True(t, tcpOK(&got))
					require.Equal(t, GSONone, got.GSO)
					payload = append(payload, got.Data[0][head:]...)
				}
				require.Equal(t, pattern(n), payload)
			}
		}
		require.Zero(t, p.Stats().RxTooLong)
		require.Zero(t, p.Stats().RxDropped)
	})
}

// Frames arrive on whatever queue the device chooses, and one Recv finds them all.
func TestXDPQueues(t *testing.T) {
	const queues, total = 3, 600
	xdpModes(t, func(t *testing.T, mode XDPMode) {
		enterNetns(t)
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.NumRxQueues, attrs.NumTxQueues = vethA, queues, queues
		require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: vethB, PeerNumRxQueues: queues, PeerNumTxQueues: queues}))
		for _, name := range []string{vethA, vethB} {
			setUp(t, name, true)
			awaitCarrier(t, name)
		}
		p := openXDP(t, XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, Mode: mode})
		require.Equal(t, mode.String()+", copy, 3 queues", p.Mode())
		// A socket on each transmit queue of the other end, which is the receive queue here.
		l, err := netlink.LinkByName(vethB)
		require.NoError(t, err)
		var from []*xdpQueue
		for id := range queues {
			q, err := newXDPQueue(vethB, xdpSizes{64, 1024})
			require.NoError(t, err)
			defer q.unmap()
			defer q.close()
			require.NoError(t, q.bind(l.Attrs().Index, id, unix.XDP_COPY))
			from = append(from, q)
		}
		for _, wait := range []time.Duration{0, -1} {
			var next [queues]int
			send := func(id, number int) {
				f := ipFrame(p.link.Addr, [6]byte{2}, addrA, 100)
				f[34] = byte(id)
				binary.BigEndian.PutUint32(f[35:], uint32(number))
				q := from[id]
				for q.reclaim(); len(q.free) == 0; {
					q.reclaim()
				}
				q.put(&Frame{Data: [][]byte{f}}, len(f))
				q.tx.produced()
				require.Zero(t, q.kick())
			}
			sent := [queues]int{}
			for i := range total {
				id := i * i % 7 % queues
				send(id, sent[id])
				sent[id]++
			}
			batch := make([]Frame, 16)
			for got := 0; got < total; {
				n, err := p.Recv(batch, wait)
				require.NoError(t, err)
				for i := range batch[:n] {
					if d := batch[i].Data[0]; isIPFrame(&batch[i]) {
						require.Equal(t, next[d[34]], int(binary.BigEndian.Uint32(d[35:])), "in order on each queue")
						next[d[34]]++
						got++
					}
				}
			}
			require.Equal(t, sent, next)
			for _, n := range next {
				require.Positive(t, n)
			}
		}
		// And each of them wakes a receiver.
		for id := range queues {
			var sent sync.WaitGroup
			sent.Go(func() {
				time.Sleep(10 * time.Millisecond)
				f := ipFrame(p.link.Addr, [6]byte{2}, addrA, 100)
				from[id].put(&Frame{Data: [][]byte{f}}, len(f))
				from[id].tx.produced()
				from[id].kick()
			})
			recvIP(t, p, 10*time.Second)
			sent.Wait()
		}
	})
}

// A device that does not tell how many queues it has.
func TestXDPQueuesUntold(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.NumRxQueues = "sr-pktio-br", 3
	require.NoError(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	setUp(t, attrs.Name, true)
	p := openXDP(t, XDPConfig{Interface: attrs.Name, Addrs: []netip.Addr{addrA}, RxFrames: 64})
	require.Equal(t, "generic, copy, 3 queues", p.Mode())
	require.Equal(t, 1, madeForQueues(1<<30), "none such")
}

// A device that was made for more queues than it has at present.
func TestXDPQueuesFewer(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	c := XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, RxFrames: 64}
	openXDP(t, c).Close()
	require.NoError(t, c.setDefaults())
	p := &XDP{groups: -1, news: -1}
	defer p.undo()
	require.NoError(t, p.findLink(&c))
	d := xdpDevice{driver: "veth", queues: 5}
	mode, err := p.attachProgram(&c, d, false)
	require.NoError(t, err)
	require.NoError(t, p.openQueues(&c, d, mode, false))
	require.Len(t, p.queues, 1)
}

// A card drops frames to groups that nobody joined, and nobody but the port knows of those of its addresses.
func TestXDPJoinsGroups(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	joined := func() string {
		b, err := os.ReadFile("/proc/thread-self/net/dev_mcast")
		require.NoError(t, err)
		return string(b)
	}
	before := joined()
	for _, group := range []string{"3333ff000001", "3333ff770001"} {
		require.NotContains(t, before, group)
	}
	p := openXDP(t, XDPConfig{Interface: vethA, Addrs: steerAddrs})
	for _, group := range []string{"3333ff000001", "3333ff770001", "333300000001"} {
		require.Contains(t, joined(), group)
	}
	require.NoError(t, p.Close())
	require.Equal(t, before, joined())
}

// pendTx puts a frame into the transmit ring as a Send does whose system call came to nothing.
func pendTx(p *XDP, f []byte) {
	q := p.queues[0]
	q.put(&Frame{Data: [][]byte{f}}, len(f))
	q.tx.produced()
	p.kickDue.Store(true)
}

// Frames that the kernel had no room for go out later: with the next Send, the next Recv, or by a receiver that waits.
func TestXDPKicksAgain(t *testing.T) {
	a, b := xdpPair(t, 1500, XDPAuto)
	frame := func() []byte { return ipFrame(b.link.Addr, a.link.Addr, addrB, 100) }
	pendTx(a, frame())
	_, err := a.Recv(make([]Frame, 1), 0)
	require.NoError(t, err)
	require.Len(t, recvIP(t, b, 5*time.Second), 100)
	require.False(t, a.kickDue.Load())

	pendTx(a, frame())
	_, err = a.Send(nil)
	require.NoError(t, err)
	require.Len(t, recvIP(t, b, 5*time.Second), 100)

	var receiver sync.WaitGroup
	receiver.Go(func() {
		_, err := a.Recv(make([]Frame, 1), -1)
		if err != nil {
			t.Error(err)
		}
	})
	time.Sleep(20 * time.Millisecond) // most likely it waits by now
	for range 3 {
		pendTx(a, frame())
		a.rouse()
		require.Len(t, recvIP(t, b, 5*time.Second), 100)
	}
	_, err = b.Send(one(ipFrame(a.link.Addr, b.link.Addr, addrA, 60)))
	require.NoError(t, err)
	receiver.Wait()
}

// Someone who wants a waiting receiver to look may come a little late. That must not keep it from sleeping.
func TestPortsLateRouse(t *testing.T) {
	eachKind(t, 1500, portConfig{}, func(t *testing.T, a, b end) {
		file := func() *os.File {
			if p, ok := a.Port.(*Packet); ok {
				return p.file
			}
			return a.Port.(*XDP).file
		}()
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
		used := time.Second
		for range 5 {
			time.Sleep(20 * time.Millisecond)
			require.NoError(t, file.SetReadDeadline(time.Unix(1, 0)))
			var before, after unix.Rusage
			require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &before))
			time.Sleep(200 * time.Millisecond)
			require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &after))
			used = min(used, time.Duration(after.Utime.Nano()-before.Utime.Nano()+after.Stime.Nano()-before.Stime.Nano()))
		}
		require.Less(t, used, 20*time.Millisecond, "it does not sleep")
		_, err := b.Send(one(b.frameTo(a, 60)))
		require.NoError(t, err)
		require.NoError(t, <-got)
	})
}

// With no room left for frames on their way out, Send takes none, and goes on when there is room again.
func TestXDPNoRoom(t *testing.T) {
	enterNetns(t)
	newVeth(t, 9000)
	p := openXDP(t, XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, TxFrames: 64})
	setUp(t, vethA, false)
	frame := ipFrame([6]byte{2}, p.link.Addr, addrB, 9000)
	n, err := p.Send([]Frame{{Data: [][]byte{frame}}, {Data: [][]byte{frame}}})
	require.ErrorIs(t, err, syscall.ENETDOWN)
	require.Equal(t, 2, n, "they wait in the ring")
	require.Len(t, p.queues[0].free, 64-2*3)
	n, err = p.Send(one(frame))
	require.ErrorIs(t, err, syscall.ENETDOWN)
	require.Zero(t, n)
	require.EqualValues(t, 1, p.Stats().TxErrors)
	setUp(t, vethA, true)
	peer := openPacket(t, PacketConfig{Interface: vethB, Promiscuous: true})
	batch := make([]Frame, 60)
	for i := range batch {
		batch[i].Data = [][]byte{frame}
	}
	q := p.queues[0]
	held := append([]uint64(nil), q.free[:56]...) // as if the kernel had these
	q.free = q.free[56:]
	regain := func(n int) {
		for len(q.free) < n {
			q.reclaim()
			time.Sleep(time.Millisecond)
		}
	}
	for _, left := range []int{58, 116} {
		if left == 116 {
			regain(8)
		}
		n, err = p.Send(batch)
		require.NoError(t, err)
		require.Equal(t, 2, n, "what waited is out of the way first, and 8 buffers take two frames")
		require.EqualValues(t, left, p.Stats().TxNoRoom)
	}
	q.free = append(q.free, held...)
	awaitCarrier(t, vethA)
	regain(64)
	n, err = p.Send(batch)
	require.NoError(t, err)
	require.Equal(t, 64/3, n)
	require.Len(t, recvIP(t, peer, 10*time.Second), 9000)
}

// An interface that moves to another namespace is gone.
func TestXDPInterfaceMoves(t *testing.T) {
	home := enterNetns(t)
	newVeth(t, 1500)
	p := openXDP(t, XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}})
	failed := make(chan error, 1)
	go func() {
		_, err := p.Recv(make([]Frame, 4), -1)
		failed <- err
	}()
	time.Sleep(10 * time.Millisecond)
	other, err := netns.New()
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, netns.Set(home))
	l, err := netlink.LinkByName(vethA)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetNsFd(l, int(other)))
	require.ErrorContains(t, <-failed, "sr-pktio-a is gone, deleted or moved to another network namespace")
}

func TestUnfinished(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, n := range []int{0, 1, 2, 3, 100, 1448, 65000} {
			f := tcpFrame(t, pattern(n), tcpOpts{v6: v6, partial: true})
			b := f.Data[0]
			require.Equal(t, f.Offload, unfinished(b, len(b)), "v6 %v, %d octets", v6, n)
			require.Equal(t, f.Offload, unfinished(b[:min(len(b), 80)], len(b)), "in pieces")
			require.Equal(t, f.Offload, unfinished(append(b, 0, 0, 0), len(b)+3), "padded")
			require.Zero(t, unfinished(b, int(f.CsumStart)+20+n-1), "cut short")
			for i := EthernetHeader; i < int(f.CsumStart); i++ {
				if v6 == (i >= 22) && (v6 || i >= 26) { // an address
					c := append([]byte(nil), b...)
					c[i] ^= 0x10
					require.Zero(t, unfinished(c, len(c)), "octet %d", i)
				}
			}
			whole := tcpFrame(t, pattern(n), tcpOpts{v6: v6}).Data[0]
			require.Zero(t, unfinished(whole, len(whole)))
			for k := range min(len(b), 80) {
				_ = unfinished(b[:k], k) // does not fall over
			}
			// UDP keeps its checksum elsewhere.
			proto := &b[23]
			if v6 {
				proto = &b[20]
			}
			*proto = 17
			at := int(f.CsumStart) + udpCsumOffset
			sum := uint32(pseudoSum(b)) + 17 - 6
			binary.BigEndian.PutUint16(b[at:], uint16(sum+sum>>16))
			want := f.Offload
			want.CsumOffset = udpCsumOffset
			require.Equal(t, want, unfinished(b, len(b)))
			*proto = 1
			require.Zero(t, unfinished(b, len(b)))
		}
	}
	f := tcpFrame(t, pattern(100), tcpOpts{partial: true}).Data[0]
	f[20] |= 0x20 // more fragments
	require.Zero(t, unfinished(f, len(f)))
}

func FuzzUnfinished(f *testing.F) {
	for _, o := range []tcpOpts{{partial: true}, {v6: true, partial: true}} {
		b := tcpFrame(f, pattern(20), o).Data[0]
		f.Add(b, len(b))
	}
	f.Fuzz(func(t *testing.T, b []byte, more int) {
		o := unfinished(b, len(b)+more&0xffff)
		if o.NeedsCsum && int(o.CsumStart)+int(o.CsumOffset)+2 > len(b) {
			t.Fatalf("%+v in %d octets", o, len(b))
		}
	})
}

// Where the kernel takes no frames in pieces, an MTU that needs them is refused, and its number is in the error. (On
// kernels that do, the rest of the tests needs them.)
func TestXDPLargeMTU(t *testing.T) {
	enterNetns(t)
	newVeth(t, xdpPlain-EthernetHeader+1)
	c := XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}}
	can, err := canPieces(vethA)
	leaveOut(t, err)
	require.NoError(t, err)
	p, err := OpenXDP(c)
	if can {
		require.NoError(t, err)
		require.NoError(t, p.Close())
	} else {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.EqualError(t, err, `pktio: interface sr-pktio-a has an MTU of 3507, and AF_XDP takes more than 3506 from Linux 6.6 on: lower it with "ip link set sr-pktio-a mtu 1500", or use the packet backend: operation not supported`)
	}
	l, err := netlink.LinkByName(vethA)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetMTU(l, xdpPlain-EthernetHeader))
	l, err = netlink.LinkByName(vethB)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetMTU(l, xdpPlain-EthernetHeader))
	p = openXDP(t, c)
	require.Contains(t, p.Mode(), "native")
}

func TestXDPModeNames(t *testing.T) {
	require.Equal(t, "auto native generic XDPMode(9)", fmt.Sprint(XDPAuto, " ", XDPNative, " ", XDPGeneric, " ", XDPMode(9)))
}

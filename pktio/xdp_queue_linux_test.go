package pktio

import (
	"encoding/binary"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

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
		a.alarm.rouse(a.file)
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

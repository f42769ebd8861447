package pktio

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// numbered is a TCP frame with n octets of payload, the first of which tell its number. With more than a segment's worth
// it is a super-frame.
func numbered(t testing.TB, a, b *Packet, number, n int) Frame {
	p := pattern(n)
	binary.BigEndian.PutUint32(p, uint32(number))
	o := tcpOpts{partial: true}
	if n > 1448 {
		o.gso = 1448
	}
	f := tcpFrame(t, p, o)
	copy(f.Data[0], b.link.Addr[:])
	copy(f.Data[0][6:], a.link.Addr[:])
	return f
}

// payloadOf is the payload of a frame that numbered made.
func payloadOf(t testing.TB, f *Frame) []byte {
	b := octets(f)
	s, ok := tcpSegment(b, len(b))
	require.True(t, ok)
	return b[s.payload:s.end]
}

// needLong leaves a test out where the kernel lets nobody have a queue that is long enough: in a user namespace.
func needLong(t testing.TB, p *Packet) {
	t.Helper()
	var err error
	require.NoError(t, p.raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 2*queueOctets)
	}))
	if err != nil {
		t.Skip("LEFT OUT: a long receive queue is root's here:", err)
	}
	require.NotNil(t, p.rx.queue)
}

// queuePair is two ports of a veth pair, whose long frames go past the rings.
func queuePair(t testing.TB) (a, b *Packet) {
	t.Helper()
	enterNetns(t)
	newVeth(t, 1500)
	a, b = openPacket(t, PacketConfig{Interface: vethA, LongQueue: true}), openPacket(t, PacketConfig{Interface: vethB, LongQueue: true})
	needLong(t, b)
	return a, b
}

func sendAll(t testing.TB, p *Packet, batch ...Frame) {
	t.Helper()
	n, err := p.Send(batch)
	require.NoError(t, err)
	require.Equal(t, len(batch), n)
}

// With Room the payload of a long frame begins where Room does, and its headers come in a piece of their own.
func TestPacketQueueRoom(t *testing.T) {
	a, b := queuePair(t)
	room := make([]byte, 1<<16)
	batch := []Frame{{Room: room}}
	recv := func() *Frame {
		t.Helper()
		n, err := b.Recv(batch, time.Second)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Same(t, &room[0], &batch[0].Room[0], "Room stays with the frame")
		return &batch[0]
	}
	sendAll(t, a, numbered(t, a, b, 1, 60000))
	f := recv()
	require.Len(t, f.Data, 2)
	require.Same(t, &room[0], &f.Data[1][0])
	require.Len(t, f.Data[1], 60000)
	require.Len(t, f.Data[0], EthernetHeader+20+20)
	require.Equal(t, pattern(60000)[4:], f.Data[1][4:])

	// A short one is lent.
	sendAll(t, a, numbered(t, a, b, 2, 200))
	f = recv()
	require.Len(t, f.Data, 1)
	require.NotSame(t, &room[0], &f.Data[0][0])
	require.Equal(t, pattern(60000)[4:], room[4:60000], "what is in Room stays")

	// What is no TCP segment comes in one piece.
	odd := numbered(t, a, b, 3, 5000)
	odd.Data[0][23] = unix.IPPROTO_UDP
	odd.Offload = Offload{}
	wide := newWide(t, a, b)
	sendAll(t, wide, odd)
	f = recv()
	require.Len(t, f.Data, 1)
	require.Equal(t, octets(&odd), f.Data[0])

	// A Room that is too small is not used.
	batch[0].Room = room[:1000]
	sendAll(t, a, numbered(t, a, b, 4, 60000))
	f = recv()
	require.Equal(t, pattern(60000)[4:], payloadOf(t, f)[4:])
	require.NotSame(t, &room[0], &f.Data[len(f.Data)-1][0])
}

// newWide raises the interfaces' MTU and returns a port that makes use of it.
func newWide(t testing.TB, a, b *Packet) *Packet {
	t.Helper()
	for _, name := range []string{vethA, vethB} { // of both, or the veth drops it; b has known 1500 since it was opened
		l, err := netlink.LinkByName(name)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetMTU(l, 9000))
	}
	require.Equal(t, 1500, b.link.MTU)
	return openPacket(t, PacketConfig{Interface: vethA})
}

// Frames that are dropped, wherever that is, leave those that follow whole and in order.
func TestPacketQueueInStep(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	a := openPacket(t, PacketConfig{Interface: vethA})
	b := openPacket(t, PacketConfig{Interface: vethB, RingFrames: 64, MaxFrame: 40000, LongQueue: true})
	needLong(t, b)
	slots := b.rx.short.slots
	batch := make([]Frame, 4)
	drain := func() (numbers []int) {
		for {
			n, err := b.Recv(batch, 0)
			require.NoError(t, err)
			if n == 0 {
				return numbers
			}
			for i := range batch[:n] {
				p := payloadOf(t, &batch[i])
				require.Equal(t, pattern(len(p))[4:], p[4:])
				numbers = append(numbers, int(binary.BigEndian.Uint32(p)))
			}
		}
	}
	check := func(msg string) {
		t.Helper()
		sendAll(t, a, numbered(t, a, b, 7, 30000), numbered(t, a, b, 8, 10), numbered(t, a, b, 9, 20000))
		require.Equal(t, []int{7, 8, 9}, drain(), msg)
	}
	// Too long for MaxFrame.
	sendAll(t, a, numbered(t, a, b, 1, 50000), numbered(t, a, b, 2, 3000), numbered(t, a, b, 3, 60000))
	require.Equal(t, []int{2}, drain())
	require.EqualValues(t, 2, b.Stats().RxTooLong)
	check("after frames that were too long")

	// With a VLAN tag.
	f := numbered(t, a, b, 1, 5000)
	tagged := make([]byte, 0, 6000)
	tagged = append(append(tagged, f.Data[0][:12]...), 0x81, 0, 0, 5)
	for i, d := range f.Data {
		if i == 0 {
			d = d[12:]
		}
		tagged = append(tagged, d...)
	}
	sendAll(t, newWide(t, a, b), Frame{Data: [][]byte{tagged}})
	require.Empty(t, drain())
	require.EqualValues(t, 1, b.Stats().RxTagged)
	check("after a frame with a tag")

	// More than the ring holds.
	for i := range slots + 10 {
		sendAll(t, a, numbered(t, a, b, i, 2000))
	}
	got := drain()
	require.Len(t, got, slots)
	for i, n := range got {
		require.Equal(t, i, n)
	}
	require.EqualValues(t, 10, b.Stats().RxRingFull)
	check("after a full ring")
}

// More octets than may wait are dropped and counted, and nothing is mistaken for something else.
func TestPacketQueueFillTheQueue(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	a := openPacket(t, PacketConfig{Interface: vethA})
	b := openPacket(t, PacketConfig{Interface: vethB, LongQueue: true})
	needLong(t, b)
	const sent = 4000 // 240 MB
	for i := range sent {
		sendAll(t, a, numbered(t, a, b, i, 60000))
	}
	batch := make([]Frame, 16)
	got, last := 0, -1
	for {
		n, err := b.Recv(batch, 0)
		require.NoError(t, err)
		if n == 0 {
			break
		}
		for i := range batch[:n] {
			p := payloadOf(t, &batch[i])
			number := int(binary.BigEndian.Uint32(p))
			require.Greater(t, number, last)
			last = number
			require.Equal(t, pattern(len(p))[4:], p[4:])
			got++
		}
	}
	st := b.Stats()
	require.Greater(t, got, 16<<20/60000, "what is promised")
	require.EqualValues(t, sent, uint64(got)+st.RxQueueFull+st.RxRingFull)
	require.Positive(t, st.RxQueueFull)
	sendAll(t, a, numbered(t, a, b, 5, 60000))
	n, err := b.Recv(batch, time.Second)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, []byte{0, 0, 0, 5}, payloadOf(t, &batch[0])[:4])
}

// Ring and queue that do not belong together are noticed: frames before that are handed out, then there are no more, for
// callers that wait and for those that do not. No octet of the wrong frame is.
func TestPacketQueueOutOfStep(t *testing.T) {
	for name, steal := range map[string]int{"one is missing": 1, "all are missing": 2} {
		t.Run(name, func(t *testing.T) {
			a, b := queuePair(t)
			sendAll(t, a, numbered(t, a, b, 1, 100), numbered(t, a, b, 2, 30000), numbered(t, a, b, 3, 20000), numbered(t, a, b, 4, 100))
			require.NoError(t, b.raw.Control(func(fd uintptr) {
				for range steal {
					n, _, err := unix.Recvfrom(int(fd), make([]byte, MaxSuperFrame+vnetHdrLen), unix.MSG_DONTWAIT)
					require.NoError(t, err)
					require.Greater(t, n, 20000)
				}
			}))
			batch := make([]Frame, 8)
			n, err := b.Recv(batch, time.Second)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.Equal(t, []byte{0, 0, 0, 1}, payloadOf(t, &batch[0])[:4])
			for _, wait := range []time.Duration{0, time.Millisecond, -1, 0} {
				n, err := b.Recv(batch, wait)
				require.Zero(t, n)
				require.Error(t, err)
				require.NotErrorIs(t, err, ErrClosed)
				require.ErrorContains(t, err, vethB)
			}
			for range lookEvery + 1 {
				if _, err = b.Recv(batch, 0); err == nil {
					break
				}
			}
			require.Error(t, err)
			require.NoError(t, b.Close())
			_, err = b.Recv(batch, -1)
			require.ErrorIs(t, err, ErrClosed)
		})
	}
}

// The same while the receiver sleeps.
func TestPacketQueueOutOfStepAsleep(t *testing.T) {
	a, b := queuePair(t)
	sendAll(t, a, numbered(t, a, b, 1, 30000))
	at := b.rx.short.here // as if the ring had never had it
	require.NotZero(t, atomic.LoadUint32(&b.rx.short.header(at).Status)&unix.TP_STATUS_COPY)
	atomic.StoreUint32(&b.rx.short.header(at).Status, unix.TP_STATUS_KERNEL)
	b.rx.short.lend()
	b.rx.short.lent = 0
	done := make(chan error, 1)
	go func() {
		n, err := b.Recv(make([]Frame, 4), -1)
		if n > 0 {
			err = fmt.Errorf("%d frames", n)
		}
		done <- err
	}()
	time.Sleep(5 * time.Millisecond) // it sleeps, most likely: else the test sees less
	sendAll(t, a, numbered(t, a, b, 2, 20000))
	select {
	case err := <-done:
		require.ErrorContains(t, err, "a frame of 20054 octets in the ring")
	case <-time.After(20 * time.Second):
		require.NoError(t, b.Close())
		require.Fail(t, "Recv sleeps on", "%v", <-done)
	}
}

// A frame in the last Room of a batch, and those behind it, do not touch what came before.
func TestPacketQueueRoomsApart(t *testing.T) {
	a, b := queuePair(t)
	batch := make([]Frame, 6)
	for i := range 4 { // two without
		batch[i].Room = make([]byte, 1<<16)
	}
	for round := range 20 {
		for i := range batch {
			sendAll(t, a, numbered(t, a, b, round*10+i, 40000+i))
		}
		n, err := b.Recv(batch, time.Second)
		require.NoError(t, err)
		require.Equal(t, len(batch), n)
		for i := range batch {
			f := &batch[i]
			require.Len(t, f.Data, 2)
			if i < 4 {
				require.Same(t, &f.Room[0], &f.Data[1][0])
			}
			want := pattern(40000 + i)
			binary.BigEndian.PutUint32(want, uint32(round*10+i))
			require.Equal(t, want, payloadOf(t, f))
		}
		batch[0], batch[1+round%5] = batch[1+round%5], batch[0]
		for i := range batch { // those that have one first, for the check above
			for j := i; j < len(batch) && len(batch[i].Room) == 0; j++ {
				batch[i], batch[j] = batch[j], batch[i]
			}
		}
	}
}

// Without CAP_NET_ADMIN the kernel lets few octets wait, so that long frames have a ring all the same.
func TestPacketQueueNeedsRight(t *testing.T) {
	ns := enterNetns(t)
	newVeth(t, 1500)
	without(t, ns, unix.CAP_NET_ADMIN, func() {
		p, err := OpenPacket(PacketConfig{Interface: vethA, LongQueue: true})
		if err != nil {
			t.Error(err)
			return
		}
		if rings := p.Rings(); p.rx.queue != nil || len(rings) != 2 || rings[1].Frames < 64 || rings[1].Slot < MaxSuperFrame {
			t.Errorf("rings: %v", rings)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Receiving long frames does not allocate.
func TestPacketQueueAllocate(t *testing.T) {
	a, b := queuePair(t)
	f := numbered(t, a, b, 1, 60000)
	batch := []Frame{{Room: make([]byte, 1<<16)}, {Room: make([]byte, 1<<16)}}
	send := []Frame{f}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if n, err := a.Send(send); n != 1 || err != nil {
			panic(err)
		}
		for n := 0; n == 0; {
			var err error
			if n, err = b.Recv(batch, 0); err != nil {
				panic(err)
			}
		}
	}))
}

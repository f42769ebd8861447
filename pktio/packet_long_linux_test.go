package pktio

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestPacketLongFrames(t *testing.T) {
	for name, c := range map[string]PacketConfig{"queue": {LongQueue: true}, "ring": {}} {
		t.Run(name, func(t *testing.T) {
			enterNetns(t)
			newVeth(t, 1500)
			a := openPacket(t, PacketConfig{Interface: vethA})
			c.Interface = vethB
			b := openPacket(t, c)
			if c.LongQueue {
				needLong(t, b)
			} else {
				require.NotNil(t, b.rx.long)
			}
			batch := make([]Frame, 8)
			sizes := []int{4, 100, 1448, 1449, 3000, 32 << 10, 65000}
			for round := range 200 {
				at := 0
				for i := range sizes {
					sendAll(t, a, numbered(t, a, b, round<<8|i, sizes[(i*3+round)%len(sizes)]))
				}
				for at < len(sizes) {
					n, err := b.Recv(batch[:1+round%8], time.Second)
					require.NoError(t, err)
					require.NotZero(t, n)
					for i := range batch[:n] {
						p := payloadOf(t, &batch[i])
						want := pattern(sizes[(at*3+round)%len(sizes)])
						binary.BigEndian.PutUint32(want, uint32(round<<8|at))
						require.Equal(t, want, p)
						if len(p) > 1448 {
							require.Equal(t, GSOTCPv4, batch[i].GSO)
							require.EqualValues(t, 1448, batch[i].GSOSize)
							require.True(t, batch[i].NeedsCsum)
						}
						at++
					}
				}
			}
			require.Zero(t, b.Stats().RxRingFull+b.Stats().RxQueueFull)
			require.EqualValues(t, 200*len(sizes), b.Stats().RxFrames)
			require.EqualValues(t, a.Stats().TxOctets, b.Stats().RxOctets)
		})
	}
}

// Frames come in the order in which they were sent, whichever ring they are in, also to a receiver that looks at the rings
// while they are filled.
func TestPacketRingsInOrder(t *testing.T) {
	a, b := vethPair(t, 1500)
	const frames = 200_000
	var sizes [257]int
	for i := range sizes {
		sizes[i] = 4
		if i*7%5 < 2 { // runs of both, of several lengths
			sizes[i] = 1500
		}
	}
	sent, window := make(chan error, 1), make(chan struct{}, 32) // fewer than the rings hold
	go func() {
		for i := range frames {
			window <- struct{}{}
			f := []Frame{numbered(t, a, b, i, sizes[i%len(sizes)])}
			if n, err := a.Send(f); n != 1 || err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	batch := make([]Frame, 8)
	for at := 0; at < frames; {
		n, err := b.Recv(batch, 0)
		require.NoError(t, err)
		for i := range batch[:n] {
			p := payloadOf(t, &batch[i])
			require.Equal(t, at, int(binary.BigEndian.Uint32(p)))
			require.Len(t, p, sizes[at%len(sizes)])
			at++
			<-window
		}
	}
	require.NoError(t, <-sent)
	require.Zero(t, b.Stats().RxRingFull)
}

// A ring that is full drops what comes for it, counts it, and is of no matter to the other one.
func TestPacketLongRingFull(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	a := openPacket(t, PacketConfig{Interface: vethA})
	b := openPacket(t, PacketConfig{Interface: vethB, LongFrames: 5})
	slots := b.rx.long.slots
	require.GreaterOrEqual(t, slots, 5)
	batch := make([]Frame, 2*slots)
	drain := func() (numbers []int) {
		for {
			n, err := b.Recv(batch, 0)
			require.NoError(t, err)
			if n == 0 {
				return numbers
			}
			require.LessOrEqual(t, b.rx.long.lent, slots/2, "the other half is the kernel's")
			for i := range batch[:n] {
				numbers = append(numbers, int(binary.BigEndian.Uint32(payloadOf(t, &batch[i]))))
			}
		}
	}
	for round := range 3 {
		var want []int
		for i := range slots + 7 {
			sendAll(t, a, numbered(t, a, b, i, 60000))
			if i < slots {
				want = append(want, i)
			}
		}
		for i := range 40 {
			sendAll(t, a, numbered(t, a, b, 1000+i, 40))
			want = append(want, 1000+i)
		}
		require.Equal(t, want, drain())
		require.EqualValues(t, 7*(round+1), b.Stats().RxRingFull)
	}
}

// A receiver that sleeps is woken by a long frame as by a short one, and one that polls by neither.
func TestPacketDeafToLongFrames(t *testing.T) {
	a, b := vethPair(t, 1500)
	batch := make([]Frame, 4)
	recv := func(wait time.Duration) int {
		n, err := b.Recv(batch, wait)
		require.NoError(t, err)
		return n
	}
	long := numbered(t, a, b, 1, 30000)
	for range 3 {
		sent := make(chan struct{})
		time.AfterFunc(10*time.Millisecond, func() {
			defer close(sent)
			_, _ = a.Send([]Frame{long})
		})
		require.Equal(t, 1, recv(10*time.Second), "woken")
		<-sent
		require.Len(t, payloadOf(t, &batch[0]), 30000)
		for range 2 * deafAfter {
			require.Zero(t, recv(0))
		}
		sendAll(t, a, long)
		for end := time.Now().Add(10 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
			require.False(t, wakes(t, b))
		}
		require.Eventually(t, func() bool { return recv(0) == 1 }, 5*time.Second, time.Millisecond)
	}
}

// What the filter does of short frames it does of long ones.
func TestPacketLongFramesOfOthers(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	a := openPacket(t, PacketConfig{Interface: vethA})
	b := openPacket(t, PacketConfig{Interface: vethB})
	all := openPacket(t, PacketConfig{Interface: vethB, Promiscuous: true})
	other := numbered(t, a, b, 1, 20000)
	other.Data[0][5] ^= 1
	sendAll(t, a, other, numbered(t, a, b, 2, 20000), numbered(t, a, b, 3, 1448), numbered(t, a, b, 4, 1449))
	numbers := func(p *Packet, count int) (got []int) {
		batch := make([]Frame, 8)
		for len(got) < count {
			n, err := p.Recv(batch, 5*time.Second)
			require.NoError(t, err)
			require.NotZero(t, n)
			for i := range batch[:n] {
				got = append(got, int(binary.BigEndian.Uint32(payloadOf(t, &batch[i]))))
			}
		}
		return got
	}
	require.Equal(t, []int{2, 3, 4}, numbers(b, 3))
	require.Equal(t, []int{1, 2, 3, 4}, numbers(all, 4))
}

// After an outage long frames come again, and an idle receiver sleeps.
func TestPacketLongFramesAfterAnOutage(t *testing.T) {
	a, b := vethPair(t, 1500)
	setUp(t, vethB, false)
	batch := make([]Frame, 4)
	_, err := b.Recv(batch, 10*time.Millisecond)
	require.NoError(t, err)
	setUp(t, vethB, true)
	require.Eventually(t, func() bool {
		sendAll(t, a, numbered(t, a, b, 1, 30000))
		n, err := b.Recv(batch, 50*time.Millisecond)
		require.NoError(t, err)
		return n > 0 && batch[n-1].Len() > 30000
	}, 10*time.Second, time.Millisecond)
	var before, after unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &before))
	for until := time.Now().Add(300 * time.Millisecond); time.Now().Before(until); {
		_, err := b.Recv(batch, time.Until(until))
		require.NoError(t, err)
	}
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &after))
	used := time.Duration(after.Utime.Nano() - before.Utime.Nano() + after.Stime.Nano() - before.Stime.Nano())
	require.Less(t, used, 60*time.Millisecond)
}

// Frames are whole and the ring goes round where the writer is far.
func TestPacketFarWriter(t *testing.T) {
	a, b := vethPair(t, 1500)
	batch := make([]Frame, 16)
	for i := range 5 * b.rx.long.slots {
		b.rx.long.writer = writer{far: true}
		sendAll(t, a, numbered(t, a, b, i, 2000+i*97), numbered(t, a, b, i, 4))
		n, err := b.Recv(batch, time.Second)
		require.NoError(t, err)
		require.NotZero(t, n)
		want := pattern(2000 + i*97)
		binary.BigEndian.PutUint32(want, uint32(i))
		require.Equal(t, want, payloadOf(t, &batch[0]))
		if n == 1 {
			_, err = b.Recv(batch, time.Second)
			require.NoError(t, err)
		}
	}
	require.Zero(t, b.Stats().RxRingFull)
}

// It takes three looks in a row to believe that the writer is elsewhere.
func TestPacketWriterMoves(t *testing.T) {
	var w writer
	near, far := farFrom-1, farFrom
	for _, step := range []struct {
		d   time.Duration
		far bool
	}{
		{near, false}, {far, false}, {far, false}, {near, false}, {far, false}, {far, false}, {far, true},
		{near, true}, {far, true}, {near, true}, {near, true}, {near, false}, {far, false}, {far, false}, {far, true},
	} {
		w.seen(step.d)
		require.Equal(t, step.far, w.far)
	}
}

// Receiving long frames does not allocate.
func TestPacketLongFramesAllocate(t *testing.T) {
	a, b := vethPair(t, 1500)
	batch, send := make([]Frame, 2), []Frame{numbered(t, a, b, 1, 60000)}
	require.Zero(t, testing.AllocsPerRun(200, func() {
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

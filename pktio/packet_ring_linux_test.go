package pktio

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestPacketRing(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	a := openPacket(t, PacketConfig{Interface: vethA})
	b := openPacket(t, PacketConfig{Interface: vethB, RingFrames: 20, MaxFrame: 60000})
	slots := b.rx.slots
	require.GreaterOrEqual(t, slots, 20)
	require.Greater(t, len(b.rx.ring), b.rx.block, "more than one block")
	send := func(from, to int) {
		for i := from; i < to; i++ {
			f := rawFrame(b.link.Addr, a.link.Addr, 100)
			f[14], f[15] = byte(i>>8), byte(i)
			_, err := a.Send(one(f))
			require.NoError(t, err)
		}
	}
	batch := make([]Frame, 2*slots)
	recv := func(max, from, to int) {
		t.Helper()
		for at := from; at < to; {
			n, err := b.Recv(batch[:max], 0)
			require.NoError(t, err)
			require.NotZero(t, n)
			for i := range batch[:n] {
				d := octets(&batch[i])
				require.Equal(t, at, int(d[14])<<8|int(d[15]))
				at++
			}
		}
	}
	// Round and round in steps that do not divide the ring.
	for at := 0; at < 10*slots; at += 7 {
		send(at, at+7)
		recv(3, at, at+7)
	}
	require.Zero(t, b.Stats().RxRingFull)
	// Everything beyond the ring is dropped and counted; a huge batch gets half the ring at a time.
	_, _ = b.Recv(batch, 0) // give back
	send(0, slots+5)
	n, err := b.Recv(batch, 0)
	require.NoError(t, err)
	require.Equal(t, slots/2, n)
	send(0, 3) // the lent half stays ours
	require.EqualValues(t, 8, b.Stats().RxRingFull)
	require.EqualValues(t, 8, b.Stats().RxRingFull, "counted once")
	for i := range batch[:n] {
		require.Equal(t, byte(i), batch[i].Data[0][15], "lent frames are not written over")
	}
	recv(len(batch), n, slots)
	_, _ = b.Recv(batch, 0)
	send(0, slots)
	recv(5, 0, slots)

	// A ring full of frames we do not want does not block us.
	_, _ = b.Recv(batch, 0)
	for range slots {
		f := rawFrame(b.link.Addr, a.link.Addr, 64)
		_, err := a.Send(one(f[:12], []byte{0x81, 0, 0, 5}, f[12:]))
		require.NoError(t, err)
	}
	n, err = b.Recv(batch, 0)
	require.NoError(t, err)
	require.Zero(t, n)
	require.EqualValues(t, slots, b.Stats().RxTagged)
	send(0, 1)
	recv(1, 0, 1)
}

func TestPacketWaits(t *testing.T) {
	a, b := vethPair(t, 1500)
	batch := make([]Frame, 4)
	drain := func() {
		for n := 1; n > 0; {
			n, _ = b.Recv(batch, 0)
		}
	}
	drain()
	for range 2 {
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
	for _, wait := range []time.Duration{-1, time.Minute, -1} {
		drain()
		time.AfterFunc(20*time.Millisecond, func() { _, _ = a.Send(one(rawFrame(b.link.Addr, a.link.Addr, 60))) })
		start := time.Now()
		for n := 0; n == 0; {
			n, err = b.Recv(batch, wait)
			require.NoError(t, err)
			if n == 1 && octets(&batch[0])[12] != testType>>8 {
				n = 0
			}
		}
		require.Less(t, time.Since(start), 5*time.Second)
	}
}

func TestPacketIdleCostsNothing(t *testing.T) {
	_, b := vethPair(t, 1500)
	var before, after unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &before))
	batch := make([]Frame, 4)
	for until := time.Now().Add(300 * time.Millisecond); time.Now().Before(until); {
		_, err := b.Recv(batch, time.Until(until))
		require.NoError(t, err)
	}
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &after))
	used := time.Duration(after.Utime.Nano() - before.Utime.Nano() + after.Stime.Nano() - before.Stime.Nano())
	require.Less(t, used, 60*time.Millisecond)
}

func TestPacketClose(t *testing.T) {
	a, b := vethPair(t, 1500)
	failed := make(chan error)
	go func() {
		for {
			if _, err := b.Recv(make([]Frame, 4), -1); err != nil {
				failed <- err
				return
			}
		}
	}()
	_, err := a.Send(one(rawFrame(b.link.Addr, a.link.Addr, 60)))
	require.NoError(t, err)
	for b.Stats().RxFrames == 0 {
		time.Sleep(time.Millisecond)
	}
	require.Equal(t, 2, ringsMapped(t))
	require.NoError(t, b.Close())
	require.ErrorIs(t, <-failed, ErrClosed)
	require.Equal(t, 1, ringsMapped(t), "the receiver gave the ring back")
	require.NoError(t, b.Close(), "idempotent")
	_, err = b.Send(one(rawFrame(a.link.Addr, b.link.Addr, 60)))
	require.ErrorIs(t, err, ErrClosed)
	require.NotZero(t, b.Stats().RxFrames)

	// Nobody in Recv and nothing lent: Close itself gives the ring back.
	require.NoError(t, a.Close())
	require.Zero(t, ringsMapped(t))
}

func TestPacketKeepsLentFramesAcrossClose(t *testing.T) {
	a, b := vethPair(t, 1500)
	f := rawFrame(b.link.Addr, a.link.Addr, 100)
	_, err := a.Send(one(f))
	require.NoError(t, err)
	batch := make([]Frame, 8)
	n := 0
	for n == 0 || octets(&batch[n-1])[12] != testType>>8 {
		n, err = b.Recv(batch, time.Second)
		require.NoError(t, err)
	}
	require.NoError(t, b.Close())
	require.Equal(t, f, octets(&batch[n-1]))
	_, err = b.Recv(batch, -1)
	require.ErrorIs(t, err, ErrClosed)
	require.Equal(t, 1, ringsMapped(t))
}

// Close at any moment, with a sender and a receiver at work.
func TestPacketCloseConcurrently(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	b := openPacket(t, PacketConfig{Interface: vethB, RingFrames: 16, MaxFrame: 2000})
	for range 30 {
		p := openPacket(t, PacketConfig{Interface: vethA, RingFrames: 16, MaxFrame: 2000})
		var wg sync.WaitGroup
		sum := 0
		wg.Go(func() {
			batch := make([]Frame, 4)
			for i := 0; ; i++ {
				wait := time.Duration(-1)
				if i%2 == 0 {
					wait = time.Millisecond
				}
				n, err := p.Recv(batch, wait)
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
		for _, from := range []*Packet{p, b} {
			wg.Go(func() {
				f := one(rawFrame(p.link.Addr, b.link.Addr, 1000))
				for range 1000 {
					if _, err := from.Send(f); err != nil {
						if from == b || !errors.Is(err, ErrClosed) {
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
		require.Nil(t, p.rx.ring)
	}
}

func TestPacketMisusePanics(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	p := openPacket(t, PacketConfig{Interface: vethA})
	p.state.Or(stateReceiving)
	require.PanicsWithValue(t, "pktio: two goroutines in Recv", func() { _, _ = p.Recv(nil, 0) })
	p.state.And(^uint32(stateReceiving))
	p.sending.Store(true)
	require.PanicsWithValue(t, "pktio: two goroutines in Send", func() { _, _ = p.Send(nil) })
	p.sending.Store(false)
}

func TestPacketDoesNotAllocate(t *testing.T) {
	a, b := vethPair(t, 1500)
	whole := rawFrame(b.link.Addr, a.link.Addr, 200)
	tx := one(whole[:14], whole[14:])
	rx := make([]Frame, 8)
	var pa, pb Port = a, b
	for _, wait := range []time.Duration{0, time.Second, -1} {
		require.Zero(t, testing.AllocsPerRun(200, func() {
			if n, err := pa.Send(tx); n != 1 || err != nil {
				t.Error(err)
			}
			for n := 0; n == 0; {
				n, _ = pb.Recv(rx, wait)
			}
		}), "wait %v", wait)
	}
	require.Zero(t, testing.AllocsPerRun(20, func() { _, _ = pb.Recv(rx, time.Microsecond) }), "blocking")
}

package pktio

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestPacketRing(t *testing.T) {
	enterNetns(t)
	newVeth(t, 60000)
	a := openPacket(t, PacketConfig{Interface: vethA})
	b := openPacket(t, PacketConfig{Interface: vethB, RingFrames: 20, MaxFrame: 60000})
	require.Nil(t, b.rx.long, "no frame is longer than the MTU")
	slots := b.rx.short.slots
	require.GreaterOrEqual(t, slots, 20)
	require.Greater(t, len(b.rx.short.mem), b.rx.short.block, "more than one block")
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
	require.Equal(t, 4, ringsMapped(t), "two a port")
	require.NoError(t, b.Close())
	require.ErrorIs(t, <-failed, ErrClosed)
	require.Equal(t, 2, ringsMapped(t), "the receiver gave the rings back")
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
	require.Equal(t, 2, ringsMapped(t))
}

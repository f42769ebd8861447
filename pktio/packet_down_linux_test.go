package pktio

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// sendTill sends a frame from one port to another again and again until it is done: an interface that came up takes a
// while to find its carrier.
func sendTill(t *testing.T, from, to *Packet, done func() bool) {
	t.Helper()
	for until := time.Now().Add(5 * time.Second); !done(); {
		_, err := from.Send(one(rawFrame(to.link.Addr, from.link.Addr, 60)))
		require.NoError(t, err)
		require.True(t, time.Now().Before(until), "no frame came")
		time.Sleep(time.Millisecond)
	}
}

// gotTest tells whether a frame of ours is there.
func gotTest(t *testing.T, p *Packet) bool {
	t.Helper()
	batch := make([]Frame, 1)
	for {
		n, err := p.Recv(batch, 0)
		require.NoError(t, err)
		if n == 0 || octets(&batch[0])[12] == testType>>8 {
			return n == 1
		}
	}
}

func TestPacketInterfaceGoesDown(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	a := openPacket(t, PacketConfig{Interface: vethA, DownGrace: -1})
	peer := openPacket(t, PacketConfig{Interface: vethB})
	failed := make(chan error)
	wait := func(d time.Duration) {
		for {
			if _, err := a.Recv(make([]Frame, 4), d); err != nil {
				failed <- err
				return
			}
		}
	}
	const text = `pktio: interface sr-pktio-a is down: "ip link set sr-pktio-a up" brings it up: network is down`
	for _, d := range []time.Duration{-1, time.Minute, time.Millisecond, 0} {
		go wait(d)
		time.Sleep(10 * time.Millisecond) // most likely it is blocked by now
		setUp(t, vethA, false)
		err := <-failed
		require.ErrorIs(t, err, syscall.ENETDOWN, "wait %v", d)
		require.EqualError(t, err, text)
		_, err = a.Recv(make([]Frame, 4), -1)
		require.ErrorIs(t, err, syscall.ENETDOWN, "as long as it is down")
		n, err := a.Send(one(rawFrame(peer.link.Addr, a.link.Addr, 60)))
		require.ErrorIs(t, err, syscall.ENETDOWN)
		require.EqualError(t, err, text)
		require.Zero(t, n)
		setUp(t, vethA, true)
		// And all works again.
		sendTill(t, a, peer, func() bool { return gotTest(t, peer) })
		sendTill(t, peer, a, func() bool { return gotTest(t, a) })
	}
	require.EqualValues(t, 4, a.Stats().Outages)
}

// An interface that is down for a moment is nobody's business but the counters'.
func TestPacketInterfaceFlaps(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	a := openPacket(t, PacketConfig{Interface: vethA})
	peer := openPacket(t, PacketConfig{Interface: vethB})
	got := make(chan error, 1)
	go func() {
		batch := make([]Frame, 1)
		for {
			n, err := a.Recv(batch, -1)
			if err != nil || n == 1 && octets(&batch[0])[12] == testType>>8 {
				got <- err
				return
			}
		}
	}()
	setUp(t, vethA, false)
	for a.Stats().Outages == 0 {
		time.Sleep(time.Millisecond)
	}
	setUp(t, vethA, true)
	sendTill(t, peer, a, func() bool { return len(got) > 0 })
	require.NoError(t, <-got)
}

func TestPacketPeerGoesDown(t *testing.T) {
	a, b := vethPair(t, 1500)
	setUp(t, vethB, false)
	n, err := a.Send(one(rawFrame(b.link.Addr, a.link.Addr, 60)))
	require.NoError(t, err, "no carrier is no error: the frame has no way to go")
	require.EqualValues(t, 1-n, a.Stats().TxNoRoom)
}

func TestPacketInterfaceIsDeleted(t *testing.T) {
	const text = `pktio: interface sr-pktio-a is gone, deleted or moved to another network namespace: open the device anew when it is back: network is down`
	for _, d := range []time.Duration{-1, 0} {
		enterNetns(t)
		newVeth(t, 1500)
		a := openPacket(t, PacketConfig{Interface: vethA})
		failed := make(chan error)
		go func() {
			for {
				if _, err := a.Recv(make([]Frame, 4), d); err != nil {
					failed <- err
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
		_, err = a.Send(one(make([]byte, 60)))
		require.ErrorIs(t, err, syscall.ENETDOWN)
		require.EqualError(t, err, text)
		// One of the same name does not bring it back.
		newVeth(t, 1500)
		_, err = a.Recv(make([]Frame, 1), -1)
		require.EqualError(t, err, text)
	}
}

// The socket tells of an outage once, to whoever asks it first. A sender that comes before the receiver has woken up
// must not keep it from learning.
func TestPacketSenderHearsOfTheOutageFirst(t *testing.T) {
	for range 20 {
		enterNetns(t)
		newVeth(t, 1500)
		a := openPacket(t, PacketConfig{Interface: vethA})
		failed := make(chan error, 1)
		go func() {
			for {
				if _, err := a.Recv(make([]Frame, 4), -1); err != nil {
					failed <- err
					return
				}
			}
		}()
		sent := make(chan error, 1)
		go func() {
			frame := one(rawFrame([6]byte{2}, a.link.Addr, 60))
			for {
				if _, err := a.Send(frame); err != nil {
					sent <- err
					return
				}
			}
		}()
		time.Sleep(5 * time.Millisecond)
		l, err := netlink.LinkByName(vethA)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkDel(l))
		require.ErrorIs(t, <-sent, syscall.ENETDOWN)
		select {
		case err := <-failed:
			require.ErrorIs(t, err, syscall.ENETDOWN)
		case <-time.After(5 * time.Second):
			t.Fatal("the receiver sleeps on")
		}
	}
}

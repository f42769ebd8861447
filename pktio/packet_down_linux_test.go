package pktio

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

func TestPacketPeerGoesDown(t *testing.T) {
	a, b := vethPair(t, 1500)
	setUp(t, vethB, false)
	n, err := a.Send(one(rawFrame(b.link.Addr, a.link.Addr, 60)))
	require.NoError(t, err, "no carrier is no error: the frame has no way to go")
	require.EqualValues(t, 1-n, a.Stats().TxNoRoom)
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

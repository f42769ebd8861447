package pktio

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// A port of a bridge takes frames for anybody and sends them on unchanged.
func TestPacketPromiscuous(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	a, plain := openPacket(t, PacketConfig{Interface: vethA}), openPacket(t, PacketConfig{Interface: vethB})
	l, err := netlink.LinkByName(vethB)
	require.NoError(t, err)
	require.Zero(t, l.Attrs().Promisc)
	b, err := OpenPacket(PacketConfig{Interface: vethB, Promiscuous: true})
	require.NoError(t, err)
	l, err = netlink.LinkByName(vethB)
	require.NoError(t, err)
	require.NotZero(t, l.Attrs().Promisc)

	stranger, another := [6]byte{2, 0, 0, 0, 0, 0x51}, [6]byte{2, 0, 0, 0, 0, 0x52}
	for _, to := range [][6]byte{stranger, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, plain.Link().Addr} {
		frame := rawFrame(to, another, 60)
		n, err := a.Send(one(frame))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		rx := make([]Frame, 1)
		n, err = b.Recv(rx, 10*time.Second)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, frame, octets(&rx[0]), "to %x", to)
	}
	rx := make([]Frame, 4)
	for seen := 0; seen < 2; {
		n, err := plain.Recv(rx, 10*time.Second)
		require.NoError(t, err)
		require.NotZero(t, n)
		for i := range rx[:n] {
			require.NotEqual(t, stranger[:], octets(&rx[i])[:6], "the other port sees only what is for it")
		}
		seen += n
	}

	// What it sends comes from a stranger, and it does not receive it itself.
	frame := rawFrame(a.Link().Addr, stranger, 60)
	n, err := b.Send(one(frame))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	n, err = a.Recv(rx, 10*time.Second)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, frame, octets(&rx[0]))
	n, err = b.Recv(rx, 0)
	require.NoError(t, err)
	require.Zero(t, n)

	require.NoError(t, b.Close())
	l, err = netlink.LinkByName(vethB)
	require.NoError(t, err)
	require.Zero(t, l.Attrs().Promisc, "the interface is as it was")
}

package pktio

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

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
		leaveOut(t, err)
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

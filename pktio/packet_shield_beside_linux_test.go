package pktio

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The kernel's own addresses on the interface answer as ever, IPv6 ones too, and so they do on a bridge over it.
func TestPacketShieldLeavesTheKernelAlone(t *testing.T) {
	for _, bridged := range []bool{false, true} {
		t.Run(fmt.Sprintf("bridge %t", bridged), func(t *testing.T) {
			in := twoNamespaces(t)
			openShielded(t, vethA, addrA, netip.MustParseAddr(addrA6))
			number := func(name, cidr string) {
				l, err := netlink.LinkByName(name)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("0"), 0))
				addr, err := netlink.ParseAddr(cidr)
				require.NoError(t, err)
				addr.Flags = unix.IFA_F_NODAD
				require.NoError(t, netlink.AddrAdd(l, addr))
			}
			number(vethA, "fd78::1/64")
			var listeners []net.Listener
			in(func() {
				openShielded(t, vethB, addrB, netip.MustParseAddr("fd77::2"))
				on := vethB
				if bridged {
					on = bridge(t, vethB, "10.78.0.2/24")
				}
				number(on, "fd78::2/64")
				for _, at := range []string{"10.78.0.2:0", "[fd78::2]:0"} {
					l, err := net.Listen("tcp", at)
					require.NoError(t, err)
					listeners = append(listeners, l)
				}
			})
			require.Equal(t, 5, ping(t, 5))
			for _, l := range listeners {
				defer l.Close()
				go echoOnce(l)
				c, err := net.DialTimeout("tcp", l.Addr().String(), 20*time.Second)
				require.NoError(t, err)
				defer c.Close()
				require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
				said := pattern(100 << 10)
				go c.Write(said)
				heard := make([]byte, len(said))
				_, err = io.ReadFull(c, heard)
				require.NoError(t, err)
				require.Equal(t, said, heard)
				require.NoError(t, c.Close())
			}
		})
	}
}

func echoOnce(l net.Listener) {
	if c, err := l.Accept(); err == nil {
		_, _ = io.Copy(c, c)
		_ = c.Close()
	}
}

// bridge makes an interface a port of a new bridge, which takes its address over.
func bridge(t testing.TB, port, cidr string) string {
	t.Helper()
	const name = "sr-pktio-br"
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	require.NoError(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	br, err := netlink.LinkByName(name)
	require.NoError(t, err)
	l, err := netlink.LinkByName(port)
	require.NoError(t, err)
	addr, err := netlink.ParseAddr(cidr)
	require.NoError(t, err)
	require.NoError(t, netlink.AddrDel(l, addr))
	require.NoError(t, netlink.LinkSetMaster(l, br))
	require.NoError(t, netlink.LinkSetUp(br))
	addr, err = netlink.ParseAddr(cidr)
	require.NoError(t, err)
	require.NoError(t, netlink.AddrAdd(br, addr))
	awaitCarrier(t, name)
	return name
}

// An AF_XDP port on the same interface takes its frames before the program is run.
func TestPacketShieldBesideXDP(t *testing.T) {
	xdpModes(t, func(t *testing.T, mode XDPMode) {
		enterNetns(t)
		newVeth(t, 1500)
		a, x := openShielded(t, vethA, addrA), openXDP(t, XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrB}, Mode: mode})
		peer := openPacket(t, PacketConfig{Interface: vethB})
		for i := range 20 {
			for _, to := range []netip.Addr{addrA, addrB} {
				_, err := peer.Send(one(ipFrame(a.link.Addr, peer.link.Addr, to, 100+i)))
				require.NoError(t, err)
			}
			require.Len(t, recvIP(t, a, 20*time.Second), 100+i)
			require.Len(t, recvIP(t, x, 20*time.Second), 100+i)
		}
	})
}

func TestPacketShieldKilled(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	require.NoError(t, openShielded(t, vethA, addrA).Close())
	require.Zero(t, shields(t, vethA))
	killChild(t, childPacket, func() bool { return shields(t, vethA) > 0 })
}

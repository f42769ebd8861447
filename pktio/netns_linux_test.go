package pktio

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// enterNetns moves the test into a network namespace of its own, which goes away with it.
func enterNetns(t testing.TB) netns.NsHandle {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("LEFT OUT: network namespaces need root: run as root or under \"unshare -Urn\"")
	}
	runtime.LockOSThread()
	home, err := netns.Get()
	require.NoError(t, err)
	ns, err := netns.New()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, netns.Set(home))
		require.NoError(t, ns.Close())
		require.NoError(t, home.Close())
		runtime.UnlockOSThread()
	})
	// No neighbour discovery and no router solicitations among the test's frames.
	for _, which := range []string{"all", "default"} {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0)
	}
	return ns
}

const vethA, vethB = "sr-pktio-a", "sr-pktio-b"

// newVeth makes a pair of interfaces, up, in the test's namespace.
func newVeth(t testing.TB, mtu int) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = vethA, mtu
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: vethB}))
	setUp(t, vethA, true)
	setUp(t, vethB, true)
	awaitCarrier(t, vethA)
	awaitCarrier(t, vethB)
}

// awaitCarrier waits until an interface lets frames out, which is a while after it came up.
func awaitCarrier(t testing.TB, name string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	require.NoError(t, err)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	to := &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index, Protocol: htons(testType)}
	frame := rawFrame([6]byte{2}, [6]byte{2}, 60) // for nobody
	for range 5000 {
		if err = unix.Sendto(fd, frame, 0, to); err == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
	require.NoError(t, err)
}

func setUp(t testing.TB, name string, up bool) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	require.NoError(t, err)
	if up {
		require.NoError(t, netlink.LinkSetUp(l))
	} else {
		require.NoError(t, netlink.LinkSetDown(l))
	}
}

func openPacket(t testing.TB, c PacketConfig) *Packet {
	t.Helper()
	p, err := OpenPacket(c)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.Close())
		_, err := p.Recv(nil, 0)
		require.ErrorIs(t, err, ErrClosed)
	})
	return p
}

// vethPair opens a port on both ends of a new veth pair.
func vethPair(t testing.TB, mtu int) (a, b *Packet) {
	t.Helper()
	enterNetns(t)
	newVeth(t, mtu)
	return openPacket(t, PacketConfig{Interface: vethA}), openPacket(t, PacketConfig{Interface: vethB})
}

// tap is the far side of a tap interface, as a virtual machine has it: frames with a virtio_net_hdr in front.
type tap struct{ fd int }

const tapName = "sr-pktio-t"

func newTap(t testing.TB) *tap {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrPermission) {
		t.Skip("LEFT OUT: /dev/net/tun is root's here: run as root")
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	ifr, err := unix.NewIfreq(tapName)
	require.NoError(t, err)
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	require.NoError(t, unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr))
	require.NoError(t, unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_TSO6))
	setUp(t, tapName, true)
	return &tap{fd}
}

// read returns the next frame of test traffic and its header.
func (p *tap) read(t testing.TB) ([]byte, Offload) {
	t.Helper()
	b := make([]byte, 1<<17)
	for {
		n, err := unix.Read(p.fd, b)
		require.NoError(t, err)
		if f := b[vnetHdrLen:n]; binary.BigEndian.Uint16(f[12:]) == testType || f[12] == 0x08 && f[23] == 6 || f[12] == 0x86 && f[20] == 6 {
			return f, parseVnet(b[:vnetHdrLen])
		}
	}
}

func (p *tap) write(t testing.TB, frame []byte, o Offload) {
	t.Helper()
	var tx packetTx
	tx.putVnet(&o)
	_, err := unix.Write(p.fd, append(tx.vnet[:], frame...))
	require.NoError(t, err)
}

// without runs f in ns on a thread that has lost a capability and goes away afterwards.
func without(t testing.TB, ns netns.NsHandle, capability uint, f func()) {
	t.Helper()
	withRights(t, ns, func(has *[2]unix.CapUserData) { has[capability/32].Effective &^= 1 << (capability % 32) }, f)
}

// withRights runs f in ns on a thread whose capabilities change has changed and that goes away afterwards.
func withRights(t testing.TB, ns netns.NsHandle, change func(*[2]unix.CapUserData), f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()                // and never unlocked: the thread ends with the goroutine
		if err := netns.Set(ns); err != nil { // a new thread is where the one that made it was
			t.Error(err)
			return
		}
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&hdr, &data[0]); err != nil {
			t.Error(err)
			return
		}
		change(&data)
		if err := unix.Capset(&hdr, &data[0]); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}

// ringsMapped counts the rings that are mapped into this process: nothing else maps sockets.
func ringsMapped(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return bytes.Count(maps, []byte(" socket:["))
}

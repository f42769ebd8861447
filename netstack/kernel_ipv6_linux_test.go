//go:build !netstack_portable

package netstack

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// withoutIPv6 makes the kernel say to the test's thread what one without IPv6 says to all. The thread is good for nothing
// else then, and ends with the test.
func withoutIPv6(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	nr, arg0 := uint32(0), uint32(16) // struct seccomp_data, little-endian
	prog := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: nr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SOCKET, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: arg0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.AF_INET6, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	require.NoError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&fprog)), 0, 0); err != nil {
		t.Skip("LEFT OUT: no seccomp filter can be set here:", err)
	}
}

// On a host that does not know IPv6 a listener for both families is one for IPv4.
func TestKernelWithoutIPv6(t *testing.T) {
	p := newKernelPair(t, inet4, Config{})
	done := make(chan struct{})
	go func() { // its thread is not used again
		defer close(done)
		withoutIPv6(t)
		_, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0)
		require.ErrorIs(t, err, unix.EAFNOSUPPORT)
		for _, at := range []netip.Addr{{}, netip.IPv6Unspecified(), netip.IPv4Unspecified()} {
			l, err := p.b.Listen(netip.AddrPortFrom(at, 0), 1)
			require.NoError(t, err)
			require.Equal(t, netip.IPv4Unspecified(), l.Addr().Addr())
			ca, cb := p.connectTo(l)
			require.NotNil(t, ca)
			require.NotNil(t, cb)
			require.NoError(t, l.Close())
		}
		_, err = p.a.Dial(netip.Addr{}, netip.MustParseAddrPort("[::1]:1"))
		require.ErrorIs(t, err, syscall.EAFNOSUPPORT)
		require.ErrorContains(t, err, "IPv6 is off on this host")
		_, err = p.b.Listen(netip.MustParseAddrPort("[::1]:0"), 1)
		require.ErrorIs(t, err, syscall.EAFNOSUPPORT)
	}()
	<-done
}

// Nor does one where IPv6 is switched off.
func TestKernelWithIPv6Disabled(t *testing.T) {
	enterNetns(t)
	upLoopback(t)
	if b, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6"); err == nil {
		require.Equal(t, "1\n", string(b))
	}
	p := newKernelPair(t, inet4, Config{})
	for _, at := range []netip.Addr{{}, netip.IPv6Unspecified()} {
		l, err := p.b.Listen(netip.AddrPortFrom(at, 0), 1)
		require.NoError(t, err)
		p.connectTo(l)
		require.NoError(t, l.Close())
	}
	_, err := p.b.Listen(netip.MustParseAddrPort("[::1]:0"), 1)
	require.Error(t, err)
	_, err = p.a.Dial(netip.Addr{}, netip.MustParseAddrPort("[::1]:1"))
	require.Error(t, err)
	_, err = p.a.Dial(netip.Addr{}, netip.MustParseAddrPort("[fe80::1]:1"))
	require.ErrorIs(t, err, syscall.ENETUNREACH)
	require.ErrorContains(t, err, "no interface here has a link-local address")
}

// Link-local addresses of the kernel: of each link, and on which.
func TestKernelLinkLocal(t *testing.T) {
	enterNetns(t)
	addVeth(t, vethA, vethB, 1500)
	addr := netip.MustParseAddr
	addAddr(t, "lo", netip.MustParsePrefix("::1/128")) // the way to oneself
	addAddr(t, vethA, netip.MustParsePrefix("fe80::1/64"))
	s, err := NewKernel(KernelConfig{})
	require.NoError(t, err)
	h := newHost(t, s)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	l, err := h.Listen(netip.AddrPort{}, 4)
	require.NoError(t, err)
	try := func(from netip.Addr, to string) {
		t.Helper()
		ca, cb, err := dial(t, h, h, l, from, addr(to))
		require.NoError(t, err)
		require.Equal(t, addr("fe80::1%"+vethA), ca.RemoteAddr().Addr())
		require.Equal(t, addr("fe80::1%"+vethA), ca.LocalAddr().Addr())
		require.Equal(t, addr("fe80::1%"+vethA), cb.RemoteAddr().Addr())
		require.Equal(t, addr("fe80::1%"+vethA), cb.LocalAddr().Addr())
		hello(t, h, h, ca, cb)
	}
	ifi, err := net.InterfaceByName(vethA)
	require.NoError(t, err)
	try(netip.Addr{}, "fe80::1%"+vethA)
	try(netip.Addr{}, fmt.Sprintf("fe80::1%%%d", ifi.Index))
	try(netip.Addr{}, "fe80::1") // there is one link that it can be
	try(addr("fe80::1"), "fe80::1%"+vethA)
	try(addr("fe80::1%"+vethA), "fe80::1")
	at, err := h.Listen(netip.AddrPortFrom(addr("fe80::1%"+vethA), 0), 1)
	require.NoError(t, err)
	require.Equal(t, addr("fe80::1%"+vethA), at.Addr().Addr())
	require.NoError(t, at.Close())

	// With two, it has to be said.
	addAddr(t, vethB, netip.MustParsePrefix("fe80::2/64"))
	_, err = h.Dial(netip.Addr{}, netip.AddrPortFrom(addr("fe80::1"), 1))
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "fe80::1%sr-netstack-")
	_, err = h.Listen(netip.AddrPortFrom(addr("fe80::1"), 0), 1)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = h.Dial(netip.Addr{}, netip.AddrPortFrom(addr("fe80::1%sr-netstack-no"), 1))
	require.ErrorIs(t, err, syscall.ENODEV)
	require.ErrorContains(t, err, "sr-netstack-no")
	try(netip.Addr{}, "fe80::1%"+vethA)
}

// Our stack and the kernel's, by link-local addresses, both ways.
func TestLinkLocalWithKernel(t *testing.T) {
	enterNetns(t)
	addVeth(t, vethA, vethB, 1500)
	addr := netip.MustParseAddr
	ours := newHost(t, newVethStack(t, vethA, netip.MustParsePrefix("fe80::77/64"), Config{}, false, false))
	t.Cleanup(func() { require.NoError(t, ours.Close()) })
	kernel := newHost(t, newVethStack(t, vethB, netip.MustParsePrefix("fe80::2/64"), Config{}, true, false))
	t.Cleanup(func() { require.NoError(t, kernel.Close()) })

	l, err := kernel.Listen(netip.AddrPortFrom(addr("fe80::2"), 0), 4)
	require.NoError(t, err)
	ca, cb, err := dial(t, ours, kernel, l, netip.Addr{}, addr("fe80::2"))
	require.NoError(t, err)
	require.Equal(t, addr("fe80::2%"+vethA), ca.RemoteAddr().Addr())
	require.Equal(t, addr("fe80::77%"+vethB), cb.RemoteAddr().Addr())
	hello(t, ours, kernel, ca, cb)

	l, err = ours.Listen(netip.AddrPort{}, 4)
	require.NoError(t, err)
	ca, cb, err = dial(t, kernel, ours, l, netip.Addr{}, addr("fe80::77%"+vethB))
	require.NoError(t, err)
	require.Equal(t, addr("fe80::2%"+vethA), cb.RemoteAddr().Addr())
	hello(t, kernel, ours, ca, cb)
}

// An address is claimed once on an interface; a link-local one is another on each.
func TestClaimIPv6(t *testing.T) {
	enterNetns(t)
	addVeth(t, vethA, vethB, 1500)
	addr := netip.MustParseAddr
	for _, a := range []string{"fd77::1", "fe80::77"} {
		c, err := NewClaim(vethA, addr(a))
		require.NoError(t, err)
		_, err = NewClaim(vethA, addr(a))
		require.ErrorIs(t, err, ErrInUse)
		other, err := NewClaim(vethB, addr(a))
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, other.Close())
	}
	c, err := NewClaim(vethA, addr("fe80::77%"+vethA))
	require.NoError(t, err)
	_, err = NewClaim(vethA, addr("fe80::77"))
	require.ErrorIs(t, err, ErrInUse, "with zone or without")
	require.NoError(t, c.Close())
	_, err = NewClaim(vethA, addr("fe80::77%"+vethB))
	require.ErrorContains(t, err, vethB)
	for _, a := range []string{"::", "::1", "ff02::1"} {
		_, err = NewClaim(vethA, addr(a))
		require.Error(t, err)
	}

	addAddr(t, vethA, netip.MustParsePrefix("fe80::1/64"))
	addAddr(t, vethA, netip.MustParsePrefix("fd77::1/64"))
	_, err = NewClaim(vethA, addr("fe80::1"))
	require.ErrorIs(t, err, ErrKernelAddr)
	c, err = NewClaim(vethB, addr("fe80::1"))
	require.NoError(t, err, "on another link it is another host's")
	require.NoError(t, c.Close())
	for _, name := range []string{vethA, vethB} {
		_, err = NewClaim(name, addr("fd77::1"))
		require.ErrorIs(t, err, ErrKernelAddr)
	}
}

// A card that drops frames to groups it was not told of, as they all do, still lets the question for us through.
func TestNeighbourOnFilteringInterface(t *testing.T) {
	enterNetns(t)
	addVeth(t, vethA, vethB, 1500)
	parent, err := netlink.LinkByName(vethA)
	require.NoError(t, err)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = "sr-netstack-m", parent.Attrs().Index
	if err := netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_PRIVATE}); err != nil {
		t.Skip("LEFT OUT: this kernel makes no macvlan:", err)
	}
	l, err := netlink.LinkByName(attrs.Name)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(l))
	awaitUp(t, attrs.Name)
	ours := newHost(t, newVethStack(t, attrs.Name, netip.PrefixFrom(inet6.a, 64), Config{}, false, false))
	t.Cleanup(func() { require.NoError(t, ours.Close()) })
	kernel := newHost(t, newVethStack(t, vethB, netip.PrefixFrom(inet6.b, 64), Config{}, true, false))
	t.Cleanup(func() { require.NoError(t, kernel.Close()) })
	at, err := ours.Listen(netip.AddrPort{}, 4)
	require.NoError(t, err)
	ca, cb, err := dial(t, kernel, ours, at, netip.Addr{}, inet6.a)
	require.NoError(t, err)
	hello(t, kernel, ours, ca, cb)
}

package pktio

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestXDPConfigErrors(t *testing.T) {
	ours := []netip.Addr{addrA}
	var many []netip.Addr
	for i := range byte(maxXDPAddrs + 1) {
		many = append(many, netip.AddrFrom4([4]byte{10, 77, 1, i}))
	}
	for _, c := range []struct {
		XDPConfig
		text string
	}{
		{XDPConfig{Addrs: ours}, "no interface named: set XDPConfig.Interface"},
		{XDPConfig{Interface: "x"}, "an AF_XDP port receives frames to addresses it is told, and it was told none: set XDPConfig.Addrs"},
		{XDPConfig{Interface: "x", Addrs: []netip.Addr{{}}}, "invalid IP is no address that a host can have: correct XDPConfig.Addrs"},
		{XDPConfig{Interface: "x", Addrs: []netip.Addr{addrA, netip.MustParseAddr("224.0.0.1")}}, "224.0.0.1 is no address that a host can have: correct XDPConfig.Addrs"},
		{XDPConfig{Interface: "x", Addrs: []netip.Addr{netip.MustParseAddr("::")}}, ":: is no address that a host can have: correct XDPConfig.Addrs"},
		{XDPConfig{Interface: "x", Addrs: many}, "an AF_XDP port has 16 addresses at most, not 17: use fewer, or the packet backend"},
		{XDPConfig{Interface: "x", Addrs: ours, Mode: 3}, "there is no XDPMode(3): take XDPAuto, XDPNative or XDPGeneric"},
		{XDPConfig{Interface: "x", Addrs: ours, RxFrames: -1}, "a queue has at most 65536 buffers each way, not -1 and 2048"},
		{XDPConfig{Interface: "x", Addrs: ours, TxFrames: 65537}, "a queue has at most 65536 buffers each way, not 0 and 65537"},
	} {
		_, err := OpenXDP(c.XDPConfig)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.EqualError(t, err, "pktio: "+c.text+": invalid argument")
	}
	// The same address in other clothes counts once, and the caller's slice stays as it was.
	c := XDPConfig{Interface: "x", Addrs: append(many[1:], netip.MustParseAddr("::ffff:10.77.1.1"), netip.MustParseAddr("10.77.1.2"))}
	given := fmt.Sprint(c.Addrs)
	before := c.Addrs
	require.NoError(t, c.setDefaults())
	require.Equal(t, many[1:], c.Addrs)
	require.Equal(t, given, fmt.Sprint(before))
	c = XDPConfig{Interface: "x", Addrs: []netip.Addr{netip.MustParseAddr("fe80::1%eth0")}}
	require.NoError(t, c.setDefaults())
	require.Equal(t, "[fe80::1]", fmt.Sprint(c.Addrs))
}

func TestXDPSizes(t *testing.T) {
	for _, c := range []struct {
		XDPConfig
		queues, rx, tx int
	}{
		{XDPConfig{}, 1, 4096, 2048},
		{XDPConfig{}, 8, 4096, 2048},
		{XDPConfig{}, 9, 4096, 2048}, // rounded up
		{XDPConfig{}, 16, 2048, 2048},
		{XDPConfig{}, 64, 512, 2048},
		{XDPConfig{}, 256, 512, 2048},
		{XDPConfig{RxFrames: 1, TxFrames: 1}, 1, 64, 64},
		{XDPConfig{RxFrames: 65, TxFrames: 65536}, 100, 128, 65536},
	} {
		c.Interface, c.Addrs = "x", []netip.Addr{addrA}
		require.NoError(t, c.setDefaults())
		require.Equal(t, xdpSizes{rx: c.rx, tx: c.tx}, c.sizes(0, c.queues), "%+v", c)
		require.Equal(t, xdpSizes{rx: c.rx}, c.sizes(1, c.queues), "%+v", c)
	}
}

func TestXDPOpenErrors(t *testing.T) {
	enterNetns(t)
	c := XDPConfig{Addrs: []netip.Addr{addrA}}
	for _, name := range []string{"sr-pktio-x", "a-name-longer-than-an-interface-has"} {
		c.Interface = name
		_, err := OpenXDP(c)
		require.ErrorIs(t, err, syscall.ENODEV)
		require.EqualError(t, err, `pktio: there is no interface "`+name+`" in this network namespace: "ip link" lists those there are: no such device`)
	}
	newVeth(t, 1500)
	setUp(t, vethA, false)
	c.Interface = vethA
	_, err := OpenXDP(c)
	require.ErrorIs(t, err, syscall.ENETDOWN)
	require.EqualError(t, err, `pktio: interface sr-pktio-a is down: "ip link set sr-pktio-a up" brings it up: network is down`)

	setUp(t, "lo", true)
	c.Interface = "lo"
	_, err = OpenXDP(c)
	require.ErrorIs(t, err, syscall.EAFNOSUPPORT)
	require.EqualError(t, err, `pktio: interface lo is no Ethernet device: take a network card, a veth or a tap, or use the kernel backend: address family not supported by protocol`)
}

func TestXDPLink(t *testing.T) {
	xdpModes(t, func(t *testing.T, mode XDPMode) {
		enterNetns(t)
		newVeth(t, 9000)
		c := XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, Mode: mode}
		p := openXDP(t, c)
		l, err := netlink.LinkByName(vethA)
		require.NoError(t, err)
		require.True(t, l.Attrs().Xdp.Attached)
		require.Equal(t, mode.String()+", copy, 1 queue", p.Mode(), "a veth does no zero-copy")
		want := Link{MTU: 9000, Addr: [6]byte(l.Attrs().HardwareAddr), MaxFrame: 9014, Checksum: p.queues[0].meta, Name: vethA}
		require.Equal(t, want, p.Link())
		require.NoError(t, p.Close())
		l, err = netlink.LinkByName(vethA)
		require.NoError(t, err)
		require.False(t, l.Attrs().Xdp.Attached)

		c.NoOffload = true
		p = openXDP(t, c)
		want.Checksum = false
		require.Equal(t, want, p.Link())
		_, err = p.Send([]Frame{tcpFrame(t, pattern(10), tcpOpts{partial: true})})
		require.ErrorIs(t, err, ErrBadFrame)
	})
}

// A device whose driver takes no program gets it in generic mode, unless native was asked for.
func TestXDPFallsBackToGeneric(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "sr-pktio-br"
	require.NoError(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	setUp(t, attrs.Name, true)
	c := XDPConfig{Interface: attrs.Name, Addrs: []netip.Addr{addrA}}
	p := openXDP(t, c)
	require.Equal(t, "generic, copy, 1 queue", p.Mode())
	require.False(t, p.rx.trusted, "a bridge may have a card among its ports")
	require.False(t, p.link.Checksum, "and others like us")
	require.NoError(t, p.Close())
	c.Mode = XDPNative
	_, err := OpenXDP(c)
	require.EqualError(t, err, "pktio: the driver of interface sr-pktio-br (bridge) takes no XDP program: set XDPConfig.Mode to XDPGeneric or XDPAuto: operation not supported")
	l, err := netlink.LinkByName(attrs.Name)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetMTU(l, 3000))
	_, err = OpenXDP(c)
	require.EqualError(t, err, "pktio: the driver of interface sr-pktio-br (bridge) takes no XDP program: set XDPConfig.Mode to XDPGeneric or XDPAuto, or lower the MTU, which is 3000: operation not supported")

	p = openXDP(t, XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}})
	require.Equal(t, "native, copy, 1 queue", p.Mode())
	require.True(t, p.rx.trusted)
}

// Somebody else's program stays where it is, and the error says so.
func TestXDPAnotherProgram(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	const text = `pktio: interface sr-pktio-a has an XDP program already: "bpftool net" shows it; end the program that it belongs to, take it off with "ip link set sr-pktio-a xdp off", or use the packet backend: `
	c := XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}}
	p := openXDP(t, c)
	for _, c.Mode = range []XDPMode{XDPAuto, XDPNative} {
		_, err := OpenXDP(c)
		require.ErrorIs(t, err, syscall.EBUSY)
		require.EqualError(t, err, text+"device or resource busy")
	}
	c.Mode = XDPGeneric
	_, err := OpenXDP(c)
	require.ErrorIs(t, err, syscall.EEXIST)
	require.EqualError(t, err, text+"file exists")
	l, err := netlink.LinkByName(vethA)
	require.NoError(t, err)
	require.True(t, l.Attrs().Xdp.Attached)
	require.NoError(t, p.Close())

	// One that no process holds, as "ip link set xdp" leaves it.
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Apache-2.0", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}})
	require.NoError(t, err)
	defer prog.Close()
	require.NoError(t, netlink.LinkSetXdpFdWithFlags(l, prog.FD(), unix.XDP_FLAGS_DRV_MODE))
	c.Mode = XDPAuto
	_, err = OpenXDP(c)
	require.EqualError(t, err, text+"device or resource busy")
	require.NoError(t, netlink.LinkSetXdpFdWithFlags(l, -1, unix.XDP_FLAGS_DRV_MODE))

	ours, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: l.Attrs().Index, Flags: link.XDPGenericMode})
	require.NoError(t, err)
	_, err = OpenXDP(c)
	require.EqualError(t, err, text+"file exists", "native beside generic there is not")
	require.NoError(t, ours.Close())
	openXDP(t, c)
}

// Somebody else's socket on a queue, without a program.
func TestXDPAnotherSocket(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	c := XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}}
	openXDP(t, c).Close()
	q, err := newXDPQueue(vethA, xdpSizes{64, 64})
	require.NoError(t, err)
	l, err := netlink.LinkByName(vethA)
	require.NoError(t, err)
	require.NoError(t, q.bind(l.Attrs().Index, 0, unix.XDP_COPY))
	_, err = OpenXDP(c)
	require.ErrorIs(t, err, syscall.EBUSY)
	require.EqualError(t, err, "pktio: queue 0 of interface sr-pktio-a has an AF_XDP socket already: end the program that it belongs to, or use the packet backend: device or resource busy")
	l, err = netlink.LinkByName(vethA)
	require.NoError(t, err)
	require.False(t, l.Attrs().Xdp.Attached, "nothing is left of the attempt")
	// One that is on its way out is waited for.
	time.AfterFunc(50*time.Millisecond, q.close)
	openXDP(t, c)
	q.unmap()
}

func drop(capabilities ...uint) func(*[2]unix.CapUserData) {
	return func(has *[2]unix.CapUserData) {
		for _, c := range capabilities {
			has[c/32].Effective &^= 1 << (c % 32)
		}
	}
}

func only(capabilities ...uint) func(*[2]unix.CapUserData) {
	return func(has *[2]unix.CapUserData) {
		old := *has
		has[0].Effective, has[1].Effective = 0, 0
		for _, c := range capabilities {
			has[c/32].Effective |= old[c/32].Effective & (1 << (c % 32))
		}
	}
}

func TestXDPNeedsRights(t *testing.T) {
	ns := enterNetns(t)
	newVeth(t, 1500)
	c := XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, RxFrames: 64, TxFrames: 64}
	openXDP(t, c).Close()
	const text = `: run as root, give the program the rights with "setcap cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock+ep PROGRAM", or use the packet backend: operation not permitted`
	for _, x := range []struct {
		change func(*[2]unix.CapUserData)
		lacks  string
	}{
		{drop(unix.CAP_NET_RAW), "CAP_NET_RAW"},
		{drop(unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN), "CAP_NET_ADMIN"},
		{drop(unix.CAP_BPF, unix.CAP_SYS_ADMIN), "CAP_BPF"},
		{only(unix.CAP_NET_RAW), "CAP_NET_ADMIN and CAP_BPF"},
		{only(), "CAP_NET_RAW and CAP_NET_ADMIN and CAP_BPF"},
		{only(unix.CAP_NET_RAW, unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_IPC_LOCK), ""},
	} {
		withRights(t, ns, x.change, func() {
			p, err := OpenXDP(c)
			switch {
			case x.lacks == "" && err != nil:
				t.Error("these rights are enough:", err)
			case x.lacks == "":
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			case err == nil || err.Error() != "pktio: AF_XDP on sr-pktio-a needs "+x.lacks+text || !os.IsPermission(unwrapAll(err)):
				t.Error(x.lacks, err)
			}
		})
	}
}

func unwrapAll(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		err = u.Unwrap()
	}
}

func TestXDPErrorsTellTheCause(t *testing.T) {
	// With all rights, as here, the cause lies elsewhere.
	if len(missingRights()) > 0 {
		t.Skip("LEFT OUT: needs the rights of root")
	}
	if inUserNamespace() {
		require.EqualError(t, xdpError("x", "loading the XDP program", unix.EPERM), "pktio: AF_XDP on x needs rights that count outside of a user namespace, and this process runs in one: run as the host's root, or use the packet backend: operation not permitted")
	} else {
		require.EqualError(t, xdpError("x", "loading the XDP program", unix.EPERM), `pktio: loading the XDP program on interface x is forbidden, though no capability is missing: a security module may do that (see the kernel log), or on Linux before 5.11 the limit of locked memory ("ulimit -l"); or use the packet backend: operation not permitted`)
	}
	require.EqualError(t, xdpError("x", "making a map", fmt.Errorf("library: %w (wisdom)", unix.ENOSPC)), "pktio: making a map on interface x: no space left on device")
}

// Locked memory is limited for those without CAP_IPC_LOCK.
func TestXDPLockedMemory(t *testing.T) {
	ns := enterNetns(t)
	newVeth(t, 1500)
	c := XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}}
	openXDP(t, c).Close()
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	low := limit
	low.Cur = 1 << 20
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &low))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit)) }()
	withRights(t, ns, drop(unix.CAP_IPC_LOCK), func() {
		_, err := OpenXDP(c)
		if err == nil || err.Error() != `pktio: AF_XDP on sr-pktio-a locks 24576 KiB of memory and the limit is 1024 KiB for all programs of a user: raise it with "ulimit -l" or LimitMEMLOCK=, give the program CAP_IPC_LOCK, or lower RxFrames or TxFrames: no buffer space available` {
			t.Error(err)
		}
		c.RxFrames, c.TxFrames = 64, 64
		p, err := OpenXDP(c)
		if err != nil {
			t.Error(err)
			return
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Nothing is left of a port, or of an attempt at one: no descriptor, no mapping, no program.
func TestXDPLeavesNothing(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	c := XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, RxFrames: 64, TxFrames: 64}
	openXDP(t, c).Close() // what is made once is made
	count := func() (n int) {
		entries, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		return len(entries) + strings.Count(string(maps), "socket:[")
	}
	before := count()
	held := openXDP(t, c)
	require.Greater(t, count(), before)
	n, size, octets := held.Buffers()
	require.Equal(t, []int{128, 4096, 128 * 4096}, []int{n, size, octets})
	with := count()
	_, err := OpenXDP(c)
	require.Error(t, err)
	require.Equal(t, with, count())
	require.NoError(t, held.Close())
	require.Equal(t, before, count())
	for _, bad := range []XDPConfig{{Interface: "lo", Addrs: c.Addrs}, {Interface: "sr-none", Addrs: c.Addrs}} {
		_, err := OpenXDP(bad)
		require.Error(t, err)
	}
	require.Equal(t, before, count())
}

package pktio

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// twoNamespaces makes a veth pair between the test's namespace and another, with an address for the kernel on each
// end. in runs a function in the other one.
func twoNamespaces(t *testing.T) (in func(func())) {
	t.Helper()
	home := enterNetns(t)
	newVeth(t, 1500)
	other, err := netns.New()
	require.NoError(t, err)
	require.NoError(t, netns.Set(home))
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	b, err := netlink.LinkByName(vethB)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetNsFd(b, int(other)))
	in = func(f func()) {
		require.NoError(t, netns.Set(other))
		defer func() { require.NoError(t, netns.Set(home)) }()
		f()
	}
	number := func(name, cidr string) {
		l, err := netlink.LinkByName(name)
		require.NoError(t, err)
		addr, err := netlink.ParseAddr(cidr)
		require.NoError(t, err)
		require.NoError(t, netlink.AddrAdd(l, addr))
		require.NoError(t, netlink.LinkSetUp(l))
	}
	number(vethA, "10.78.0.1/24")
	in(func() {
		number(vethB, "10.78.0.2/24")
		awaitCarrier(t, vethB)
	})
	awaitCarrier(t, vethA)
	return in
}

// ping sends n ICMP echo requests from this namespace to 10.78.0.2, one after the other, and returns how many were
// answered.
func ping(t *testing.T, n int) (answered int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}))
	buf := make([]byte, 1500)
	for seq := range n {
		m := append([]byte{8, 0, 0, 0, 0x77, 0x77, byte(seq >> 8), byte(seq)}, pattern(48)...)
		binary.BigEndian.PutUint16(m[2:], ^slowSum(m))
		require.NoError(t, unix.Sendto(fd, m, 0, &unix.SockaddrInet4{Addr: [4]byte{10, 78, 0, 2}}))
		for {
			k, err := unix.Read(fd, buf)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				break // not answered
			}
			if k >= 28 && buf[20] == 0 && int(binary.BigEndian.Uint16(buf[26:])) == seq {
				answered++
				break
			}
		}
	}
	return answered
}

// The kernel's own traffic over the interface goes on as if we were not there, at full rate in both directions.
func TestXDPLeavesTheKernelAlone(t *testing.T) {
	xdpModes(t, func(t *testing.T, mode XDPMode) {
		const total = 50 << 20
		in := twoNamespaces(t)
		a := openXDP(t, XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, Mode: mode})
		var b *XDP
		var l net.Listener
		in(func() {
			b = openXDP(t, XDPConfig{Interface: vethB, Addrs: []netip.Addr{addrB}, Mode: mode})
			var err error
			l, err = net.Listen("tcp4", "10.78.0.2:0")
			require.NoError(t, err)
		})

		// Ours, as fast as it goes without loss. What is lost all the same is given up after a while.
		var stop atomic.Bool
		var received atomic.Int64
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop.Store(true)
		for _, dir := range [][2]end{{{a, addrA}, {b, addrB}}, {{b, addrB}, {a, addrA}}} {
			var there atomic.Int64
			wg.Go(func() {
				batch := make([]Frame, 16)
				for i := range batch {
					batch[i].Data = [][]byte{dir[0].frameTo(dir[1], 1000)}
				}
				sent, moved := int64(0), time.Now()
				for last := int64(0); !stop.Load(); {
					if n := there.Load(); n != last {
						last, moved = n, time.Now()
					}
					if sent-last > 64 && time.Since(moved) < 50*time.Millisecond {
						runtime.Gosched()
						continue
					}
					n, err := dir[0].Send(batch)
					if err != nil {
						t.Error(err)
						return
					}
					if sent-last > 64 {
						sent = last
					}
					sent += int64(n)
				}
			})
			wg.Go(func() {
				batch := make([]Frame, 64)
				for !stop.Load() {
					n, err := dir[1].Recv(batch, 10*time.Millisecond)
					if err != nil {
						t.Error(err)
						return
					}
					for i := range batch[:n] {
						if !isIPFrame(&batch[i]) {
							t.Errorf("the kernel's frame: %x", octets(&batch[i]))
						}
					}
					there.Add(int64(n))
					received.Add(int64(n))
				}
			})
		}
		// The kernel's.
		defer l.Close()
		wg.Go(func() {
			c, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if n, err := io.Copy(c, io.LimitReader(c, total)); n != total {
				t.Error("the kernel's echo", n, err)
			}
		})
		c, err := net.DialTimeout("tcp4", l.Addr().String(), 20*time.Second)
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(4*time.Minute)))
		block := pattern(1 << 20)
		wg.Go(func() {
			for range total / len(block) {
				if _, err := c.Write(block); err != nil {
					t.Error(err)
					return
				}
			}
		})
		got := make([]byte, len(block))
		for range total / len(block) {
			_, err := io.ReadFull(c, got)
			require.NoError(t, err)
			require.Equal(t, block, got)
		}
		const pings = 20
		require.Equal(t, pings, ping(t, pings))
		before := received.Load()
		for received.Load() < before+1000 {
			time.Sleep(time.Millisecond)
		}
	})
}

const (
	childEnv    = "SOFTRDMA_TEST_XDP_CHILD"
	childPacket = "packet" // for childEnv, beside the modes of XDP
)

// A child process that opens a port, says so, and stays until it is killed.
func init() {
	mode, ok := os.LookupEnv(childEnv)
	if !ok {
		return
	}
	var p Port
	var err error
	if mode == childPacket {
		p, err = OpenPacket(PacketConfig{Interface: vethA, Addrs: []netip.Addr{addrA}})
	} else {
		c := XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, RxFrames: 64}
		if mode == XDPGeneric.String() {
			c.Mode = XDPGeneric
		}
		p, err = OpenXDP(c)
	}
	if err != nil {
		_, _ = io.WriteString(os.Stdout, err.Error())
		os.Exit(1)
	}
	_, _ = io.WriteString(os.Stdout, "open\n")
	_, err = p.Recv(make([]Frame, 1), -1)
	_, _ = io.WriteString(os.Stdout, err.Error())
	os.Exit(2)
}

// A process that is killed leaves nothing on the interface.
func TestXDPKilled(t *testing.T) {
	xdpModes(t, func(t *testing.T, mode XDPMode) {
		enterNetns(t)
		newVeth(t, 1500)
		openXDP(t, XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, Mode: mode}).Close()
		killChild(t, mode.String(), func() bool {
			l, err := netlink.LinkByName(vethA)
			require.NoError(t, err)
			return l.Attrs().Xdp.Attached
		})
		// And the next one finds the place free.
		a := openXDP(t, XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, Mode: mode})
		b := openXDP(t, XDPConfig{Interface: vethB, Addrs: []netip.Addr{addrB}, Mode: mode})
		await(t, end{b, addrB}, end{a, addrA})
	})
}

// killChild has a child process open a port, kills it and waits until what it attached to the interface is gone.
func killChild(t *testing.T, mode string, attached func() bool) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	child := exec.Command(exe)
	child.Env = append(os.Environ(), childEnv+"="+mode)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start()) // in this thread's namespace
	said := make([]byte, 500)
	n, _ := out.Read(said)
	there := attached()
	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	require.Equal(t, "open\n", string(said[:n]))
	require.True(t, there)
	for until := time.Now().Add(20 * time.Second); attached(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(until), "the program is still there")
	}
}

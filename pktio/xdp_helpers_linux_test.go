package pktio

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The addresses of the ports on the two ends of a veth pair. The kernel has neither.
var addrA, addrB = netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("10.77.0.2")

// testProto is an IP protocol for experiments (RFC 3692).
const testProto = 253

// ipFrame makes an IPv4 frame of n octets with a counting payload, which every kind of port lets pass to its address.
func ipFrame(dst, src [6]byte, to netip.Addr, n int) []byte {
	b := rawFrame(dst, src, n)
	binary.BigEndian.PutUint16(b[12:], 0x0800)
	ip := b[EthernetHeader:]
	clear(ip[:20])
	ip[0], ip[8], ip[9] = 0x45, 64, testProto
	binary.BigEndian.PutUint16(ip[2:], uint16(n-EthernetHeader))
	copy(ip[12:], []byte{10, 77, 0, 99})
	copy(ip[16:], to.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], ^slowSum(ip[:20]))
	return b
}

// isIPFrame tells whether a frame is one of ipFrame's.
func isIPFrame(f *Frame) bool {
	d := f.Data[0]
	return len(d) >= 34 && d[12] == 8 && d[13] == 0 && d[23] == testProto
}

// recvIP receives the next frame of ipFrame and returns a copy of it.
func recvIP(t testing.TB, p Port, wait time.Duration) []byte {
	t.Helper()
	batch := make([]Frame, 1)
	for until := time.Now().Add(wait); time.Now().Before(until); {
		n, err := p.Recv(batch, time.Until(until))
		require.NoError(t, err)
		if n == 1 && isIPFrame(&batch[0]) {
			return octets(&batch[0])
		}
	}
	require.Fail(t, "no frame came")
	return nil
}

// leaveOut ends a test that err, from OpenXDP, says cannot run on this host.
func leaveOut(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EAFNOSUPPORT) || err != nil && strings.Contains(err.Error(), "from Linux 6.6 on") {
		t.Skip("LEFT OUT:", err)
	}
}

func openXDP(t testing.TB, c XDPConfig) *XDP {
	t.Helper()
	p, err := OpenXDP(c)
	leaveOut(t, err)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.Close())
		_, err := p.Recv(nil, 0)
		require.ErrorIs(t, err, ErrClosed)
		st := p.Stats()
		require.Zero(t, st.RxInvalid+st.TxInvalid, "the kernel refuses nothing")
	})
	return p
}

// xdpPair opens a port on both ends of a new veth pair.
func xdpPair(t testing.TB, mtu int, mode XDPMode) (a, b *XDP) {
	t.Helper()
	enterNetns(t)
	newVeth(t, mtu)
	return openXDP(t, XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, Mode: mode}),
		openXDP(t, XDPConfig{Interface: vethB, Addrs: []netip.Addr{addrB}, Mode: mode})
}

// xdpModes runs a test in both modes.
func xdpModes(t *testing.T, f func(t *testing.T, mode XDPMode)) {
	for _, mode := range []XDPMode{XDPNative, XDPGeneric} {
		t.Run(mode.String(), func(t *testing.T) { f(t, mode) })
	}
}

package pktio

import (
	"encoding/binary"
	"math"
	"net/netip"

	"golang.org/x/sys/unix"
)

// maxFilterAddrs is how many IP addresses a filter tells apart: each takes up to nine instructions, and a jump passes 255.
const maxFilterAddrs = 16

// filter is a program of the kernel's classic packet filter. It runs for each frame that comes to the interface, also for
// those of the kernel's own connections: what it turns away is not copied.
type filter []unix.SockFilter

const (
	loadByte = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
	loadHalf = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
	loadWord = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
)

// newFilter accepts frames to groups (broadcast is one), and of those to mac all but IP packets to other addresses than
// addrs. Without addrs, or with more than maxFilterAddrs, it does not look at them.
func newFilter(mac [6]byte, addrs []netip.Addr) (f filter) {
	f.load(loadByte, 0)
	f.add(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, 1, 0, 1) // the group bit
	f.end(true)
	f.load(loadWord, 0)
	f.equal(binary.BigEndian.Uint32(mac[:]), 1)
	f.end(false)
	f.load(loadHalf, 4)
	f.equal(uint32(binary.BigEndian.Uint16(mac[4:])), 1)
	f.end(false)
	if n := len(addrs); n > 0 && n <= maxFilterAddrs {
		f.packets(0x0800, ipv4Dst, addrs, netip.Addr.Is4)
		f.packets(0x86dd, ipv6Dst, addrs, netip.Addr.Is6)
	}
	f.end(true)
	return f
}

// acceptAll accepts every frame.
var acceptAll = filter{{Code: unix.BPF_RET | unix.BPF_K, K: math.MaxUint32}}

const loadLen = unix.BPF_LD | unix.BPF_W | unix.BPF_LEN

// upTo accepts what f does of frames of up to n octets.
func (f filter) upTo(n int) (g filter) {
	g.load(loadLen, 0)
	g.add(unix.BPF_JMP|unix.BPF_JGT|unix.BPF_K, uint32(n), 0, 1)
	g.end(false)
	return append(g, f...)
}

// beyond accepts what f does of frames of more than n octets.
func (f filter) beyond(n int) (g filter) {
	g.load(loadLen, 0)
	g.add(unix.BPF_JMP|unix.BPF_JGT|unix.BPF_K, uint32(n), 1, 0)
	g.end(false)
	return append(g, f...)
}

// Where a frame has the destination of its IP packet.
const (
	ipv4Dst = EthernetHeader + 16
	ipv6Dst = EthernetHeader + 24
)

// packets accepts packets of protocol proto that have, from octet at on, one of those addresses that ofKind says are its,
// and turns others of the protocol away.
func (f *filter) packets(proto, at uint32, addrs []netip.Addr, ofKind func(netip.Addr) bool) {
	var p filter
	for _, a := range addrs {
		if !ofKind(a) {
			continue
		}
		b := a.AsSlice()
		for rest := len(b); rest > 0; rest -= 4 {
			i := len(b) - rest
			p.load(loadWord, at+uint32(i))
			// What follows in this address: two instructions a word, and the end.
			p.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, binary.BigEndian.Uint32(b[i:]), 0, uint8(rest/4*2-1))
		}
		p.end(true)
	}
	p.end(false)
	f.load(loadHalf, 12)
	f.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, proto, 0, uint8(len(p)))
	*f = append(*f, p...)
}

func (f *filter) add(code uint16, k uint32, jt, jf uint8) {
	*f = append(*f, unix.SockFilter{Code: code, Jt: jt, Jf: jf, K: k})
}

func (f *filter) load(code uint16, at uint32) { f.add(code, at, 0, 0) }

// equal passes n instructions if what was loaded is k.
func (f *filter) equal(k uint32, n uint8) { f.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, k, n, 0) }

// end accepts or turns away.
func (f *filter) end(accept bool) {
	k := uint32(0)
	if accept {
		k = math.MaxUint32
	}
	f.add(unix.BPF_RET|unix.BPF_K, k, 0, 0)
}

// attach makes f that of a socket.
func (f filter) attach(fd int) error {
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]})
}

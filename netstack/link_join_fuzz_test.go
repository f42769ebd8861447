package netstack

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/pktio"
)

// FuzzJoin lets a burst of segments of some connections arrive, at once and one by one. TCP learns the same: the same
// octets in the same order, each with the same headers, and what has no octets.
func FuzzJoin(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x00"), false)
	for kind := range byte(joinKinds) {
		f.Add([]byte{0, 40, kind << 3, 40, 0, 40, 0, 40, 0, 40, 1, 40, kind<<3 | 1, 40, 2, 40, 1, 40, 1, 0, 1, 40}, kind%2 == 0)
	}
	many := make([]byte, 0, 2*rxBatch)
	for i := range byte(rxBatch) {
		many = append(many, i%3, 255)
	}
	f.Add(many, false)
	f.Fuzz(func(t *testing.T, script []byte, six bool) {
		fam := inet4
		if six {
			fam = inet6
		}
		var frames []pktio.Frame
		var at [4]int
		for len(script) >= 2 && len(frames) < rxBatch {
			frames = append(frames, scripted(fam, script[0], int(script[1])*5, &at))
			script = script[2:]
		}
		l, u := joinLink(1500)
		want := make(map[string][]string)
		for i := range frames {
			u.burst(l, frames[i])
			for k, v := range u.learned(fam) {
				want[k] = append(want[k], v...)
			}
		}
		u.burst(l, frames...)
		got := u.learned(fam)
		for k := range want {
			require.Len(t, got[k], len(want[k]), k)
			for i := range want[k] {
				require.Equal(t, want[k][i], got[k][i], "%d of %s", i, k)
			}
		}
		require.Len(t, got, len(want))
	})
}

const joinKinds = 20

// scripted makes the next segment of a connection, or something like it.
func scripted(fam family, what byte, n int, at *[4]int) pktio.Frame {
	port := int(what & 3)
	flags := header.TCPFlags(header.TCPFlagAck)
	kind := int(what>>3) % joinKinds
	switch kind {
	case 1, 2, 3, 4, 5:
		flags |= []header.TCPFlags{header.TCPFlagPsh, header.TCPFlagFin, header.TCPFlagSyn, header.TCPFlagRst, header.TCPFlagUrg}[kind-1]
	case 6: // again
		at[port] = max(at[port]-n, 0)
	case 7: // overlapping
		at[port] = max(at[port]-n/2, 0)
	case 8: // a gap
		at[port]++
	}
	b := joinFrame(fam, 1+port, at[port], n, flags)
	at[port] += n
	tcp, ip := tcpOf(b), b[ethernetHeader:]
	o := pktio.Offload{CsumValid: what&4 != 0}
	switch kind {
	case 9:
		tcp[15]++ // window
	case 10:
		tcp[11]++ // acknowledgement
	case 11:
		tcp[27]++ // time
	case 12:
		ip[1] ^= 0x30 // class of service
	case 13:
		ip[7] ^= 1 // hop limit, or a fragment
	case 14:
		ip[8] ^= 1 // hops, or an address
	case 15:
		ip[6] ^= 0x40 // may not be fragmented, or a protocol
	case 16:
		tcp[12] -= 3 << 4 // no options
	case 17:
		tcp[13] |= 0x40 // ECE
	}
	resum(b)
	switch kind {
	case 18:
		b[len(b)-1] ^= 1
		o.CsumValid = false
	case 19:
		b = append(b, 0, 0, 0) // padding
	}
	cut := ethernetHeader + int(what)%len(ip)
	return pktio.Frame{Data: [][]byte{b[:cut], b[cut:]}, Offload: o}
}

// learned is what TCP learns from the packets, by connection: a line for each octet and for each segment without any. What
// is no segment, or a damaged one, stands for itself.
func (u *upper) learned(fam family) map[string][]string {
	all := make(map[string][]string)
	for i, b := range u.got {
		heads := ethernetHeader + fam.headers()
		ip := append([]byte(nil), b[ethernetHeader:heads-20]...)
		tcp := segmentOf(b)
		fragment := fam == inet4 && binary.BigEndian.Uint16(ip[6:])&0x3fff != 0
		if tcp == nil || fragment || int(tcp.DataOffset()) > len(tcp) || !u.good[i] && !sumIsGood(b) {
			all["others"] = append(all["others"], fmt.Sprintf("%x", b))
			continue
		}
		if fam == inet4 {
			clear(ip[2:6])
			clear(ip[10:12])
		} else {
			clear(ip[4:6])
		}
		payload := tcp.Payload()
		head := append([]byte(nil), tcp[:tcp.DataOffset()]...)
		addrs := 2 * len(fam.a.AsSlice())
		flow := fmt.Sprintf("%x %x", ip[len(ip)-addrs:], head[:4])
		psh := head[13]&byte(header.TCPFlagPsh) != 0
		head[13] &^= byte(header.TCPFlagPsh)
		seq := tcp.SequenceNumber()
		clear(head[4:8])
		clear(head[16:18])
		if len(payload) == 0 {
			all[flow] = append(all[flow], fmt.Sprintf("%d nothing %v %x %x", seq, psh, ip, head))
		}
		for i, c := range payload {
			all[flow] = append(all[flow], fmt.Sprintf("%d %d %v %x %x", seq+uint32(i), c, psh && i == len(payload)-1, ip, head))
		}
	}
	return all
}

package pktio

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// packetTo is a frame with an IP packet to a, as long as tag says for the receiver to know it.
func packetTo(mac [6]byte, a netip.Addr, tag int) []byte {
	b := rawFrame(mac, [6]byte{2, 0, 0, 0, 0, 9}, 60+tag)
	if a.Is4() {
		binary.BigEndian.PutUint16(b[12:], 0x0800)
		b[23] = 6 // TCP
		copy(b[ipv4Dst:], a.AsSlice())
	} else {
		binary.BigEndian.PutUint16(b[12:], 0x86dd)
		b[20] = 6
		copy(b[ipv6Dst:], a.AsSlice())
	}
	return b
}

func TestPacketFilterByAddress(t *testing.T) {
	ours := []netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("fe80::7:2")}
	others := []netip.Addr{netip.MustParseAddr("10.9.0.3"), netip.MustParseAddr("10.8.0.1"), netip.MustParseAddr("fd00::2"),
		netip.MustParseAddr("fd00:1::1"), netip.MustParseAddr("fd00:0:1::1"), netip.MustParseAddr("fd00::1:0:0:1"), netip.MustParseAddr("fe80::7:1")}
	open := func(t *testing.T, addrs []netip.Addr) (a, b *Packet) {
		enterNetns(t)
		newVeth(t, 1500)
		return openPacket(t, PacketConfig{Interface: vethA}), openPacket(t, PacketConfig{Interface: vethB, Addrs: addrs})
	}
	arrive := func(t *testing.T, a, b *Packet, frames [][]byte) (lengths []int) {
		for _, f := range frames {
			_, err := a.Send(one(f))
			require.NoError(t, err)
		}
		// What is for a group comes last, and always.
		_, err := a.Send(one(rawFrame([6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, a.link.Addr, 999)))
		require.NoError(t, err)
		for {
			_, got := recvOne(t, b, 5*time.Second)
			if len(got) == 999 {
				return lengths
			}
			lengths = append(lengths, len(got))
		}
	}
	for _, n := range []int{1, 2, 3, 4} {
		t.Run(fmt.Sprintf("%d addresses", n), func(t *testing.T) {
			a, b := open(t, ours[:n])
			var frames [][]byte
			for i, x := range append(append([]netip.Addr{}, ours...), others...) {
				frames = append(frames, packetTo(b.link.Addr, x, i))
			}
			stray := b.link.Addr
			stray[5] ^= 1
			frames = append(frames,
				packetTo(stray, ours[0], 100),
				packetTo([6]byte{1, 0, 0x5e, 0, 0, 1}, others[0], 101),
				packetTo([6]byte{0x33, 0x33, 0, 0, 0, 1}, others[2], 102),
				rawFrame(b.link.Addr, a.link.Addr, 60+103)) // of another protocol, as ARP is
			want := []int{}
			for i := range n {
				want = append(want, 60+i)
			}
			require.Equal(t, append(want, 161, 162, 163), arrive(t, a, b, frames))
		})
	}
	t.Run("too many to tell apart", func(t *testing.T) {
		many := make([]netip.Addr, 0, maxFilterAddrs+1)
		for i := range maxFilterAddrs + 1 {
			many = append(many, netip.AddrFrom4([4]byte{10, 7, 0, byte(i)}))
		}
		a, b := open(t, many)
		require.Equal(t, []int{60, 61}, arrive(t, a, b, [][]byte{packetTo(b.link.Addr, many[0], 0), packetTo(b.link.Addr, others[0], 1)}))
	})
	t.Run("as many as can be", func(t *testing.T) {
		most := make([]netip.Addr, maxFilterAddrs)
		for i := range most {
			most[i] = netip.AddrFrom16([16]byte{0xfd, 15: byte(i)})
		}
		a, b := open(t, most)
		last := most[maxFilterAddrs-1]
		require.Equal(t, []int{60, 61}, arrive(t, a, b, [][]byte{packetTo(b.link.Addr, most[0], 0), packetTo(b.link.Addr, last, 1), packetTo(b.link.Addr, last.Next(), 2)}))
	})
}

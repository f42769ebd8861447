package lab

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/softrdma/softrdma/pktio"
)

func openPort(t *testing.T, s Side, promiscuous bool) *pktio.Packet {
	t.Helper()
	var p *pktio.Packet
	require.NoError(t, inNamespace(s.Namespace, func() (err error) {
		p, err = pktio.OpenPacket(pktio.PacketConfig{Interface: s.Interface, Promiscuous: promiscuous})
		return err
	}))
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// segment is a TCP segment of IPv4 with its payload, to be cut up on the way.
func segment(from, to [6]byte, payload []byte, mss int) pktio.Frame {
	const ip, tcp, head = pktio.EthernetHeader, pktio.EthernetHeader + 20, pktio.EthernetHeader + 40
	b := make([]byte, head, head+len(payload))
	copy(b, to[:])
	copy(b[6:], from[:])
	binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IP)
	b[ip], b[ip+8], b[ip+9] = 0x45, 64, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(b[ip+2:], uint16(40+len(payload)))
	copy(b[ip+12:], []byte{10, 77, 0, 1, 10, 77, 0, 2})
	sum := func(b []byte) (s uint32) {
		for i := 0; i < len(b); i += 2 {
			s += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		for s > 0xffff {
			s = s>>16 + s&0xffff
		}
		return s
	}
	binary.BigEndian.PutUint16(b[ip+10:], ^uint16(sum(b[ip:tcp])))
	binary.BigEndian.PutUint16(b[tcp:], 7174)
	binary.BigEndian.PutUint16(b[tcp+2:], 7175)
	b[tcp+12], b[tcp+13] = 5<<4, 0x10 // length, ACK
	pseudo := append(bytes.Clone(b[ip+12:ip+20]), 0, unix.IPPROTO_TCP, 0, 0)
	binary.BigEndian.PutUint16(pseudo[10:], uint16(20+len(payload)))
	binary.BigEndian.PutUint16(b[tcp+16:], uint16(sum(pseudo)))
	f := pktio.Frame{Data: [][]byte{append(b, payload...)}}
	f.NeedsCsum, f.CsumStart, f.CsumOffset = true, tcp, 16
	if len(payload) > mss {
		f.GSO, f.GSOSize, f.HdrLen = pktio.GSOTCPv4, uint16(mss), head
	}
	return f
}

// A super-frame passes whole, or is cut into what a wire would carry.
func TestSuperFramesThroughTheLab(t *testing.T) {
	const mtu = 1500
	for name, p := range map[string]Plan{
		"plain":               {},
		"plain, wire frames":  {WireFrames: true},
		"bridge":              {Impair: &Impairment{}},
		"bridge, wire frames": {WireFrames: true, Impair: &Impairment{}},
		"process":             {Impair: &Impairment{Process: true}},
		"delayed":             {Impair: &Impairment{Delay: time.Millisecond}},
		"delayed wire frames": {WireFrames: true, Impair: &Impairment{Delay: time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, "super", nil)
			require.NoError(t, h.Up(t.Context(), p))
			newEcho(t, h, false).times(t, 1)
			a, b := openPort(t, h.Lab.A, false), openPort(t, h.Lab.B, false)
			payload := make([]byte, 60_000)
			for i := range payload {
				payload[i] = byte(rand.Uint32())
			}
			frame := segment(a.Link().Addr, b.Link().Addr, payload, mtu-40)
			n, err := a.Send([]pktio.Frame{frame})
			require.NoError(t, err)
			require.Equal(t, 1, n)

			var got []byte
			frames := 0
			batch := make([]pktio.Frame, 8)
			for len(got) < len(payload) {
				n, err := b.Recv(batch, 20*time.Second)
				require.NoError(t, err)
				require.NotZero(t, n, "%d of %d octets came", len(got), len(payload))
				for i := range batch[:n] {
					f := &batch[i]
					octets := make([]byte, f.Len())
					f.CopyTo(octets)
					if f.Len() < 54 || !bytes.Equal(octets[26:34], []byte{10, 77, 0, 1, 10, 77, 0, 2}) {
						continue // of the kernels
					}
					if p.WireFrames {
						require.LessOrEqual(t, f.Len(), mtu+pktio.EthernetHeader)
						require.Equal(t, pktio.GSONone, f.GSO)
					} else {
						require.Equal(t, pktio.GSOTCPv4, f.GSO)
						require.EqualValues(t, mtu-40, f.GSOSize)
					}
					got = append(got, octets[54:]...)
					frames++
				}
			}
			require.Equal(t, payload, got)
			if p.WireFrames {
				require.Equal(t, (len(payload)+mtu-41)/(mtu-40), frames)
			} else {
				require.Equal(t, 1, frames)
			}
			_, err = h.Down(t.Context())
			require.NoError(t, err)
		})
	}
}

// The wire is no host: whatever comes in, it says nothing of its own.
func TestWireIsSilent(t *testing.T) {
	for _, name := range []string{"bridge", "process"} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, "silent", nil)
			p := plans[name]
			p.Impair = &Impairment{Process: p.Impair.process()}
			require.NoError(t, h.Up(t.Context(), p))
			newEcho(t, h, false).times(t, 1)
			a, b := openPort(t, h.Lab.A, true), openPort(t, h.Lab.B, false).Link().Addr
			require.NoError(t, h.run(t.Context(), Step{Command: Command{"ip", "-n", h.Lab.B.Namespace, "link", "set", h.Lab.B.Interface, "down"}}))

			everybody := [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
			from := a.Link().Addr
			frame := func(to [6]byte, kind uint16, payload []byte) pktio.Frame {
				b := append(append(to[:6:6], from[:]...), byte(kind>>8), byte(kind))
				return pktio.Frame{Data: [][]byte{append(b, payload...)}}
			}
			who := func(ip byte) []byte { // ARP: who has 10.78.0.x?
				b := []byte{0, 1, 8, 0, 6, 4, 0, 1}
				b = append(b, from[:]...)
				b = append(b, 10, 78, 0, 1, 0, 0, 0, 0, 0, 0, 10, 78, 0, ip)
				return append(b, make([]byte, 18)...)
			}
			// ICMP echo request to 255.255.255.255, the sum over which is right.
			ping := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 10, 78, 0, 1, 255, 255, 255, 255, 8, 0, 0xf7, 0xff, 0, 0, 0, 0}
			sum := uint32(0)
			for i := 0; i < 20; i += 2 {
				sum += uint32(binary.BigEndian.Uint16(ping[i:]))
			}
			sum = sum>>16 + sum&0xffff
			binary.BigEndian.PutUint16(ping[10:], ^uint16(sum))
			// ICMPv6 echo request to all nodes: the kernel of a wrong sum is silent, so
			// the sum is right.
			ping6 := append([]byte{0x60, 0, 0, 0, 0, 8, 58, 255}, make([]byte, 40)...)
			copy(ping6[8:], h.Lab.A.Kernel[1].Addr().AsSlice())
			copy(ping6[24:], []byte{0xff, 2, 15: 1})
			ping6[40] = 128
			sum = 8 + 58
			for i := 8; i < 48; i += 2 {
				sum += uint32(binary.BigEndian.Uint16(ping6[i:]))
			}
			sum = sum>>16 + sum&0xffff
			sum = sum>>16 + sum&0xffff
			binary.BigEndian.PutUint16(ping6[42:], ^uint16(sum))

			sent := []pktio.Frame{
				frame(everybody, unix.ETH_P_ARP, who(2)), frame(everybody, unix.ETH_P_ARP, who(77)),
				frame(everybody, unix.ETH_P_IP, ping), frame([6]byte{0x33, 0x33, 5: 1}, unix.ETH_P_IPV6, ping6),
			}
			count := func() uint64 {
				d, err := h.losses()
				if name == "process" {
					d, err = askWire(t.Context(), h.Lab.wireConfig(&p).Socket)
				}
				require.NoError(t, err)
				return d[0].Frames
			}
			before := count()
			n, err := a.Send(sent)
			require.NoError(t, err)
			require.Len(t, sent, n)
			arrived := func() bool { return count() >= before+uint64(len(sent)) }
			require.Eventually(t, arrived, 10*time.Second, 10*time.Millisecond)
			batch := make([]pktio.Frame, 8)
			for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
				n, err = a.Recv(batch, 100*time.Millisecond)
				require.NoError(t, err)
				for i := range batch[:n] {
					require.Equal(t, b[:], batch[i].Data[0][6:12], "the wire spoke: %x", batch[i].Data)
				}
			}
			_, err = h.Down(t.Context())
			require.NoError(t, err)
		})
	}
}

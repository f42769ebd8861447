package pktio

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// tcpTo makes a TCP segment of tcpFrame for the port at address 10.77.0.2.
func tcpTo(t testing.TB, dst, src Port, payload int, o tcpOpts) Frame {
	o.dst, o.src = dst.Link().Addr, src.Link().Addr
	return tcpFrame(t, pattern(payload), o)
}

// isTCP tells whether a frame is one of tcpFrame's.
func isTCP(f *Frame) bool {
	d := f.Data[0]
	return len(d) > 54 && (d[12] == 0x08 && d[23] == 6 || d[12] == 0x86 && d[20] == 6)
}

// recvTCP receives the next frame of tcpFrame.
func recvTCP(t testing.TB, p Port) Frame {
	t.Helper()
	batch := make([]Frame, 1)
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); {
		n, err := p.Recv(batch, time.Until(until))
		require.NoError(t, err)
		if n == 1 && isTCP(&batch[0]) {
			return Frame{Data: [][]byte{octets(&batch[0])}, Offload: batch[0].Offload}
		}
	}
	require.Fail(t, "no segment came")
	return Frame{}
}

var tcpAddrs = []netip.Addr{addrB, netip.MustParseAddr("fd77::2")} // where tcpFrame's segments go

// Checksums that are left to the link are right wherever the frame gets to.
func TestXDPChecksums(t *testing.T) {
	xdpModes(t, func(t *testing.T, mode XDPMode) {
		for _, mtu := range []int{1500, 9000} {
			enterNetns(t)
			newVeth(t, mtu)
			a := openXDP(t, XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, Mode: mode})
			b := openXDP(t, XDPConfig{Interface: vethB, Addrs: tcpAddrs, Mode: mode})
			if !a.link.Checksum {
				t.Skip("LEFT OUT: checksums of frames sent need Linux 6.11")
			}
			kernel := openPacket(t, PacketConfig{Interface: vethA})
			for _, v6 := range []bool{false, true} {
				for _, n := range []int{0, 1, 2, 1000, 1399, mtu - 80} {
					o := tcpOpts{v6: v6, partial: true}
					f := tcpTo(t, b, a, n, o)
					k, err := a.Send([]Frame{f})
					require.NoError(t, err)
					require.Equal(t, 1, k)
					got := recvTCP(t, b)
					require.Equal(t, f.Data[0], got.Data[0], "over a veth nobody finishes it")
					require.Equal(t, f.Offload, got.Offload)
					require.True(t, tcpOK(&got))

					// Whole checksums are nothing special, right or wrong.
					o.partial = false
					f = tcpTo(t, b, a, n, o)
					for range 2 {
						_, err = a.Send([]Frame{f})
						require.NoError(t, err)
						got = recvTCP(t, b)
						require.Equal(t, f.Data[0], got.Data[0])
						require.Zero(t, got.Offload)
						f.Data[0][len(f.Data[0])-3] ^= 4
					}
					require.False(t, tcpOK(&got))

					// The kernel sees it as one of its own.
					f = tcpTo(t, kernel, b, n, tcpOpts{v6: v6, partial: true})
					_, err = b.Send([]Frame{f})
					require.NoError(t, err)
					got = recvTCP(t, kernel)
					require.True(t, tcpOK(&got))
				}
			}
			// What the kernel would refuse does not get there, and does no harm.
			for _, o := range []Offload{
				{NeedsCsum: true, CsumStart: 1400, CsumOffset: 16},
				{NeedsCsum: true, CsumStart: 65535, CsumOffset: 65535},
				{NeedsCsum: true, CsumStart: 34, CsumOffset: 1300},
				{NeedsCsum: true, GSO: GSOTCPv4, GSOSize: 100},
			} {
				f := tcpTo(t, b, a, 1000, tcpOpts{})
				f.Offload = o
				n, err := a.Send([]Frame{f})
				require.ErrorIs(t, err, ErrBadFrame)
				require.Zero(t, n)
			}
			require.EqualValues(t, 4, a.Stats().TxErrors)
			_, err := a.Send([]Frame{tcpTo(t, b, a, 10, tcpOpts{partial: true})})
			require.NoError(t, err)
			recvTCP(t, b)
		}
	})
}

// A virtual machine that wants whole checksums gets them, and its own unfinished ones are understood.
func TestXDPOnTap(t *testing.T) {
	xdpModes(t, func(t *testing.T, mode XDPMode) {
		enterNetns(t)
		vm := newTap(t)
		p := openXDP(t, XDPConfig{Interface: tapName, Addrs: tcpAddrs, Mode: mode})
		require.True(t, p.rx.trusted)
		vmAddr := [6]byte{2, 0, 0, 0, 0, 1}
		exchange := func(o tcpOpts, want Offload) {
			o.dst, o.src = vmAddr, p.link.Addr
			f := tcpFrame(t, pattern(1000), o)
			_, err := p.Send([]Frame{f})
			require.NoError(t, err)
			d, off := vm.read(t)
			got := Frame{Data: [][]byte{d}, Offload: off}
			require.True(t, tcpOK(&got))
			require.Equal(t, want.NeedsCsum, off.NeedsCsum)

			o.dst, o.src = p.link.Addr, vmAddr
			f = tcpFrame(t, pattern(1000), o)
			vm.write(t, f.Data[0], f.Offload)
			got = recvTCP(t, p)
			require.Equal(t, f.Data[0], got.Data[0])
			require.True(t, tcpOK(&got))
		}
		for _, v6 := range []bool{false, true} {
			exchange(tcpOpts{v6: v6}, Offload{})
			if p.link.Checksum {
				exchange(tcpOpts{v6: v6, partial: true}, Offload{NeedsCsum: true})
			}
		}
		if p.link.Checksum {
			// From now on the machine cannot finish checksums: the kernel does.
			require.NoError(t, unix.IoctlSetInt(vm.fd, unix.TUNSETOFFLOAD, 0))
			exchange(tcpOpts{partial: true}, Offload{})
			require.NoError(t, p.Close())
			p = openXDP(t, XDPConfig{Interface: tapName, Addrs: tcpAddrs, Mode: mode})
			require.False(t, p.link.Checksum, "nothing to be saved by leaving the checksum to a device that does none")
		}
	})
}

// A kernel peer sends super-frames if nobody stops it; a program in native mode does.
func TestXDPReceivesSuperFrames(t *testing.T) {
	xdpModes(t, func(t *testing.T, mode XDPMode) {
		enterNetns(t)
		newVeth(t, 1500)
		if can, err := canPieces(vethA); mode == XDPGeneric && err == nil && !can {
			t.Skip("LEFT OUT: frames longer than a buffer need Linux 6.6")
		}
		p := openXDP(t, XDPConfig{Interface: vethA, Addrs: tcpAddrs, Mode: mode})
		peer := openPacket(t, PacketConfig{Interface: vethB})
		for _, v6 := range []bool{false, true} {
			for _, n := range []int{1449, 4000, 20000, 65000} {
				f := tcpTo(t, p, peer, n, tcpOpts{v6: v6, gso: 1400})
				_, err := peer.Send([]Frame{f})
				require.NoError(t, err)
				head := int(f.HdrLen)
				var payload []byte
				for len(payload) < n {
					got := recvTCP(t, p)
					require.True(t, tcpOK(&got))
					require.Equal(t, GSONone, got.GSO)
					payload = append(payload, got.Data[0][head:]...)
				}
				require.Equal(t, pattern(n), payload)
			}
		}
		require.Zero(t, p.Stats().RxTooLong)
		require.Zero(t, p.Stats().RxDropped)
	})
}

func TestUnfinished(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, n := range []int{0, 1, 2, 3, 100, 1448, 65000} {
			f := tcpFrame(t, pattern(n), tcpOpts{v6: v6, partial: true})
			b := f.Data[0]
			require.Equal(t, f.Offload, unfinished(b, len(b)), "v6 %v, %d octets", v6, n)
			require.Equal(t, f.Offload, unfinished(b[:min(len(b), 80)], len(b)), "in pieces")
			require.Equal(t, f.Offload, unfinished(append(b, 0, 0, 0), len(b)+3), "padded")
			require.Zero(t, unfinished(b, int(f.CsumStart)+20+n-1), "cut short")
			for i := EthernetHeader; i < int(f.CsumStart); i++ {
				if v6 == (i >= 22) && (v6 || i >= 26) { // an address
					c := append([]byte(nil), b...)
					c[i] ^= 0x10
					require.Zero(t, unfinished(c, len(c)), "octet %d", i)
				}
			}
			whole := tcpFrame(t, pattern(n), tcpOpts{v6: v6}).Data[0]
			require.Zero(t, unfinished(whole, len(whole)))
			for k := range min(len(b), 80) {
				_ = unfinished(b[:k], k) // does not fall over
			}
			// UDP keeps its checksum elsewhere.
			proto := &b[23]
			if v6 {
				proto = &b[20]
			}
			*proto = 17
			at := int(f.CsumStart) + udpCsumOffset
			sum := uint32(pseudoSum(b)) + 17 - 6
			binary.BigEndian.PutUint16(b[at:], uint16(sum+sum>>16))
			want := f.Offload
			want.CsumOffset = udpCsumOffset
			require.Equal(t, want, unfinished(b, len(b)))
			*proto = 1
			require.Zero(t, unfinished(b, len(b)))
		}
	}
	f := tcpFrame(t, pattern(100), tcpOpts{partial: true}).Data[0]
	f[20] |= 0x20 // more fragments
	require.Zero(t, unfinished(f, len(f)))
}

func FuzzUnfinished(f *testing.F) {
	for _, o := range []tcpOpts{{partial: true}, {v6: true, partial: true}} {
		b := tcpFrame(f, pattern(20), o).Data[0]
		f.Add(b, len(b))
	}
	f.Fuzz(func(t *testing.T, b []byte, more int) {
		o := unfinished(b, len(b)+more&0xffff)
		if !o.NeedsCsum {
			require.Zero(t, o)
			return
		}
		if int(o.CsumStart)+int(o.CsumOffset)+2 > len(b) {
			t.Fatalf("%+v in %d octets", o, len(b))
		}
		// What stands there is the sum over the pseudo header.
		var pseudo []byte
		if b[12] == 0x08 {
			length := binary.BigEndian.Uint16(b[16:]) - (o.CsumStart - EthernetHeader)
			pseudo = append(binary.BigEndian.AppendUint16(nil, length), 0, b[23])
			pseudo = append(pseudo, b[26:34]...)
		} else {
			pseudo = append([]byte{b[18], b[19], 0, b[20]}, b[22:54]...)
		}
		got := binary.BigEndian.Uint16(b[o.CsumStart+o.CsumOffset:])
		require.Equal(t, slowSum(pseudo)%0xffff, got%0xffff)
	})
}

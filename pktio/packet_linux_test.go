package pktio

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestPacketConfigErrors(t *testing.T) {
	for _, c := range []PacketConfig{
		{},
		{Interface: "x", RingFrames: 1}, {Interface: "x", RingFrames: -1}, {Interface: "x", RingFrames: 1 << 20}, {Interface: "x", RingFrames: 1 << 14},
		{Interface: "x", LongFrames: 1}, {Interface: "x", LongFrames: -1}, {Interface: "x", LongFrames: 1 << 13},
		{Interface: "x", MaxFrame: 13}, {Interface: "x", MaxFrame: 1 << 20}, {Interface: "x", MaxFrame: -1},
		{Interface: "x", SendBuffer: -1}, {Interface: "x", SendBuffer: math.MaxInt},
	} {
		_, err := OpenPacket(c)
		require.ErrorIs(t, err, syscall.EINVAL, "%+v", c)
	}
}

func TestPacketNeedsRight(t *testing.T) {
	check := func() {
		_, err := OpenPacket(PacketConfig{Interface: vethA})
		if !errors.Is(err, fs.ErrPermission) || err.Error() != `pktio: a packet socket on sr-pktio-a needs CAP_NET_RAW: run as root, give the program the right with "setcap cap_net_raw+ep PROGRAM", or use the kernel backend: operation not permitted` {
			t.Error(err)
		}
	}
	if os.Geteuid() != 0 {
		check()
		return
	}
	ns := enterNetns(t)
	newVeth(t, 1500)
	without(t, ns, unix.CAP_NET_RAW, check)
}

// CAP_NET_RAW is all that is needed.
func TestPacketNeedsNoFurtherRight(t *testing.T) {
	ns := enterNetns(t)
	newVeth(t, 1500)
	without(t, ns, unix.CAP_NET_ADMIN, func() {
		p, err := OpenPacket(PacketConfig{Interface: vethA})
		if err != nil {
			t.Error(err)
			return
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestPacketOpenErrors(t *testing.T) {
	enterNetns(t)
	for _, name := range []string{"sr-pktio-x", "a-name-longer-than-an-interface-has"} {
		_, err := OpenPacket(PacketConfig{Interface: name})
		require.ErrorIs(t, err, syscall.ENODEV)
		require.EqualError(t, err, `pktio: there is no interface "`+name+`" in this network namespace: "ip link" lists those there are: no such device`)
	}
	newVeth(t, 1500)
	setUp(t, vethA, false)
	_, err := OpenPacket(PacketConfig{Interface: vethA})
	require.ErrorIs(t, err, syscall.ENETDOWN)
	require.EqualError(t, err, `pktio: interface sr-pktio-a is down: "ip link set sr-pktio-a up" brings it up: network is down`)

	setUp(t, "lo", true)
	_, err = OpenPacket(PacketConfig{Interface: "lo"})
	require.ErrorIs(t, err, syscall.EAFNOSUPPORT)
	require.EqualError(t, err, `pktio: interface lo is no Ethernet device: take a network card, a veth or a tap, or use the kernel backend: address family not supported by protocol`)
}

func TestPacketLink(t *testing.T) {
	enterNetns(t)
	newVeth(t, 9000)
	p := openPacket(t, PacketConfig{Interface: vethA})
	l, err := netlink.LinkByName(vethA)
	require.NoError(t, err)
	want := Link{MTU: 9000, Addr: [6]byte(l.Attrs().HardwareAddr), MaxFrame: 65549, GSO: true, Checksum: true, Name: vethA}
	require.Equal(t, want, p.Link())
	want.GSO, want.Checksum, want.MaxFrame = false, false, 9014
	p = openPacket(t, PacketConfig{Interface: vethA, NoOffload: true})
	require.Equal(t, want, p.Link())
	_, err = p.Send([]Frame{tcpFrame(t, pattern(10), tcpOpts{partial: true})})
	require.ErrorIs(t, err, ErrBadFrame)
}

func TestPacketCarriesFrames(t *testing.T) {
	a, b := vethPair(t, 1500)
	short := rawFrame(b.link.Addr, a.link.Addr, 60)
	long := rawFrame(b.link.Addr, a.link.Addr, 1514)
	n, err := a.Send([]Frame{
		{Data: [][]byte{short[:14], nil, short[14:20], short[20:]}},
		{Data: [][]byte{long}},
	})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	_, got := recvOne(t, b, time.Second)
	require.Equal(t, short, got)
	_, got = recvOne(t, b, time.Second)
	require.Equal(t, long, got)

	group := rawFrame([6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, b.link.Addr, 60)
	_, err = b.Send(one(group))
	require.NoError(t, err)
	_, got = recvOne(t, a, time.Second)
	require.Equal(t, group, got)

	st := a.Stats()
	require.EqualValues(t, 2, st.TxFrames)
	require.EqualValues(t, 1574, st.TxOctets)
	require.GreaterOrEqual(t, st.RxFrames, uint64(1))
	require.Zero(t, st.TxErrors+st.TxNoRoom+st.RxRingFull)
	require.GreaterOrEqual(t, b.Stats().RxFrames, uint64(2))
	require.GreaterOrEqual(t, b.Stats().RxOctets, uint64(1574))
}

// What is for others does not even reach the ring: here the first five octets, the last and none match.
func TestPacketFilters(t *testing.T) {
	a, b := vethPair(t, 1500)
	for _, at := range []int{1, 3, 4, 5} {
		other := b.link.Addr
		other[at] ^= 1
		_, err := a.Send(one(rawFrame(other, a.link.Addr, 60+at)))
		require.NoError(t, err)
	}
	for i, dst := range [][6]byte{b.link.Addr, {1, 0, 0x5e, 0, 0, 1}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} {
		_, err := a.Send(one(rawFrame(dst, a.link.Addr, 100+i)))
		require.NoError(t, err)
	}
	for i := range 3 {
		_, got := recvOne(t, b, time.Second)
		require.Len(t, got, 100+i)
	}
	n, err := a.Recv(make([]Frame, 4), 0)
	require.NoError(t, err)
	require.Zero(t, n, "a port does not receive what it sends")
}

func TestPacketSuperFrames(t *testing.T) {
	a, b := vethPair(t, 1500)
	for _, v6 := range []bool{false, true} {
		for _, n := range []int{1, 1448, 1449, 20000, 65000} {
			o := tcpOpts{v6: v6, partial: true, dst: b.link.Addr, src: a.link.Addr}
			if n > 1400 {
				o.gso = 1400
			}
			f := tcpFrame(t, pattern(n), o)
			whole := f.Data[0]
			pieces := Frame{Data: [][]byte{whole[:54], whole[54 : len(whole)/2+28], whole[len(whole)/2+28:]}, Offload: f.Offload}
			k, err := a.Send([]Frame{pieces})
			require.NoError(t, err)
			require.Equal(t, 1, k)
			got, d := recvOne(t, b, time.Second)
			require.Equal(t, whole, d, "v6 %v length %d", v6, n)
			require.Equal(t, f.GSO, got.GSO)
			require.Equal(t, f.GSOSize, got.GSOSize)
			require.Equal(t, f.NeedsCsum, got.NeedsCsum)
			require.Equal(t, f.CsumStart, got.CsumStart)
			require.Equal(t, f.CsumOffset, got.CsumOffset)
		}
	}
	require.EqualValues(t, 8, a.Stats().TxSuper)
	require.EqualValues(t, 8, b.Stats().RxSuper)

	n, err := a.Send([]Frame{{Data: [][]byte{make([]byte, 1515)}}})
	require.ErrorIs(t, err, ErrTooLong)
	require.Zero(t, n)
	// The kernel looks closer than we do.
	bad := tcpFrame(t, pattern(100), tcpOpts{partial: true})
	bad.CsumStart = 150
	_, err = a.Send([]Frame{bad})
	require.ErrorIs(t, err, ErrBadFrame)
	require.EqualValues(t, 2, a.Stats().TxErrors)
}

func TestPacketOnTap(t *testing.T) {
	enterNetns(t)
	vm := newTap(t)
	p := openPacket(t, PacketConfig{Interface: tapName})
	vmAddr := [6]byte{2, 0, 0, 0, 0, 1}
	for _, v6 := range []bool{false, true} {
		for _, o := range []tcpOpts{{}, {partial: true}, {gso: 1400}} {
			n := 1000
			if o.gso > 0 {
				n = 65200
			}
			o.v6, o.dst, o.src = v6, vmAddr, p.link.Addr
			f := tcpFrame(t, pattern(n), o)
			_, err := p.Send([]Frame{f})
			require.NoError(t, err)
			d, off := vm.read(t)
			require.Equal(t, f.Data[0], d)
			require.Equal(t, f.GSO, off.GSO)
			require.Equal(t, f.NeedsCsum, off.NeedsCsum)

			o.dst, o.src = p.link.Addr, vmAddr
			f = tcpFrame(t, pattern(n), o)
			vm.write(t, f.Data[0], f.Offload)
			got, d := recvOne(t, p, time.Second)
			require.Equal(t, f.Data[0], d)
			require.Equal(t, f.Offload, got.Offload)
		}
	}
	require.EqualValues(t, 2, p.Stats().RxSuper)
	d := rawFrame(p.link.Addr, vmAddr, 60)
	vm.write(t, d, Offload{})
	_, got := recvOne(t, p, time.Second)
	require.Equal(t, d, got)
}

func TestPacketDropsTagged(t *testing.T) {
	a, b := vethPair(t, 1500)
	f := rawFrame(b.link.Addr, a.link.Addr, 64)
	tagged := append(append(append([]byte(nil), f[:12]...), 0x81, 0, 0, 5), f[12:]...)
	for _, d := range [][]byte{tagged, f} {
		_, err := a.Send(one(d))
		require.NoError(t, err)
	}
	_, got := recvOne(t, b, time.Second)
	require.Equal(t, f, got)
	require.EqualValues(t, 1, b.Stats().RxTagged)
}

func TestPacketDropsTooLong(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	a := openPacket(t, PacketConfig{Interface: vethA})
	b := openPacket(t, PacketConfig{Interface: vethB, MaxFrame: 2000, RingFrames: 4})
	o := tcpOpts{gso: 1400, dst: b.link.Addr, src: a.link.Addr}
	_, err := a.Send([]Frame{tcpFrame(t, pattern(10000), o)})
	require.NoError(t, err)
	short := rawFrame(b.link.Addr, a.link.Addr, 1514)
	_, err = a.Send(one(short))
	require.NoError(t, err)
	_, got := recvOne(t, b, time.Second)
	require.Equal(t, short, got)
	require.EqualValues(t, 1, b.Stats().RxTooLong)
}

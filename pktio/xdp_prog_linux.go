package pktio

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf/asm"
)

// The XDP program decides for each frame whether it is ours or the kernel's; it cannot be both. Ours are frames to the
// interface's Ethernet address or a group that carry
//
//   - IPv4 or IPv6 to one of our addresses, whatever lies behind the IP header: fragments and extension headers too;
//   - ARP about one of our addresses: asked for, announced, or answered to us. An answer to an address probe (RFC 5227)
//     has no target address, so it counts by its sender. What only comes from one of our addresses, as from a host
//     that has taken it too, but is for the kernel stays the kernel's;
//   - neighbour solicitations and advertisements to a group whose target is one of our addresses: how others find us,
//     and how duplicate addresses are found.
//
// All else passes to the kernel, frames with a VLAN tag among them, and so do our frames on a queue without socket. A
// tag that the card takes off before the program runs cannot be seen: "ethtool -K IF rxvlan off" leaves it on.

// What the program knows of frames, in octets from the start of one.
const (
	etherTypeAt = 12
	ipv4End     = EthernetHeader + 20
	ipv4DstAt   = EthernetHeader + 16
	arpEnd      = EthernetHeader + 28
	arpKindAt   = EthernetHeader // hardware type, protocol type, and the lengths of both kinds of address
	arpSenderAt = EthernetHeader + 14
	arpTargetAt = EthernetHeader + 24
	ipv6End     = EthernetHeader + 40
	ipv6NextAt  = EthernetHeader + 6
	ipv6DstAt   = EthernetHeader + 24
	ndTypeAt    = ipv6End
	ndTargetAt  = ipv6End + 8
	ndEnd       = ipv6End + 24

	xdpPass = 2 // XDP_PASS
)

// Registers of the program. Calls spoil r1 to r5.
const (
	regContext = asm.R6 // struct xdp_md
	regFrame   = asm.R7 // its start
	regEnd     = asm.R8 // its end, or that of its first piece
)

// bpfAsm puts a program together.
type bpfAsm struct {
	ins    asm.Instructions
	label  string // of the next instruction
	v4, v6 []netip.Addr
	labels int
}

func newBPFAsm(addrs []netip.Addr) *bpfAsm {
	var a bpfAsm
	for _, addr := range addrs {
		switch {
		case addr.Is4():
			a.v4 = append(a.v4, addr)
		case addr.Is6():
			a.v6 = append(a.v6, addr)
		}
	}
	return &a
}

// xdpProgram returns the program for a port that has addrs and the Ethernet address mac. It hands frames to the
// socket in the XSK map with descriptor xsks that has the index of the queue.
func xdpProgram(addrs []netip.Addr, mac [6]byte, xsks int) asm.Instructions {
	a := newBPFAsm(addrs)
	a.add(
		asm.Mov.Reg(regContext, asm.R1),
		asm.LoadMem(regFrame, regContext, 0, asm.Word), // data
		asm.LoadMem(regEnd, regContext, 4, asm.Word),   // data_end
	)
	a.demand(ipv4End) // the least that any frame of ours has
	a.add(
		asm.LoadMem(asm.R2, regFrame, 0, asm.Byte),
		asm.And.Imm(asm.R2, 1),
		asm.JNE.Imm(asm.R2, 0, "type"), // a group
		asm.LoadMem(asm.R2, regFrame, 0, asm.Word),
		asm.JNE.Imm32(asm.R2, native32(mac[:4]), "pass"),
		asm.LoadMem(asm.R2, regFrame, 4, asm.Half),
		asm.JNE.Imm(asm.R2, native16(mac[4:]), "pass"),
	)
	a.at("type")
	a.add(asm.LoadMem(asm.R2, regFrame, etherTypeAt, asm.Half))
	if len(a.v4) > 0 {
		a.add(
			asm.JEq.Imm(asm.R2, native16([]byte{0x08, 0x00}), "ipv4"),
			asm.JEq.Imm(asm.R2, native16([]byte{0x08, 0x06}), "arp"),
		)
	}
	if len(a.v6) > 0 {
		a.add(asm.JEq.Imm(asm.R2, native16([]byte{0x86, 0xdd}), "ipv6"))
	}
	a.add(asm.Ja.Label("pass"))
	if len(a.v4) > 0 {
		a.ipv4()
		a.arp()
	}
	if len(a.v6) > 0 {
		a.ipv6()
	}

	a.at("ours")
	a.add(
		asm.LoadMem(asm.R2, regContext, 16, asm.Word), // rx_queue_index
		asm.LoadMapPtr(asm.R1, xsks),
		asm.Mov.Imm(asm.R3, xdpPass), // what to do without a socket
		asm.FnRedirectMap.Call(),
		asm.Return(),
	)
	a.at("pass")
	a.add(asm.Mov.Imm(asm.R0, xdpPass), asm.Return())
	return a.ins
}

func (a *bpfAsm) ipv4() {
	a.at("ipv4")
	a.matchIPv4(ipv4DstAt)
	a.add(asm.Ja.Label("pass"))
}

func (a *bpfAsm) arp() {
	a.at("arp")
	a.demand(arpEnd)
	a.add( // for IPv4 over Ethernet
		asm.LoadMem(asm.R2, regFrame, arpKindAt, asm.Word),
		asm.JNE.Imm32(asm.R2, native32([]byte{0, 1, 8, 0}), "pass"),
		asm.LoadMem(asm.R2, regFrame, arpKindAt+4, asm.Half),
		asm.JNE.Imm(asm.R2, native16([]byte{6, 4}), "pass"),
	)
	a.matchIPv4(arpTargetAt)
	a.add(asm.JNE.Imm32(asm.R2, 0, "pass")) // for someone
	a.matchIPv4(arpSenderAt)
	a.add(asm.Ja.Label("pass"))
}

func (a *bpfAsm) ipv6() {
	const (
		icmpv6                      = 58
		solicitation, advertisement = 135, 136
	)
	a.at("ipv6")
	a.demand(ipv6End)
	a.matchIPv6(ipv6DstAt)
	a.demand(ndEnd)
	a.add(
		asm.LoadMem(asm.R2, regFrame, ipv6NextAt, asm.Byte),
		asm.JNE.Imm(asm.R2, icmpv6, "pass"),
		asm.LoadMem(asm.R2, regFrame, ipv6DstAt, asm.Byte),
		asm.JNE.Imm(asm.R2, 0xff, "pass"), // to a group
		asm.LoadMem(asm.R2, regFrame, ndTypeAt, asm.Byte),
		asm.JEq.Imm(asm.R2, solicitation, "target"),
		asm.JNE.Imm(asm.R2, advertisement, "pass"),
	)
	a.at("target")
	a.matchIPv6(ndTargetAt)
	a.add(asm.Ja.Label("pass"))
}

// matchIPv4 goes to "ours" if the IPv4 address at off is one of ours. Else it leaves it in r2.
func (a *bpfAsm) matchIPv4(off int16) {
	a.add(asm.LoadMem(asm.R2, regFrame, off, asm.Word))
	for _, addr := range a.v4 {
		a.add(asm.JEq.Imm32(asm.R2, native32(addr.AsSlice()), "ours"))
	}
}

// matchIPv6 goes to "ours" if the IPv6 address at off is one of ours.
func (a *bpfAsm) matchIPv6(off int16) {
	a.add(
		asm.LoadMem(asm.R2, regFrame, off, asm.DWord),
		asm.LoadMem(asm.R3, regFrame, off+8, asm.DWord),
	)
	for _, addr := range a.v6 {
		b := addr.As16()
		a.labels++
		next := fmt.Sprintf("next%d", a.labels)
		a.add(
			asm.LoadImm(asm.R4, int64(binary.NativeEndian.Uint64(b[:])), asm.DWord),
			asm.JNE.Reg(asm.R2, asm.R4, next),
			asm.LoadImm(asm.R4, int64(binary.NativeEndian.Uint64(b[8:])), asm.DWord),
			asm.JEq.Reg(asm.R3, asm.R4, "ours"),
		)
		a.at(next)
	}
}

// demand passes frames shorter than n octets to the kernel.
func (a *bpfAsm) demand(n int32) {
	a.add(
		asm.Mov.Reg(asm.R2, regFrame),
		asm.Add.Imm(asm.R2, n),
		asm.JGT.Reg(asm.R2, regEnd, "pass"),
	)
}

// at gives the next instruction a label.
func (a *bpfAsm) at(label string) {
	if a.label != "" {
		panic("pktio: two labels for one instruction: " + a.label + " and " + label)
	}
	a.label = label
}

func (a *bpfAsm) add(ins ...asm.Instruction) {
	if a.label != "" {
		ins[0] = ins[0].WithSymbol(a.label)
		a.label = ""
	}
	a.ins = append(a.ins, ins...)
}

// native16 and native32 are what the program loads where the frame has the octets of b.
func native16(b []byte) int32 { return int32(binary.NativeEndian.Uint16(b)) }
func native32(b []byte) int32 { return int32(binary.NativeEndian.Uint32(b)) }

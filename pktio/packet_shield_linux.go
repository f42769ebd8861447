package pktio

import (
	"errors"
	"net/netip"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// shield keeps packets to our addresses from the kernel's own IP, which would look for a way to them in vain, or forward
// them where it is a router. It is a program at the tcx ingress of the interface: the kernel runs it after packet
// sockets got a frame, and before tc filters, nftables, bridges and IP. It takes Linux 6.6, CAP_NET_ADMIN and CAP_BPF,
// and is no condition: without it we receive the same. Other programs there run as ever: ours goes behind them and ends
// our frames alone.
type shield struct {
	link link.Link // nil: not there. It ends with its descriptor, even if the process is killed
	why  string    // why not
}

// raise puts the shield on an interface. The socket is bound by then, or what is dropped would be lost.
func (s *shield) raise(ifindex int, mac [6]byte, addrs []netip.Addr) {
	if len(addrs) == 0 {
		s.why = "no addresses of ours were told"
		return
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "softrdma_shield", Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: shieldProgram(addrs, mac),
	})
	if err != nil {
		s.why = whyNoShield(err)
		return
	}
	defer prog.Close() // the link holds it
	s.link, err = link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: prog, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		s.link, s.why = nil, whyNoShield(err)
	}
}

// lower takes the shield off.
func (s *shield) lower() {
	if s.link != nil {
		_ = s.link.Close()
	}
}

func whyNoShield(err error) string {
	switch missing := missingRights(); {
	case errors.Is(err, ebpf.ErrNotSupported):
		return "keeping it from them takes Linux 6.6"
	case !errors.Is(err, os.ErrPermission):
		var errno unix.Errno
		if errors.As(err, &errno) {
			err = errno
		}
		return err.Error()
	case len(missing) > 0:
		return "keeping it from them takes " + strings.Join(missing, " and ")
	case inUserNamespace():
		return "keeping it from them takes rights that count outside of a user namespace"
	}
	return "a security module forbids to keep it from them"
}

// Mode says, for people, whether the kernel's own IP gets packets to our addresses too, and if so, why.
func (p *Packet) Mode() string {
	if p.shield.link != nil {
		return "the kernel's IP does not get our packets"
	}
	return "the kernel's IP gets our packets too: " + p.shield.why
}

// shieldProgram drops frames to the Ethernet address mac with IPv4 or IPv6 to one of addrs. By what goes to groups, ARP
// and neighbour discovery, the kernel learns of its own neighbours, too, and a VLAN is another link.
func shieldProgram(addrs []netip.Addr, mac [6]byte) asm.Instructions {
	const (
		next, drop  = -1, 2 // TCX_NEXT, TCX_DROP
		vlanPresent = 20    // in struct __sk_buff
		stackAt     = -62   // of the frame's start: aligns the addresses in it, as the stack demands
	)
	a := newBPFAsm(addrs)
	// load copies n octets of the frame to the stack: a frame is in pieces, and the first may be no more than the
	// Ethernet header.
	load := func(at, n int32) {
		a.add(
			asm.Mov.Reg(asm.R1, regContext),
			asm.Mov.Imm(asm.R2, at),
			asm.Mov.Reg(asm.R3, regFrame),
			asm.Add.Imm(asm.R3, at),
			asm.Mov.Imm(asm.R4, n),
			asm.FnSkbLoadBytes.Call(),
			asm.JNE.Imm(asm.R0, 0, "pass"), // too short
		)
	}
	a.add(
		asm.Mov.Reg(regContext, asm.R1),
		asm.LoadMem(asm.R2, regContext, vlanPresent, asm.Word), // the kernel has taken the tag off
		asm.JNE.Imm(asm.R2, 0, "pass"),
		asm.Mov.Reg(regFrame, asm.R10),
		asm.Add.Imm(regFrame, stackAt),
	)
	load(0, ipv4End)
	a.add(
		asm.LoadMem(asm.R2, regFrame, 0, asm.Half),
		asm.JNE.Imm(asm.R2, native16(mac[:2]), "pass"),
		asm.LoadMem(asm.R2, regFrame, 2, asm.Word),
		asm.JNE.Imm32(asm.R2, native32(mac[2:]), "pass"),
		asm.LoadMem(asm.R2, regFrame, etherTypeAt, asm.Half),
		asm.JEq.Imm(asm.R2, native16([]byte{0x86, 0xdd}), "ipv6"),
		asm.JNE.Imm(asm.R2, native16([]byte{0x08, 0x00}), "pass"),
	)
	a.matchIPv4(ipv4DstAt)
	a.add(asm.Ja.Label("pass"))
	a.at("ipv6")
	load(ipv6DstAt, 16)
	a.matchIPv6(ipv6DstAt)
	a.add(asm.Ja.Label("pass"))
	a.at("ours")
	a.add(asm.Mov.Imm(asm.R0, drop), asm.Return())
	a.at("pass")
	a.add(asm.Mov.Imm(asm.R0, next), asm.Return())
	return a.ins
}

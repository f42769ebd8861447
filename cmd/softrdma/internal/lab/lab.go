package lab

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Side is one of the two hosts.
type Side struct {
	Namespace string
	Interface string
	Own       []netip.Prefix // addresses for a stack in user space; the kernel must not have them
	Kernel    []netip.Prefix // addresses of the kernel
}

// Lab is the pair. The zero value is of no use, take Default or Named.
type Lab struct {
	A, B Side
}

// Default returns the lab that the command line and the documentation use:
// namespaces softrdma-a and softrdma-b, interfaces sr-a and sr-b.
func Default() Lab { return Named("softrdma", "sr") }

// Named returns a lab with the same addresses under other names, so that two
// can stand on one host. An interface name has at most 15 octets.
func Named(namespace, iface string) Lab {
	side := func(letter string, n int) Side {
		p := func(format string) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf(format, n)) }
		return Side{
			Namespace: namespace + "-" + letter,
			Interface: iface + "-" + letter,
			Own:       []netip.Prefix{p("10.77.0.%d/24"), p("fd77::%d/64")},
			Kernel:    []netip.Prefix{p("10.78.0.%d/24"), p("fd78::%d/64")},
		}
	}
	return Lab{A: side("a", 1), B: side("b", 2)}
}

// Side returns the side that a letter names.
func (l Lab) Side(letter string) (Side, error) {
	switch letter {
	case "a":
		return l.A, nil
	case "b":
		return l.B, nil
	}
	return Side{}, fmt.Errorf("the lab has the sides a and b, not %q", letter)
}

// Environ returns the variables that tell a softrdma command run on the side
// which device to open. They are meant to override what is set outside, hence
// the empty ones.
func (s Side) Environ() []string {
	var own []string
	for _, p := range s.Own {
		if p.Addr().Is4() { // our own stack has no IPv6 yet
			own = append(own, p.String())
		}
	}
	return []string{
		"SOFTRDMA_BACKEND=packet",
		"SOFTRDMA_DEV=" + s.Interface,
		"SOFTRDMA_IP=" + strings.Join(own, ","),
		"SOFTRDMA_GW=",
		"SOFTRDMA_MTU=",
	}
}

// KernelAddr returns the kernel's address on the host whose own stack has the
// given one, and false if that is not an address of the lab.
func KernelAddr(own netip.Addr) (netip.Addr, bool) {
	l := Default()
	for _, s := range []Side{l.A, l.B} {
		for i, p := range s.Own {
			if p.Addr() == own.Unmap() {
				return s.Kernel[i].Addr(), true
			}
		}
	}
	return netip.Addr{}, false
}

// Command is a program and its arguments.
type Command []string

// String returns the command as one would type it into a shell.
func (c Command) String() string {
	words := make([]string, len(c))
	for i, w := range c {
		if w == "" || strings.ContainsAny(w, " \t\n\"'\\$&|;<>()*?[]{}~`!#") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		words[i] = w
	}
	return strings.Join(words, " ")
}

// Plan says how the lab is to be built.
type Plan struct {
	MTU    int  // of both interfaces; the kernel's default, 1500, if 0
	NoIPv6 bool // the host has no IPv6
}

// The MTUs that a veth pair takes: IPv4 needs 68, and 65535 is the largest.
// IPv6 asks for 1280.
const (
	minMTU     = 68
	minMTUIPv6 = 1280
	maxMTU     = 65535
)

// Up returns the commands that build the lab, in order.
func (l Lab) Up(p Plan) ([]Command, error) {
	if lowest := p.lowestMTU(); p.MTU != 0 && (p.MTU < lowest || p.MTU > maxMTU) {
		return nil, fmt.Errorf("an MTU of %d is out of range: take %d to %d", p.MTU, lowest, maxMTU)
	}
	cmds := []Command{
		{"ip", "netns", "add", l.A.Namespace},
		{"ip", "netns", "add", l.B.Namespace},
		{"ip", "link", "add", l.A.Interface, "netns", l.A.Namespace, "type", "veth",
			"peer", "name", l.B.Interface, "netns", l.B.Namespace},
	}
	for _, s := range []Side{l.A, l.B} {
		ns := func(args ...string) { cmds = append(cmds, append(Command{"ip", "-n", s.Namespace}, args...)) }
		if p.MTU != 0 {
			ns("link", "set", s.Interface, "mtu", strconv.Itoa(p.MTU))
		}
		if !p.NoIPv6 {
			// A link-local address would be made from the MAC that the stack in
			// user space has as well, and be looked for as a duplicate.
			ns("link", "set", s.Interface, "addrgenmode", "none")
		}
		for _, addr := range s.Kernel {
			switch {
			case addr.Addr().Is4():
				ns("addr", "add", addr.String(), "dev", s.Interface)
			case !p.NoIPv6:
				ns("addr", "add", addr.String(), "dev", s.Interface, "nodad")
			}
		}
		ns("link", "set", "lo", "up")
		ns("link", "set", s.Interface, "up")
	}
	return cmds, nil
}

func (p Plan) lowestMTU() int {
	if p.NoIPv6 {
		return minMTU
	}
	return minMTUIPv6
}

// Down returns the commands that take away what exists of the lab. The
// interfaces go first: a process that is still in a namespace keeps it alive,
// though without a name, and with it what is inside.
func (l Lab) Down(exists, hasLink func(Side) bool) []Command {
	var cmds []Command
	for _, s := range []Side{l.A, l.B} {
		if exists(s) && hasLink(s) {
			cmds = append(cmds, Command{"ip", "-n", s.Namespace, "link", "del", s.Interface})
			break // a veth takes its peer along
		}
	}
	for _, s := range []Side{l.A, l.B} {
		if exists(s) {
			cmds = append(cmds, Command{"ip", "netns", "del", s.Namespace})
		}
	}
	return cmds
}

// Exec returns the command that runs argv on the side.
func (s Side) Exec(argv []string) Command {
	return append(Command{"ip", "netns", "exec", s.Namespace}, argv...)
}

package lab

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
)

// Side is one of the two hosts.
type Side struct {
	Namespace string
	Interface string
	Port      string         // the other end of its veth pair where there is a wire
	Own       []netip.Prefix // addresses for a stack in user space; the kernel must not have them
	Kernel    []netip.Prefix // addresses of the kernel
}

// Wire is the namespace between the sides, where there is one.
type Wire struct {
	Namespace string
	Bridge    string
}

// Lab is the pair. The zero value is of no use, take Default or Named.
type Lab struct {
	A, B Side
	Wire Wire
	Dir  string // where the lab keeps its state and the wire process its socket and log
}

// runDir holds the directories of all labs of this host.
const runDir = "/run/softrdma-lab"

// Default returns the lab that the command line and the documentation use:
// namespaces softrdma-a and softrdma-b, interfaces sr-a and sr-b.
func Default() Lab { return Named("softrdma", "sr") }

// Named returns a lab with the same addresses under other names, so that two
// can stand on one host. An interface name has at most 15 octets, three of
// which are appended here.
func Named(namespace, iface string) Lab {
	side := func(letter string, n int) Side {
		p := func(format string) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf(format, n)) }
		return Side{
			Namespace: namespace + "-" + letter,
			Interface: iface + "-" + letter,
			Port:      iface + "-w" + letter,
			Own:       []netip.Prefix{p("10.77.0.%d/24"), p("fd77::%d/64")},
			Kernel:    []netip.Prefix{p("10.78.0.%d/24"), p("fd78::%d/64")},
		}
	}
	return Lab{
		A: side("a", 1), B: side("b", 2),
		Wire: Wire{Namespace: namespace + "-w", Bridge: iface + "-w"},
		Dir:  filepath.Join(runDir, namespace),
	}
}

func (l Lab) sides() []Side { return []Side{l.A, l.B} }

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
	own := make([]string, len(s.Own))
	for i, p := range s.Own {
		own[i] = p.String()
	}
	return []string{
		"SOFTRDMA_BACKEND=packet",
		"SOFTRDMA_DEV=" + s.Interface,
		"SOFTRDMA_IP=" + strings.Join(own, ","),
		"SOFTRDMA_GW=",
		"SOFTRDMA_MTU=",
	}
}

// Exec returns the command that runs argv on the side.
func (s Side) Exec(argv []string) Command { return inside(s.Namespace, argv...) }

func inside(namespace string, argv ...string) Command {
	return append(Command{"ip", "netns", "exec", namespace}, argv...)
}

// KernelAddr returns the kernel's address on the host whose own stack has the
// given one, and false if that is not an address of the lab.
func KernelAddr(own netip.Addr) (netip.Addr, bool) {
	for _, s := range Default().sides() {
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

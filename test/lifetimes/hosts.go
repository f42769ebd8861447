package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// port is where peers listen.
const port = 7000

// lab is a link between this namespace and another one. The process that this program
// runs in is the one host, a process in the other namespace the other.
type lab struct {
	backend string
	near    string // our interface
	far     string // theirs
	us      netip.Prefix
	them    netip.Prefix
	ns      netns.NsHandle  // the other namespace
	inside  *netlink.Handle // what is in there
}

// labs counts those made, for names and addresses of their own.
var labs int

// newLab makes a lab; close it.
func newLab(backend string) (*lab, error) {
	labs++
	addr := func(host int) netip.Prefix {
		net := 77
		if backend == "kernel" {
			net = 78
		}
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(net), byte(labs), byte(host)}), 24)
	}
	l := &lab{backend: backend, near: fmt.Sprintf("lt-a%d", labs), far: fmt.Sprintf("lt-b%d", labs), us: addr(1), them: addr(2)}
	if err := l.build(); err != nil {
		l.close()
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	return l, nil
}

func (l *lab) build() (err error) {
	if l.ns, err = newNamespace(); err != nil {
		return err
	}
	if l.inside, err = netlink.NewHandleAt(l.ns); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = l.near
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: l.far, PeerNamespace: netlink.NsFd(int(l.ns))}); err != nil {
		return err
	}
	here, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer here.Close()
	for _, end := range []struct {
		h    *netlink.Handle
		name string
		addr netip.Prefix
	}{{here, l.near, l.us}, {l.inside, l.far, l.them}} {
		for _, name := range []string{"lo", end.name} {
			ifi, err := end.h.LinkByName(name)
			if err != nil {
				return err
			}
			if err := end.h.LinkSetUp(ifi); err != nil {
				return err
			}
			if name == "lo" || l.backend != "kernel" {
				continue
			}
			at, err := netlink.ParseAddr(end.addr.String())
			if err != nil {
				return err
			}
			if err := end.h.AddrAdd(ifi, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// newNamespace makes a network namespace and leaves this thread where it is.
func newNamespace() (ns netns.NsHandle, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return ns, err
	}
	defer home.Close()
	if ns, err = netns.New(); err != nil {
		return ns, err
	}
	return ns, netns.Set(home)
}

func (l *lab) close() {
	if ifi, err := netlink.LinkByName(l.near); err == nil {
		_ = netlink.LinkDel(ifi)
	}
	if l.inside != nil {
		l.inside.Close()
	}
	if l.ns.IsOpen() {
		_ = l.ns.Close()
	}
}

// set sets one of the two interfaces up or down.
func (l *lab) set(near, up bool) error {
	h, name := l.inside, l.far
	if near {
		here, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer here.Close()
		h, name = here, l.near
	}
	ifi, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	if up {
		return h.LinkSetUp(ifi)
	}
	return h.LinkSetDown(ifi)
}

// open opens our device.
func (l *lab) open(p iwarp.Protocol) (*verbs.Device, error) {
	return openDevice(l.backend, l.near, l.us, p)
}

func openDevice(backend, iface string, addr netip.Prefix, p iwarp.Protocol) (*verbs.Device, error) {
	c := iwarp.Config{Protocol: p}
	var err error
	if c.Backend, err = iwarp.ParseBackend(backend); err != nil {
		return nil, err
	}
	if c.Backend != iwarp.Kernel {
		c.Interface, c.Addrs = iface, []netip.Prefix{addr}
		c.AddressProbe = 30 * time.Millisecond
	}
	return iwarp.Open(context.Background(), c)
}

// peer is a process on the other host.
type peer struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Scanner
}

// start starts a peer with further arguments and waits until it says that it is ready.
func (l *lab) start(args ...string) (*peer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args = append([]string{peerVerb, "-backend", l.backend, "-dev", l.far, "-addr", l.them.String()}, args...)
	p := &peer{cmd: exec.Command(self, args...)}
	p.cmd.Stderr = os.Stderr
	stdin, err := p.cmd.StdinPipe() // its end ends the peer
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.lines = bufio.NewScanner(stdout)
	if err := l.startThere(p.cmd); err != nil {
		return nil, err
	}
	if line, err := p.line(); err != nil || line != "ready" {
		p.kill()
		return nil, fmt.Errorf("the peer said %q: %w", line, errors.Join(err))
	}
	return p, nil
}

// startThere starts cmd in the other namespace: a process begins where the thread is.
func (l *lab) startThere(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	if err := netns.Set(l.ns); err != nil {
		return err
	}
	err = cmd.Start()
	return errors.Join(err, netns.Set(home))
}

// line returns the next line that the peer says.
func (p *peer) line() (string, error) {
	if !p.lines.Scan() {
		return "", errors.Join(io.ErrUnexpectedEOF, p.lines.Err())
	}
	return strings.TrimSpace(p.lines.Text()), nil
}

// kill kills the peer, as a crash would.
func (p *peer) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	_ = p.cmd.Wait() // it ends by a signal
	_ = p.stdin.Close()
}

// onNet runs a check on a lab of its own.
func onNet(backend string, f func(ctx context.Context, o *options, l *lab) (string, error)) func(context.Context, *options) (string, error) {
	return func(ctx context.Context, o *options) (string, error) {
		l, err := newLab(backend)
		if err != nil {
			return "", err
		}
		defer l.close()
		return f(ctx, o, l)
	}
}

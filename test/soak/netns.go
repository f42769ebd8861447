package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// network is two network namespaces joined by a veth pair, or, where the link has
// faults, by two pairs with a wire in a third namespace between them.
type network struct {
	o     *options
	name  string
	dir   string // for the control stream
	wire  *wire
	built []string // namespaces
}

// ifaces are the interfaces of the two ends; their names are the same everywhere,
// as are the addresses. Our own stack has the first ones, the kernel the others.
var (
	ifaces = [2]string{"soak-a", "soak-b"}
	ports  = [2]string{"soak-wa", "soak-wb"} // of the wire
	own    = [2][2]string{{"10.77.0.1/24", "10.77.0.2/24"}, {"fd77::1/64", "fd77::2/64"}}
	kernel = [2][2]string{{"10.78.0.1/24", "10.78.0.2/24"}, {"fd78::1/64", "fd78::2/64"}}
)

func (n *network) namespace(end string) string { return n.name + "-" + end }

// build makes the network; close takes away what was made, also after an error.
func (n *network) build() (err error) {
	if n.dir, err = os.MkdirTemp("", "soak-"); err != nil {
		return err
	}
	ends := []string{"a", "b"}
	if n.o.faulty() {
		ends = append(ends, "w")
	}
	for _, e := range ends {
		if err := ip("netns", "add", n.namespace(e)); err != nil {
			return err
		}
		n.built = append(n.built, n.namespace(e))
	}
	if n.o.faulty() {
		for i, e := range ends[:2] {
			if err := n.pair(e, ifaces[i], "w", ports[i]); err != nil {
				return err
			}
		}
	} else if err := n.pair("a", ifaces[0], "b", ifaces[1]); err != nil {
		return err
	}
	for i, e := range ends[:2] {
		for _, family := range kernel {
			if err := n.address(e, ifaces[i], family[i]); err != nil {
				return err
			}
		}
		if n.o.faulty() && !n.o.Super {
			if err := noSuperFrames(n.namespace(e), ifaces[i]); err != nil {
				return err
			}
		}
	}
	if n.o.faulty() {
		n.wire, err = openWire(n.o, n.namespace("w"), ports)
	}
	return err
}

// pair joins two namespaces.
func (n *network) pair(a, nameA, b, nameB string) error {
	err := ip("link", "add", nameA, "netns", n.namespace(a), "type", "veth", "peer", "name", nameB, "netns", n.namespace(b))
	for _, e := range [][2]string{{a, nameA}, {b, nameB}} {
		for _, set := range []string{"mtu " + strconv.Itoa(n.o.MTU), "addrgenmode none", "up"} {
			if err == nil {
				err = ip(append([]string{"-n", n.namespace(e[0]), "link", "set", e[1]}, strings.Fields(set)...)...)
			}
		}
	}
	return err
}

func (n *network) address(end, iface, addr string) error {
	args := []string{"-n", n.namespace(end), "addr", "add", addr, "dev", iface}
	if strings.Contains(addr, ":") {
		if n.o.MTU < 1280 {
			return nil // no link for IPv6
		}
		args = append(args, "nodad")
	}
	return ip(args...)
}

func (n *network) close() {
	if n.wire != nil {
		n.wire.close()
	}
	for _, name := range n.built {
		_ = ip("netns", "del", name) // what cannot be deleted cannot be helped
	}
	_ = os.RemoveAll(n.dir)
}

func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// endConfig is what the process of an end is told.
type endConfig struct {
	Options   options
	Side      int
	Interface string
	Addr      string // of our own stack; with its prefix length
	Listen    string // where the listening end listens
	Control   string // path of the control stream's socket
}

func (n *network) config(side int) endConfig {
	family := 0
	if n.o.V6 {
		family = 1
	}
	c := endConfig{Options: *n.o, Side: side, Interface: ifaces[side], Control: filepath.Join(n.dir, "control")}
	there := kernel[family][listening]
	if n.o.Backend != "kernel" {
		there = own[family][listening]
		c.Addr = own[family][side]
	}
	c.Listen = netip.AddrPortFrom(netip.MustParsePrefix(there).Addr(), port).String()
	return c
}

// endLine is one line of what the process of an end says.
type endLine struct {
	Snapshot snapshot
	Final    bool // the last one; the rest holds in it alone
	Backend  string
	Failures []string
	Before   host
	After    host
}

// runApart runs each end in a process of its own.
func runApart(ctx context.Context, p *printer) int {
	p.start()
	r := &result{}
	n := &network{o: p.o, name: fmt.Sprintf("soak-%d", os.Getpid())}
	err := n.build()
	if err == nil {
		err = soakApart(ctx, p, n, r)
	}
	n.close()
	if err != nil {
		r.Failures = append(r.Failures, err.Error())
	}
	return p.finish(r)
}

func soakApart(ctx context.Context, p *printer, n *network, r *result) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// Both ends have a patience of their own; this is for what they do not notice.
	hard, cancel := context.WithTimeout(context.Background(), p.o.Duration+5*p.o.Hang+time.Minute)
	defer cancel()
	m := &merger{p: p, n: n}
	var all sync.WaitGroup
	var errs [2]error
	for side := range errs {
		c, err := json.Marshal(n.config(side))
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(hard, "ip", "netns", "exec", n.namespace(sideName(side)), self, "end", string(c))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		in, err := cmd.StdinPipe() // its end tells the process that we are gone
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		defer context.AfterFunc(ctx, func() { _ = in.Close() })()
		all.Go(func() {
			err := m.read(side, out)
			errs[side] = errors.Join(err, cmd.Wait())
			_ = in.Close()
		})
	}
	all.Wait()
	m.finish(r)
	return errors.Join(errs[0], errs[1])
}

// merger puts together what the two processes say.
type merger struct {
	p *printer
	n *network

	mu    sync.Mutex // guards what follows
	last  [2]endLine
	count [2]int
	shown int
}

// read takes the lines of a process until it ends.
func (m *merger) read(side int, out io.Reader) error {
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 4<<20)
	for sc.Scan() {
		var l endLine
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			return fmt.Errorf("end %s says %q: %w", sideName(side), sc.Text(), err)
		}
		m.mu.Lock()
		m.last[side] = l
		m.count[side]++
		if min(m.count[0], m.count[1]) > m.shown && !m.last[0].Final && !m.last[1].Final {
			m.shown++
			m.p.line(m.total())
		}
		m.mu.Unlock()
	}
	return sc.Err()
}

func (m *merger) total() *snapshot {
	if m.last[0].Snapshot.Operations == nil || m.last[1].Snapshot.Operations == nil {
		return &snapshot{} // one has said nothing
	}
	b, _ := json.Marshal(m.last[0].Snapshot) // a deep copy, as add changes maps
	var s snapshot
	_ = json.Unmarshal(b, &s)
	s.add(m.last[1].Snapshot)
	if m.n.wire != nil {
		m.n.wire.count(&s)
	}
	return &s
}

func (m *merger) finish(r *result) {
	r.Total = *m.total()
	for side, l := range m.last {
		if !l.Final {
			r.Failures = append(r.Failures, fmt.Sprintf("the process of end %s has ended without a verdict", sideName(side)))
		}
		r.Failures = verdicts(r.Failures, l.Failures)
		r.Before.add(l.Before)
		r.After.add(l.After)
	}
	r.Backend = m.last[dialing].Backend
}

func (h *host) add(o host) {
	h.RSS += o.RSS
	h.Anon += o.Anon
	h.Heap += o.Heap
	h.Goroutines += o.Goroutines
}

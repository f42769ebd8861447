package lab

import (
	"context"
	"fmt"
	"strconv"
)

// Plan says how the lab is to be built.
type Plan struct {
	MTU        int         `json:"mtu"`     // of all interfaces; the kernel's default, 1500, if 0
	NoIPv6     bool        `json:"no_ipv6"` // the host has no IPv6
	WireFrames bool        `json:"wire_frames"`
	Impair     *Impairment `json:"impairment,omitempty"` // nil: no wire in between
}

// Step is one thing to do: a command, or something that has none and is told
// by a comment.
type Step struct {
	Command Command
	Note    string
	do      func(context.Context, *Host) error // where there is no command
}

// String returns the step as a line of a shell script.
func (s Step) String() string {
	if s.do != nil {
		return "# " + s.Note
	}
	return s.Command.String()
}

// The MTUs of the lab: IPv6 asks for 1280, ours as well as the kernel's, and
// 65535 is the largest of a veth pair.
const (
	minMTU     = 1280
	maxMTU     = 65535
	defaultMTU = 1500
)

// Check returns an error that says what in the plan cannot be done.
func (p *Plan) Check() error {
	if p.MTU != 0 && (p.MTU < minMTU || p.MTU > maxMTU) {
		why := ""
		if p.MTU < minMTU {
			why = ", as IPv6 asks for so much"
		}
		return fmt.Errorf("an MTU of %d is out of range: take %d to %d%s", p.MTU, minMTU, maxMTU, why)
	}
	if p.Impair != nil {
		return p.Impair.check()
	}
	return nil
}

// Describe says in plain words what is done to frames, or nothing.
func (p *Plan) Describe() []string {
	if p.Impair == nil {
		if p.WireFrames {
			return []string{"the interfaces' offloads are off: super-frames are cut up before they leave"}
		}
		return nil
	}
	lines := []string{p.Impair.String()}
	if s := p.Impair.frames(p.WireFrames, p.mtu()); s != "" {
		lines = append(lines, s)
	}
	return lines
}

func (p *Plan) mtu() int {
	if p.MTU == 0 {
		return defaultMTU
	}
	return p.MTU
}

// builder collects steps.
type builder struct {
	plan  *Plan
	steps []Step
}

func (b *builder) run(c ...string) { b.steps = append(b.steps, Step{Command: c}) }

func (b *builder) do(f func(context.Context, *Host) error, note string, args ...any) {
	b.steps = append(b.steps, Step{Note: fmt.Sprintf(note, args...), do: f})
}

// in runs ip inside a namespace.
func (b *builder) in(namespace string, args ...string) {
	b.run(append([]string{"ip", "-n", namespace}, args...)...)
}

// link sets up an interface, still down.
func (b *builder) link(namespace, name string) {
	if b.plan.MTU != 0 {
		b.in(namespace, "link", "set", name, "mtu", strconv.Itoa(b.plan.MTU))
	}
	if !b.plan.NoIPv6 {
		// A link-local address would be made from the MAC that the stack in
		// user space has as well, and be looked for as a duplicate.
		b.in(namespace, "link", "set", name, "addrgenmode", "none")
	}
}

func (b *builder) veth(name, namespace, peer, peerNamespace string) {
	b.run("ip", "link", "add", name, "netns", namespace, "type", "veth", "peer", "name", peer, "netns", peerNamespace)
}

// Up returns the steps that build the lab, in order.
func (l Lab) Up(p Plan) ([]Step, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	b := &builder{plan: &p}
	b.run("ip", "netns", "add", l.A.Namespace)
	b.run("ip", "netns", "add", l.B.Namespace)
	if p.Impair == nil {
		b.veth(l.A.Interface, l.A.Namespace, l.B.Interface, l.B.Namespace)
	} else {
		b.wire(l)
	}
	for _, s := range l.sides() {
		b.link(s.Namespace, s.Interface)
		for _, addr := range s.Kernel {
			switch {
			case addr.Addr().Is4():
				b.in(s.Namespace, "addr", "add", addr.String(), "dev", s.Interface)
			case !p.NoIPv6:
				b.in(s.Namespace, "addr", "add", addr.String(), "dev", s.Interface, "nodad")
			}
		}
		b.in(s.Namespace, "link", "set", "lo", "up")
		if p.WireFrames {
			b.cutUp(s.Namespace, s.Interface)
		}
		b.in(s.Namespace, "link", "set", s.Interface, "up")
	}
	return b.steps, nil
}

// wire builds what is between the sides. It is complete before the sides come
// up, so that no frame gets past it.
func (b *builder) wire(l Lab) {
	w, i := l.Wire.Namespace, b.plan.Impair
	b.run("ip", "netns", "add", w)
	for _, s := range l.sides() {
		b.veth(s.Interface, s.Namespace, s.Port, w)
	}
	if !i.process() {
		// A port passes frames on at once, and nothing of the bridge's own
		// comes between the frames of the lab.
		b.in(w, "link", "add", l.Wire.Bridge, "type", "bridge", "forward_delay", "0", "stp_state", "0", "mcast_snooping", "0")
		b.link(w, l.Wire.Bridge)
	}
	for _, s := range l.sides() {
		b.link(w, s.Port)
		if !i.process() {
			b.in(w, "link", "set", s.Port, "master", l.Wire.Bridge)
		}
		if b.plan.WireFrames {
			b.cutUp(w, s.Port)
		}
	}
	if !i.process() {
		b.do(func(_ context.Context, h *Host) error { return h.attachLoss(i) },
			"BPF program %s on the TCX ingress of %s and %s drops %s of what comes in", lossName, l.A.Port, l.B.Port, percent(i.Loss))
		b.in(w, "link", "set", l.Wire.Bridge, "up")
	}
	for _, s := range l.sides() {
		b.in(w, "link", "set", s.Port, "up")
	}
	if i.process() {
		p := *b.plan
		b.do(func(ctx context.Context, h *Host) error { return h.startWire(ctx, p) },
			"%s &", inside(w, append([]string{"softrdma"}, l.wireArgs()...)...))
	}
}

// cutUp switches off what makes super-frames at an interface.
func (b *builder) cutUp(namespace, name string) {
	b.do(func(_ context.Context, h *Host) error { return offloadsOff(namespace, name) },
		"%s", inside(namespace, "ethtool", "-K", name, "tso", "off", "gso", "off", "gro", "off"))
}

// Found is what exists of a lab.
type Found struct {
	Namespace map[string]bool // by name
	Link      map[string]bool // by name, of those that have to be deleted
	Dir       bool
	Process   int // the wire process, 0 if there is none
}

// nothing tells whether there is no trace of a lab.
func (f *Found) nothing() bool { return len(f.Namespace) == 0 && !f.Dir && f.Process == 0 }

// Down returns the steps that take away what was found of the lab. The
// interfaces go before the namespaces: a process that is still in a namespace
// keeps it alive, though without a name, and with it what is inside.
func (l Lab) Down(f *Found) []Step {
	b := &builder{}
	if f.Process != 0 {
		b.do(func(_ context.Context, h *Host) error { return h.endWire() }, "kill %d, the wire process", f.Process)
	}
	for _, s := range l.sides() {
		if f.Link[s.Interface] {
			b.in(s.Namespace, "link", "del", s.Interface)
			if !f.Namespace[l.Wire.Namespace] {
				break // a veth takes its peer along, which is the other side's
			}
		}
	}
	if f.Link[l.Wire.Bridge] {
		b.in(l.Wire.Namespace, "link", "del", l.Wire.Bridge)
	}
	for _, name := range l.namespaces() {
		if f.Namespace[name] {
			b.run("ip", "netns", "del", name)
		}
	}
	if f.Dir {
		b.do(func(_ context.Context, h *Host) error { return h.removeDir() }, "rm -r %s", l.Dir)
	}
	return b.steps
}

// namespaces are the names of all a lab may have.
func (l Lab) namespaces() []string {
	return []string{l.A.Namespace, l.B.Namespace, l.Wire.Namespace}
}

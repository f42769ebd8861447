package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// What Up, Down and the check of rights find.
var (
	ErrUp     = errors.New("the lab is already up")
	ErrHalfUp = errors.New("half of the lab is up")
	ErrDown   = errors.New("the lab is not up")
	ErrRights = errors.New("the lab needs root: making a network namespace takes CAP_SYS_ADMIN, making a veth pair CAP_NET_ADMIN")
	ErrNoIP   = errors.New("the program ip is missing")
)

// Host runs plans on this host.
type Host struct {
	Lab Lab
	Log io.Writer // the steps that change something, one a line
	// Self is the program whose "lab wire" is the wire process: this one if
	// empty.
	Self string
}

// Up builds the lab. If a step fails, it takes away what the earlier ones have
// built. A lab that is up already is ErrUp.
func (h *Host) Up(ctx context.Context, p Plan) error {
	if err := h.check(); err != nil {
		return err
	}
	if err := h.Ready(); err == nil {
		return ErrUp
	} else if !errors.Is(err, ErrDown) {
		return err
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		p.NoIPv6 = true
	}
	steps, err := h.Lab.Up(p)
	if err != nil {
		return err
	}
	h.log("# mkdir -p " + h.Lab.Dir)
	if err := h.makeDir(&p); errors.Is(err, ErrHalfUp) {
		return err // it is somebody else's
	} else if err != nil {
		return errors.Join(err, h.removeDir())
	}
	for _, s := range steps {
		if err := h.run(ctx, s); err != nil {
			// The caller's context may be what stopped us.
			undo := context.WithoutCancel(ctx)
			for _, s := range h.Lab.Down(h.find(undo)) {
				err = errors.Join(err, h.run(undo, s))
			}
			return err
		}
	}
	h.awaitCarrier(ctx)
	return nil
}

// awaitCarrier waits until the interfaces let frames out, which may be a second
// after they came up. If that takes too long, it is up to who uses the lab to
// try again.
func (h *Host) awaitCarrier(ctx context.Context) {
	running := func(namespace, name string) bool {
		var dev *net.Interface
		err := inNamespace(namespace, func() (err error) {
			dev, err = net.InterfaceByName(name)
			return err
		})
		return err == nil && dev.Flags&net.FlagRunning != 0
	}
	all := func() bool {
		for _, s := range h.Lab.sides() {
			if !running(s.Namespace, s.Interface) || Exists(h.Lab.Wire.Namespace) && !running(h.Lab.Wire.Namespace, s.Port) {
				return false
			}
		}
		return true
	}
	for end := time.Now().Add(5 * time.Second); ctx.Err() == nil && time.Now().Before(end) && !all(); {
		time.Sleep(10 * time.Millisecond)
	}
}

// Down takes the lab away, also half a one. It returns the processes that are
// still inside; they stay, cut off. If there is no lab it is ErrDown.
func (h *Host) Down(ctx context.Context) (left []int, err error) {
	if err := h.check(); err != nil {
		return nil, err
	}
	found := h.find(ctx)
	if found.nothing() {
		return nil, ErrDown
	}
	for _, name := range h.Lab.namespaces() {
		if found.Namespace[name] {
			left = append(left, pids(ctx, name, found.Process)...)
		}
	}
	for _, s := range h.Lab.Down(found) {
		err = errors.Join(err, h.run(ctx, s))
	}
	return left, err
}

// Ready tells why a command cannot be run in the lab, or nil.
func (h *Host) Ready() error {
	if err := h.check(); err != nil {
		return err
	}
	switch a, b := Exists(h.Lab.A.Namespace), Exists(h.Lab.B.Namespace); {
	case a && b:
		return nil
	case a || b || Exists(h.Lab.Wire.Namespace) || h.hasDir():
		return ErrHalfUp
	}
	return ErrDown
}

// Exists tells whether a namespace of that name is on this host.
func Exists(namespace string) bool {
	_, err := os.Stat(namespacePath(namespace))
	return err == nil
}

func namespacePath(namespace string) string {
	for _, dir := range []string{"/run/netns/", "/var/run/netns/"} {
		if _, err := os.Stat(dir + namespace); err == nil {
			return dir + namespace
		}
	}
	return "/run/netns/" + namespace
}

// find looks what exists of the lab.
func (h *Host) find(ctx context.Context) *Found {
	f := &Found{Namespace: make(map[string]bool), Link: make(map[string]bool), Dir: h.hasDir()}
	for _, name := range h.Lab.namespaces() {
		if Exists(name) {
			f.Namespace[name] = true
		}
	}
	look := func(namespace, link string) {
		if f.Namespace[namespace] && exec.CommandContext(ctx, "ip", "-n", namespace, "link", "show", "dev", link).Run() == nil {
			f.Link[link] = true
		}
	}
	for _, s := range h.Lab.sides() {
		look(s.Namespace, s.Interface)
	}
	look(h.Lab.Wire.Namespace, h.Lab.Wire.Bridge)
	if st, err := h.readState(); err == nil && st.Wire.alive() {
		f.Process = st.Wire.PID
	}
	return f
}

func (h *Host) log(line string) {
	if h.Log != nil {
		fmt.Fprintln(h.Log, line)
	}
}

func (h *Host) run(ctx context.Context, s Step) error {
	h.log(s.String())
	if s.do != nil {
		if err := s.do(ctx, h); err != nil {
			return fmt.Errorf("%s: %w", s.Note, err)
		}
		return nil
	}
	c := s.Command
	out, err := exec.CommandContext(ctx, c[0], c[1:]...).CombinedOutput()
	if err != nil {
		if msg := bytes.TrimSpace(out); len(msg) > 0 {
			return fmt.Errorf("%s: %s", c, bytes.ReplaceAll(msg, []byte("\n"), []byte("; ")))
		}
		return fmt.Errorf("%s: %w", c, err)
	}
	return nil
}

func (h *Host) check() error {
	if !hasRights("/proc/self/status") {
		return ErrRights
	}
	if dir := namesDir(); syscall.Access(dir, writable) != nil {
		return fmt.Errorf("%w; %s, where iproute2 keeps their names, cannot be written", ErrRights, dir)
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return ErrNoIP
	}
	return nil
}

// writable is W_OK of access(2).
const writable = 2

// namesDir is where a new namespace's name will be put.
func namesDir() string {
	const run = "/run"
	if dir := run + "/netns"; syscall.Access(dir, 0) == nil {
		return dir
	}
	return run
}

// The bits of the capability sets of Linux.
const (
	capNetAdmin = 12
	capSysAdmin = 21
)

// hasRights reads the effective capabilities from a status file of /proc.
func hasRights(path string) bool {
	status, err := os.ReadFile(path)
	if err != nil {
		return os.Geteuid() == 0
	}
	const need = 1<<capNetAdmin | 1<<capSysAdmin
	for line := range strings.Lines(string(status)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err == nil && caps&need == need
		}
	}
	return false
}

// pids returns the processes in a namespace, except for one.
func pids(ctx context.Context, namespace string, except int) []int {
	out, err := exec.CommandContext(ctx, "ip", "netns", "pids", namespace).Output()
	if err != nil {
		return nil
	}
	var list []int
	for _, f := range strings.Fields(string(out)) {
		if pid, err := strconv.Atoi(f); err == nil && pid != except {
			list = append(list, pid)
		}
	}
	return list
}

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
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
	Log io.Writer // the commands that change something, one a line
}

// Up builds the lab. If a command fails, it takes away what the earlier ones
// have built. A lab that is up already is ErrUp.
func (h *Host) Up(ctx context.Context, p Plan) error {
	if err := h.check(); err != nil {
		return err
	}
	a, b := Exists(h.Lab.A), Exists(h.Lab.B)
	switch {
	case a && b:
		return ErrUp
	case a || b:
		return ErrHalfUp
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		p.NoIPv6 = true
	}
	cmds, err := h.Lab.Up(p)
	if err != nil {
		return err
	}
	for _, c := range cmds {
		if err := h.run(ctx, c); err != nil {
			// The caller's context may be what stopped us.
			undo := context.WithoutCancel(ctx)
			for _, c := range h.Lab.Down(Exists, h.hasLink(undo)) {
				err = errors.Join(err, h.run(undo, c))
			}
			return err
		}
	}
	return nil
}

// Down takes the lab away, also half a one. It returns the processes that are
// still inside; they stay, cut off. If there is no lab it is ErrDown.
func (h *Host) Down(ctx context.Context) (left []int, err error) {
	if err := h.check(); err != nil {
		return nil, err
	}
	cmds := h.Lab.Down(Exists, h.hasLink(ctx))
	if len(cmds) == 0 {
		return nil, ErrDown
	}
	for _, s := range []Side{h.Lab.A, h.Lab.B} {
		if Exists(s) {
			left = append(left, pids(ctx, s)...)
		}
	}
	for _, c := range cmds {
		err = errors.Join(err, h.run(ctx, c))
	}
	return left, err
}

// Ready tells why a command cannot be run in the lab, or nil.
func (h *Host) Ready() error {
	if err := h.check(); err != nil {
		return err
	}
	switch a, b := Exists(h.Lab.A), Exists(h.Lab.B); {
	case a && b:
		return nil
	case a || b:
		return ErrHalfUp
	}
	return ErrDown
}

// Exists tells whether the side's namespace has a name on this host.
func Exists(s Side) bool {
	_, err := os.Stat("/run/netns/" + s.Namespace)
	if err != nil {
		_, err = os.Stat("/var/run/netns/" + s.Namespace)
	}
	return err == nil
}

func (h *Host) hasLink(ctx context.Context) func(Side) bool {
	return func(s Side) bool {
		return exec.CommandContext(ctx, "ip", "-n", s.Namespace, "link", "show", "dev", s.Interface).Run() == nil
	}
}

func (h *Host) run(ctx context.Context, c Command) error {
	if h.Log != nil {
		fmt.Fprintln(h.Log, c)
	}
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

// pids returns the processes in the side's namespace.
func pids(ctx context.Context, s Side) []int {
	out, err := exec.CommandContext(ctx, "ip", "netns", "pids", s.Namespace).Output()
	if err != nil {
		return nil
	}
	var list []int
	for _, f := range strings.Fields(string(out)) {
		if pid, err := strconv.Atoi(f); err == nil {
			list = append(list, pid)
		}
	}
	return list
}

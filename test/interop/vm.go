package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// lanes is how many commands a guest can run at the same time.
const lanes = 3

// VM is a running guest. Its methods may be called from several goroutines.
type VM struct {
	Kind string // siw or siw-strict

	dir  string // console and sockets
	cmd  *exec.Cmd
	exit chan error
	free chan *lane // those that no command uses
}

// VMConfig says what to boot and where.
type VMConfig struct {
	Image Image
	Kind  string
	NS    *Namespace
	Tap   string // in NS; made by the caller
	Addr  string // with prefix length
	Addr6 string
	MAC   string
	MTU   int    // 1500 if 0
	Accel string // of qemu: tcg if empty, which works everywhere
}

// lane is one command channel: a virtio serial port of the guest.
type lane struct {
	conn net.Conn
	r    *bufio.Reader
}

// bootTime bounds the wait for a guest under plain emulation on a busy machine.
const bootTime = 2 * time.Minute

// boot starts a guest and returns when it answers. The caller ends it with Stop; if ctx
// ends before, the guest does too, and whatever waits for it fails.
func boot(ctx context.Context, c VMConfig) (*VM, error) {
	dir, err := os.MkdirTemp("", "sr-interop-")
	if err != nil {
		return nil, err
	}
	vm := &VM{Kind: c.Kind, dir: dir, exit: make(chan error, 1), free: make(chan *lane, lanes)}
	if c.MTU == 0 {
		c.MTU = 1500
	}
	if c.Accel == "" {
		c.Accel = "tcg"
	}
	args := []string{"-machine", "q35", "-accel", c.Accel, "-cpu", "max", "-smp", "1", "-m", "512",
		"-display", "none", "-no-reboot", "-nodefaults", "-serial", "file:" + vm.console(),
		"-kernel", c.Image.Kernel, "-initrd", c.Image.Initrd,
		"-append", fmt.Sprintf("console=ttyS0 quiet panic=-1 siw=%s addr=%s addr6=%s mtu=%d", c.Kind, c.Addr, c.Addr6, c.MTU),
		"-netdev", "tap,id=net0,script=no,downscript=no,ifname=" + c.Tap, "-device", "virtio-net-pci,netdev=net0,speed=10000,duplex=full,mac=" + c.MAC,
		"-device", "virtio-serial-pci"}
	for i := range lanes {
		args = append(args, "-chardev", fmt.Sprintf("socket,id=lane%d,server=on,wait=off,path=%s", i, vm.socket(i)),
			"-device", fmt.Sprintf("virtserialport,nr=%d,chardev=lane%d,name=lane%d", i+1, i, i))
	}
	vm.cmd = c.NS.Command("qemu-system-x86_64", args...)
	var stderr bytes.Buffer
	vm.cmd.Stderr = &stderr
	if err := vm.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start qemu: %w", err), os.RemoveAll(dir))
	}
	undo := context.AfterFunc(ctx, func() { _ = vm.cmd.Process.Kill() })
	go func() {
		defer undo()
		err := vm.cmd.Wait()
		if s := strings.TrimSpace(stderr.String()); s != "" {
			err = fmt.Errorf("%w: %s", err, s)
		}
		vm.exit <- err
		close(vm.exit)
	}()
	if err := vm.connect(); err != nil {
		tail := vm.consoleTail()
		vm.Stop()
		return nil, fmt.Errorf("the %s guest does not come up: %w\n%s", c.Kind, err, tail)
	}
	return vm, nil
}

func (v *VM) console() string     { return filepath.Join(v.dir, "console") }
func (v *VM) socket(i int) string { return filepath.Join(v.dir, fmt.Sprintf("lane%d", i)) }

// connect opens all lanes and waits until the guest answers on each.
func (v *VM) connect() error {
	deadline := time.Now().Add(bootTime)
	for i := range lanes {
		var conn net.Conn
		for {
			var err error
			if conn, err = net.Dial("unix", v.socket(i)); err == nil {
				break
			}
			select {
			case e := <-v.exit:
				return fmt.Errorf("qemu ended: %w", e)
			case <-time.After(50 * time.Millisecond):
			}
			if time.Now().After(deadline) {
				return err
			}
		}
		l := &lane{conn: conn, r: bufio.NewReader(conn)}
		if _, err := l.run("rdma link show siw0/1", time.Until(deadline)); err != nil {
			_ = conn.Close()
			return err
		}
		v.free <- l
	}
	return nil
}

// Console returns what the guest has written to its console so far.
func (v *VM) Console() string {
	b, _ := os.ReadFile(v.console()) // there may be none yet
	return string(b)
}

func (v *VM) consoleTail() string {
	text := v.Console()
	return text[max(0, len(text)-2000):]
}

// Run runs a shell command in the guest and returns its output. It takes a lane, and
// waits for one when all are in use. A command that takes longer than limit is ended
// and gives an error.
func (v *VM) Run(command string, limit time.Duration) (string, error) {
	l := <-v.free
	out, err := l.run(command, limit)
	v.free <- l
	return out, err
}

// ExitError is the failure of a command in the guest.
type ExitError struct {
	Status  int
	Command string
	Output  string
}

// Error names command, status and output.
func (e *ExitError) Error() string {
	return fmt.Sprintf("guest: %q ended with %d: %s", e.Command, e.Status, strings.TrimSpace(e.Output))
}

func (l *lane) run(command string, limit time.Duration) (string, error) {
	if strings.ContainsRune(command, '\n') {
		panic("interop: a guest command is one line")
	}
	// The guest ends the command; a little more patience here notices a dead guest.
	if err := l.conn.SetDeadline(time.Now().Add(limit + 20*time.Second)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(l.conn, "%d %s\n", int(limit.Seconds())+1, command); err != nil {
		return "", fmt.Errorf("guest: %w", err)
	}
	head, err := l.r.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("guest: no answer to %q: %w", command, err)
	}
	var status, size int
	if _, err := fmt.Sscanf(head, "%d %d", &status, &size); err != nil {
		return "", fmt.Errorf("guest: answer %q to %q: %w", head, command, err)
	}
	out := make([]byte, size)
	if _, err := io.ReadFull(l.r, out); err != nil {
		return "", fmt.Errorf("guest: output of %q: %w", command, err)
	}
	if status != 0 {
		return string(out), &ExitError{status, command, string(out)}
	}
	return string(out), nil
}

// Started is a command that runs in the guest meanwhile.
type Started struct {
	done chan struct{}
	out  string
	err  error
}

// Start begins a command and returns at once.
func (v *VM) Start(command string, limit time.Duration) *Started {
	s := &Started{done: make(chan struct{})}
	go func() {
		s.out, s.err = v.Run(command, limit)
		close(s.done)
	}()
	return s
}

// Wait returns what Run would have returned.
func (s *Started) Wait() (string, error) {
	<-s.done
	return s.out, s.err
}

// AwaitListener waits until a socket of the guest listens on a TCP port.
func (v *VM) AwaitListener(port int, limit time.Duration) error {
	_, err := v.Run(fmt.Sprintf("until cat /proc/net/tcp /proc/net/tcp6 | grep -q ':%04X [0-9A-F:]* 0A '; do sleep 0.05; done", port), limit)
	return err
}

// Log returns what the guest's kernel has said since the last call, line by line with
// the priority in front.
func (v *VM) Log() ([]string, error) {
	out, err := v.Run("dmesg -r -c", 10*time.Second)
	var lines []string
	for _, l := range strings.Split(out, "\n") {
		if l = strings.TrimSpace(l); l != "" {
			lines = append(lines, l)
		}
	}
	return lines, err
}

// Stop ends the guest and removes its files. Commands that still run fail.
func (v *VM) Stop() {
	_ = v.cmd.Process.Kill()
	<-v.exit
	for range len(v.free) {
		_ = (<-v.free).conn.Close()
	}
	_ = os.RemoveAll(v.dir)
}

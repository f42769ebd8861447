package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// How long the wire process may take to begin and to end.
const (
	wireBegins = 20 * time.Second
	wireEnds   = 5 * time.Second
)

// wireArgs are the arguments that make softrdma the wire process.
func (l Lab) wireArgs() []string { return []string{"lab", "wire", filepath.Join(l.Dir, "wire.json")} }

// wireConfig is what the wire process reads from the file they name.
func (l Lab) wireConfig(p *Plan) *wireConfig {
	return &wireConfig{
		Ports: [2]string{l.A.Port, l.B.Port}, Impair: *p.Impair, WireFrames: p.WireFrames,
		Socket: filepath.Join(l.Dir, "wire.sock"),
	}
}

// startWire starts the wire process and waits until it carries frames. It
// outlives this one.
func (h *Host) startWire(ctx context.Context, p Plan) error {
	self := h.Self
	if self == "" {
		var err error
		if self, err = os.Executable(); err != nil {
			return err
		}
	}
	args := h.Lab.wireArgs()
	config := h.Lab.wireConfig(&p)
	if err := writeJSON(args[len(args)-1], config); err != nil {
		return err
	}
	log, err := os.Create(h.logPath())
	if err != nil {
		return err
	}
	defer log.Close()
	argv := inside(h.Lab.Wire.Namespace, append([]string{self}, args...)...)
	c := exec.Command(argv[0], argv[1:]...)
	c.Dir, c.Stdout, c.Stderr = "/", log, log
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signal of our terminal is meant for it
	if err := c.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }() // also, so that it does not stay a zombie
	wire, err := identify(c.Process.Pid)
	if err == nil {
		err = h.writeState(&state{Plan: p, Wire: wire})
	}
	if err == nil {
		err = h.awaitWire(ctx, config.Socket, ended)
	}
	if err != nil {
		_ = c.Process.Kill()
	}
	return err
}

// awaitWire waits until the wire process answers.
func (h *Host) awaitWire(ctx context.Context, socket string, ended <-chan error) error {
	timeout := time.NewTimer(wireBegins)
	defer timeout.Stop()
	for {
		if _, err := askWire(ctx, socket); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			return fmt.Errorf("the wire process ended at once: %w", errors.Join(err, h.lastWords()))
		case <-timeout.C:
			return fmt.Errorf("the wire process does not answer after %v: %w", wireBegins, errors.Join(os.ErrDeadlineExceeded, h.lastWords()))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// lastWords is what the wire process said, if anything.
func (h *Host) lastWords() error {
	b, err := os.ReadFile(h.logPath())
	if b = bytes.TrimSpace(b); err != nil || len(b) == 0 {
		return nil
	}
	const enough = 2000
	if len(b) > enough {
		b = b[len(b)-enough:]
	}
	return errors.New(string(bytes.ReplaceAll(b, []byte("\n"), []byte("; "))))
}

// endWire ends the wire process: politely, then not.
func (h *Host) endWire() error {
	st, err := h.readState()
	if err != nil {
		return err
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := st.Wire.kill(s); err != nil {
			return err
		}
		for end := time.Now().Add(wireEnds); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if !st.Wire.alive() {
				return nil
			}
		}
	}
	return fmt.Errorf("process %d does not end", st.Wire.PID)
}

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// program is one run of softrdma, or of the program here that plays the other side of
// ucmatose and rdma_client.
type program struct {
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr *watched
}

// ourArgs is our command line in a row. self is this program, which plays what the
// softrdma command has no word for.
func (r Row) ourArgs(softrdma, self string, f files) []string {
	var args []string
	addr := r.guestAddr().String()
	switch {
	case r.Program == "rping" && r.Role == "client":
		args = []string{softrdma, "ping", addr, "-C", fmt.Sprint(r.Load.Count), "-S", fmt.Sprint(r.Load.Size), "-V", "-i", "0"}
	case r.Program == "rping":
		args = []string{softrdma, "serve", "--addr", r.ourAddr().String(), "--no-baseline"}
	default:
		args = []string{self, "peer", r.Program, r.Role, "-c", fmt.Sprint(r.Load.Conns), "-C", fmt.Sprint(r.Load.Count), "-S", fmt.Sprint(r.Load.Size)}
		if r.Role == "server" {
			addr = r.ourAddr().String()
		}
		args = append(args, "--addr", net.JoinHostPort(addr, fmt.Sprint(r.port())))
		if r.Held() {
			args = append(args, "--held")
		}
	}
	backend, mode, xdp := strings.Cut(r.Backend, "-")
	args = append(args, "--backend", backend, "--stats", f.stats())
	if xdp {
		args = append(args, "--xdp-mode", mode)
	}
	if r.OwnStack() {
		args = append(args, "--dev", tapName, "--ip", r.ourPrefix().String(), "--capture", f.own())
	}
	if !r.CRC {
		args = append(args, "--no-crc")
	}
	return args
}

// prepare makes our program ready to start in the namespace.
func prepare(ns *Namespace, args []string) *program {
	p := &program{cmd: ns.Command(args[0], args[1:]...), stderr: newWatched()}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, p.stderr
	p.cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "SOFTRDMA_") }) // a row says all
	return p
}

// wait ends the run and reports an exit code other than 0.
func (p *program) wait(limit time.Duration) error {
	t := time.AfterFunc(limit, func() { _ = p.cmd.Process.Kill() })
	defer t.Stop()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("softrdma: %w", err)
	}
	return nil
}

// interrupt asks a server that runs until then to end.
func (p *program) interrupt() error { return p.cmd.Process.Signal(syscall.SIGINT) }

// backend returns which backend the program says it took, in the matrix's words.
func (p *program) backend() string { return saidBackend(p.stderr.String()) }

// saidBackend reads the line that tells which backend was taken: "xdp: own TCP/IP stack
// on tap0 with 10.77.0.1/24 (native, copy, asked for)".
func saidBackend(text string) string {
	for _, line := range strings.Split(text, "\n") {
		name, rest, ok := strings.Cut(line, ": ")
		if !ok {
			continue
		}
		_, inside, _ := strings.Cut(rest, "(")
		switch mode, _, _ := strings.Cut(inside, ","); name {
		case "packet", "kernel":
			return name
		case "xdp":
			return "xdp-" + mode
		}
	}
	return "?"
}

// counters reads the statistics that softrdma left behind.
func counters(file string) (map[string]uint64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("softrdma's counters: %w", err)
	}
	var c map[string]uint64
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, fmt.Errorf("softrdma's counters: %w", err)
	}
	return c, nil
}

// watched keeps what a program writes and lets others wait for a line of it.
type watched struct {
	mu    sync.Mutex
	text  bytes.Buffer
	grown chan struct{}
}

func newWatched() *watched { return &watched{grown: make(chan struct{}, 1)} }

// Write implements io.Writer.
func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.grown <- struct{}{}:
	default:
	}
	return w.text.Write(b)
}

// String returns all that was written so far.
func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSpace(w.text.String())
}

// await waits until a line that contains part has been written.
func (w *watched) await(part string, limit time.Duration) error {
	t := time.NewTimer(limit)
	defer t.Stop()
	for {
		sc := bufio.NewScanner(strings.NewReader(w.String()))
		for sc.Scan() {
			if strings.Contains(sc.Text(), part) {
				return nil
			}
		}
		select {
		case <-w.grown:
		case <-t.C:
			return fmt.Errorf("softrdma did not say %q: %s", part, w.String())
		}
	}
}

var _ io.Writer = (*watched)(nil)

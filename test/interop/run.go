package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// limit bounds one program of one run. The guest is emulated and the machine may be busy.
const limit = 30 * time.Second

// Result is what one run showed.
type Result struct {
	Backend  string // as softrdma said it took
	CRCBits  string // C in Request and Reply, read off the wire
	FPDUs    int    // whole FPDUs by our decoder
	Tshark   int    // by tshark
	Counters int    // FPDUs in and out by softrdma's own counters
	Time     time.Duration
	Err      error // all that was not as it should be
}

// runner runs rows against one guest.
type runner struct {
	vm    *VM
	ns    *Namespace
	bin   string
	dir   string
	count int
}

// run does one row. Everything that is wrong is gathered, so that a failure tells
// whatever can be told.
func (r *runner) run(row Row) (res Result) {
	start := time.Now()
	file := filepath.Join(r.dir, row.name()+".pcap")
	stats := filepath.Join(r.dir, row.name()+".json")
	fail := func(err error) { res.Err = errors.Join(res.Err, err) }
	if _, err := r.vm.Log(); err != nil {
		fail(err)
		return res
	}
	var sn *Sniffer
	if row.Backend == "kernel" {
		var err error
		if sn, err = sniff(r.ns, tapName, file); err != nil {
			fail(err)
			return res
		}
	}
	ours := r.prepare(row, file, stats)
	if row.Role == "client" {
		fail(r.asClient(row, ours))
	} else {
		fail(r.asServer(row, ours))
	}
	if sn != nil {
		fail(sn.Stop())
	}
	res.Backend = ours.backend()
	if res.Backend != row.Backend {
		fail(fmt.Errorf("softrdma took backend %q: %s", res.Backend, ours.stderr.String()))
	}
	lines, err := r.vm.Log()
	fail(err)
	for _, l := range lines {
		if complaint(l) {
			fail(fmt.Errorf("the guest's kernel says: %s", l))
		}
	}
	fail(checkCapture(row, file, stats, r.count, &res))
	res.Time = time.Since(start)
	if res.Err != nil && ours.stderr.String() != "" {
		fail(fmt.Errorf("softrdma said:\n%s", ours.stderr.String()))
	}
	return res
}

// program is one run of softrdma.
type program struct {
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr *watched
}

// prepare builds the command line of softrdma for a row.
func (r *runner) prepare(row Row, file, stats string) *program {
	var args []string
	if row.Role == "client" {
		args = append(args, "ping", guestAddr, "-C", fmt.Sprint(r.count), "-S", fmt.Sprint(row.Size), "-V", "-i", "0")
	} else {
		args = append(args, "serve", "--addr", ourAddr(row.Backend), "--no-baseline")
	}
	args = append(args, "--backend", row.Backend, "--stats", stats)
	if row.Backend == "packet" {
		args = append(args, "--dev", tapName, "--ip", packetAddr+"/24", "--capture", file)
	} else {
		args = append(args, "--ip", kernelAddr)
	}
	if !row.CRC {
		args = append(args, "--no-crc")
	}
	p := &program{cmd: r.ns.Command(r.bin, args...), stderr: newWatched()}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, p.stderr
	return p
}

// asClient pings the guest's rping server.
func (r *runner) asClient(row Row, ours *program) error {
	server := r.vm.Start(fmt.Sprintf("rping -s -a %s -C %d -V -S %d", guestAddr, r.count, row.Size), limit)
	if err := r.vm.AwaitListener(port, limit); err != nil {
		return err
	}
	err := ours.cmd.Start()
	if err == nil {
		err = ours.wait(limit)
	}
	out, guestErr := server.Wait()
	return errors.Join(err, guestSaid(out, guestErr))
}

// asServer answers the guest's rping client.
func (r *runner) asServer(row Row, ours *program) error {
	if err := ours.cmd.Start(); err != nil {
		return err
	}
	if err := ours.stderr.await("ping: listening", limit); err != nil {
		_ = ours.cmd.Process.Kill()
		return errors.Join(err, ours.wait(limit))
	}
	out, guestErr := r.vm.Run(fmt.Sprintf("rping -c -a %s -C %d -V -S %d", ourAddr(row.Backend), r.count, row.Size), limit)
	var err error
	if guestErr == nil {
		err = ours.stderr.await("is through after", limit)
	}
	return errors.Join(err, guestSaid(out, guestErr), ours.cmd.Process.Signal(syscall.SIGINT), ours.wait(limit))
}

// wait ends softrdma's run and reports an exit code other than 0.
func (p *program) wait(limit time.Duration) error {
	t := time.AfterFunc(limit, func() { _ = p.cmd.Process.Kill() })
	defer t.Stop()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("softrdma: %w", err)
	}
	return nil
}

// backend returns which backend softrdma says it took.
func (p *program) backend() string {
	for _, line := range strings.Split(p.stderr.String(), "\n") {
		if name, _, ok := strings.Cut(line, ": "); ok && (name == "packet" || name == "kernel") {
			return name
		}
	}
	return "?"
}

// guestSaid judges the guest's rping. With -V it prints nothing but how the connection
// ended.
func guestSaid(out string, err error) error {
	var exit *ExitError
	for _, line := range strings.Split(out, "\n") {
		switch line = strings.TrimSpace(line); {
		case line == "", strings.Contains(line, "DISCONNECT EVENT"):
		case strings.HasPrefix(line, "wait for RDMA_READ_ADV state"):
			// The server waits for the next ping when the client leaves.
		case line == "rdma_get_cm_event: Bad file descriptor" && strings.Contains(out, "DISCONNECT EVENT") && errors.As(err, &exit) && exit.Status == 255:
			// rping's main thread sometimes closes the event channel after the end
			// while its other thread still waits on it; that thread then ends the
			// program with this status. All pings are done by then.
			err = nil
		default:
			return errors.Join(err, fmt.Errorf("rping says: %s", line))
		}
	}
	return err
}

// complaint tells whether a line of the kernel's log is a warning or worse. The priority
// stands in front: <6> informs, <4> warns.
func complaint(line string) bool {
	return len(line) > 2 && line[0] == '<' && line[1] <= '4' && line[2] == '>'
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

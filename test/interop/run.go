package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// limit bounds one program of one run. The guest is emulated and the machine may be busy.
const limit = time.Minute

// Result is what one run showed.
type Result struct {
	Seen     string // as told by the wire and the link
	CRCBits  string // C in Request and Reply, read off the wire
	FPDUs    int    // whole FPDUs by our decoder
	Tshark   int    // by tshark
	Counters int    // FPDUs in and out by softrdma's own counters
	Time     time.Duration
	Err      error  // all that was not as it should be
	Kept     string // folder with captures and logs; empty if thrown away
}

// files is the folder of one run.
type files struct{ dir string }

func (f files) own() string   { return filepath.Join(f.dir, "softrdma.pcapng") } // what our own stack says it sent and received
func (f files) wire() string  { return filepath.Join(f.dir, "tap.pcap") }        // what the host's kernel has seen on the tap
func (f files) stats() string { return filepath.Join(f.dir, "counters.json") }

// traffic is the capture that holds all of a row's traffic.
func (f files) traffic(r Row) string {
	if r.OwnStack() {
		return f.own()
	}
	return f.wire()
}

// write leaves a text beside the captures.
func (f files) write(name, text string) error {
	return os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o644)
}

// runner runs rows against one guest.
type runner struct {
	host     *host
	softrdma string // the program to test
	self     string // this program
	dir      string // gets a folder for each run that is kept
	keep     bool   // all of them; else those that fail
}

// run does one row. Everything that is wrong is gathered, so that a failure tells
// whatever can be told.
func (r *runner) run(row Row) (res Result) {
	start := time.Now()
	f := files{filepath.Join(r.dir, row.name())}
	if res.Err = errors.Join(os.RemoveAll(f.dir), os.MkdirAll(f.dir, 0o755)); res.Err != nil {
		return res
	}
	defer func() {
		if res.Time = time.Since(start); res.Err != nil || r.keep {
			res.Kept = f.dir
		} else {
			res.Err = os.RemoveAll(f.dir)
		}
	}()
	fail := func(err error) { res.Err = errors.Join(res.Err, err) }
	defer func() {
		if res.Err != nil { // the guest may be beyond answering
			console := r.host.vm.Console()
			fail(errors.Join(broke(console), f.write("guest-console.txt", console)))
		}
	}()
	if err := r.host.setMTU(row.MTU); err != nil {
		fail(err)
		return res
	}
	if _, err := r.host.vm.Log(); err != nil {
		fail(err)
		return res
	}
	ev, err := observe(r.host.ns, f.wire())
	if err != nil {
		fail(err)
		return res
	}
	args := row.ourArgs(r.softrdma, r.self, f)
	ours := prepare(r.host.ns, args)
	var out string
	if row.Role == "client" {
		out, err = r.asClient(row, ours)
	} else {
		out, err = r.asServer(row, ours)
	}
	fail(err)
	fail(ev.Stop())
	lines, err := r.host.vm.Log()
	fail(err)
	fail(judgeLog(lines))
	fail(f.write("softrdma.txt", fmt.Sprintf("$ %s\n%s\n%s\n", strings.Join(args, " "), ours.stdout.String(), ours.stderr)))
	fail(f.write("guest.txt", fmt.Sprintf("# %s\n%s\n", row.guestCommand(), out)))
	fail(f.write("guest-kernel.txt", strings.Join(lines, "\n")+"\n"))
	if said := ours.backend(); said != row.Backend {
		fail(fmt.Errorf("softrdma says it took backend %q", said))
	}
	fail(checkCapture(row, f, &res))
	fail(ev.check(row, f, &res))
	if res.Err != nil && ours.stderr.String() != "" {
		fail(fmt.Errorf("softrdma said:\n%s", ours.stderr))
	}
	return res
}

// asClient runs our client against the guest's server, and returns what that said.
func (r *runner) asClient(row Row, ours *program) (string, error) {
	server := r.host.vm.Start(row.guestCommand(), limit)
	if err := r.host.vm.AwaitListener(row.port(), limit); err != nil {
		return "", err
	}
	err := ours.cmd.Start()
	if err == nil {
		err = ours.wait(limit)
	}
	out, guestErr := server.Wait()
	return out, errors.Join(err, row.guestSaid(out, guestErr))
}

// asServer runs the guest's client against our server.
func (r *runner) asServer(row Row, ours *program) (string, error) {
	if err := ours.cmd.Start(); err != nil {
		return "", err
	}
	err := ours.stderr.await(": listening on", limit)
	if err == nil && row.XDP() {
		err = r.host.passes(row)
	}
	if err != nil {
		_ = ours.cmd.Process.Kill()
		return "", errors.Join(err, ours.wait(limit))
	}
	out, guestErr := r.host.vm.Run(row.guestCommand(), limit)
	said := row.guestSaid(out, guestErr)
	switch {
	case said != nil: // ours may wait in vain
		_ = ours.interrupt()
	case row.Program == "rping": // softrdma serve goes on; the others end by themselves
		err = errors.Join(ours.stderr.await("is through after", limit), ours.interrupt())
	}
	return out, errors.Join(said, err, ours.wait(limit))
}

// passes shows that XDP takes our own frames alone: the guest still reaches the host's
// kernel through the same tap.
func (h *host) passes(row Row) error {
	_, err := h.vm.Run(fmt.Sprintf("ping -c 1 -W 10 %v", row.kernelAddr()), limit)
	if err != nil {
		return fmt.Errorf("with XDP attached the guest does not reach the host's kernel: %w", err)
	}
	return nil
}

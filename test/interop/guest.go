package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// guestCommand is what the guest runs in a row.
func (r Row) guestCommand() string {
	addr, l := r.guestAddr(), r.Load
	if r.Role == "server" {
		addr = r.ourAddr()
	}
	switch r.guestProgram() {
	case "rping":
		side := map[string]string{"client": "-s", "server": "-c"}[r.Role] // the other one
		return fmt.Sprintf("rping %s -a %v -C %d -V -S %d", side, addr, l.Count, l.Size)
	case "ucmatose":
		side := map[string]string{"client": "-b", "server": "-s"}[r.Role]
		return fmt.Sprintf("ucmatose %s %v -c %d -C %d -S %d", side, addr, l.Conns, l.Count, l.Size)
	case "rdma_client":
		return fmt.Sprintf("rdma_client -s %v", addr)
	}
	return "rdma_server"
}

// guestSaid judges what the guest's program printed, and its exit.
func (r Row) guestSaid(out string, err error) error {
	switch {
	case r.Program == "rping":
		return rpingSaid(out, err)
	case r.Held():
		return heldSaid(out, err)
	case r.Program == "ucmatose":
		return said(out, err, cmatoseLines[r.Role])
	}
	name := r.guestProgram()
	return said(out, err, []string{name + ": start", name + ": end 0"})
}

// cmatoseLines are what ucmatose prints when all goes well, by softrdma's role.
var cmatoseLines = map[string][]string{
	"client": {"cmatose: starting server", "initiating data transfers", "completing sends", "receiving data transfers",
		"data transfers complete", "cmatose: disconnecting", "disconnected", "test complete", "return status 0"},
	"server": {"cmatose: starting client", "cmatose: connecting", "receiving data transfers", "sending replies",
		"data transfers complete", "test complete", "return status 0"},
}

// said wants exactly these lines and a good exit.
func said(out string, err error, lines []string) error {
	if got := strings.Split(strings.TrimSpace(out), "\n"); err == nil && strings.Join(got, "\n") != strings.Join(lines, "\n") {
		err = fmt.Errorf("the guest's program says %q instead of %q", got, lines)
	}
	return err
}

// heldSaid judges an ucmatose that nobody has sent anything, and whose connections were
// cut. It takes its flushed receives for messages and tries to answer.
func heldSaid(out string, err error) error {
	var exit *ExitError
	if err != nil && !errors.As(err, &exit) {
		return err
	}
	if !strings.Contains(out, "receiving data transfers\n") || !strings.Contains(out, "test complete\n") {
		return fmt.Errorf("ucmatose should have waited for messages and ended by itself: %s", strings.TrimSpace(out))
	}
	return nil
}

// rpingSaid judges the guest's rping. With -V it prints nothing but how the connection
// ended.
func rpingSaid(out string, err error) error {
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

// errGuestBroke is a fault of the guest's own kernel that has nothing to do with what we
// said to it.
var errGuestBroke = errors.New("the guest's kernel broke")

var (
	// brokeAt are the places of such faults: iwcm.c of Linux asserts what a connection
	// that goes away in the wrong moment makes untrue, also between two siw.
	brokeAt = regexp.MustCompile(`kernel BUG at drivers/infiniband/core/iwcm\.c|RIP: .*\[iw_cm\]`)
	// starved is what a kernel says whose emulated processor had to wait for a real one.
	starved = regexp.MustCompile(`\] (clocksource|hrtimer|perf): `)
)

// judgeLog looks for what the guest's kernel should not have said.
func judgeLog(lines []string) error {
	var errs []error
	for _, l := range lines {
		if complaint(l) {
			errs = append(errs, fmt.Errorf("the guest's kernel says: %s", l))
		}
	}
	return errors.Join(append(errs, broke(strings.Join(lines, "\n")))...)
}

// broke looks for a known fault of the guest's kernel in its log or on its console.
func broke(text string) error {
	if brokeAt.MatchString(text) {
		return errGuestBroke
	}
	return nil
}

// complaint tells whether a line of the kernel's log is a warning or worse. The priority
// stands in front: <6> informs, <4> warns.
func complaint(line string) bool {
	return len(line) > 2 && line[0] == '<' && line[1] <= '4' && line[2] == '>' && !starved.MatchString(line)
}

package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// report writes what the runs showed to a file.
func (m *work) report(file string) error {
	v, err := hostVersions(m.runner.softrdma)
	if err != nil {
		return err
	}
	v.Guest = m.guest
	var b strings.Builder
	writeReport(&b, m.done, v, m.o, time.Now())
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

const reportHead = `# Interop with Linux siw

Written by ` + "`make interop-full`" + `; do not edit. Each run puts softrdma and a program of rdma-core on Linux siw, the kernel's
software iWARP, on one link, and passes only if

- both programs end well and found the data right, and the guest's kernel logged no warning;
- our decoder, which shares no code with the stack, explains every octet of the capture, finds none of our own rules broken, no
  Terminate, the CRC in use as asked for, and exactly the messages that the program exchanges;
- tshark finds as many FPDUs, none malformed, none with a bad CRC, and softrdma has counted as many;
- the SYNs announce the segment size of the link;
- the run went over the backend that was asked for, as seen from outside: by the address that spoke, by what tcpdump sees on the
  interface (all of it with the packet and kernel backends, nothing with AF_XDP), and by the XDP program on the link and its mode.
  On the packet backend tcpdump's capture holds the same FPDUs as softrdma's own; beside AF_XDP the guest still reaches the
  host's kernel.

The guests are siw as its source stands (*siw*: no CRC unless asked, client/server model) and a build with mpa_crc_required and
peer_to_peer (*siw-strict*). CRC on and off says what softrdma asks for. A load is connections x messages each way on each x
octets of a message; rping's messages are pings.

`

const reportLimits = `## What cannot be run

- rdma_server takes no address and listens on IPv4 alone, so there is no run of our client against it over IPv6.
- ucmatose's server speaks first. With the plain siw as client, which is in the client/server model of MPA, a responder must not
  (RFC 5044, Section 7.1.2), and softrdma does not: these runs pass if nothing is sent in one second, and are marked *held*.
  siw itself, as a responder, does not keep the rule. With *siw-strict*, which is peer-to-peer, the program runs as usual.
- More than 36 connections in one ucmatose with up to 32 messages: siw's user library takes the offset at which it would map the
  145th page of queues for a failure (SIW_INVAL_UOBJ_KEY). With 130 messages no queue begins at that page.
- XDP runs in copy mode: a tap device has no zero-copy.
`

// writeReport writes the whole text.
func writeReport(w io.Writer, done []Outcome, v Versions, o Options, at time.Time) {
	fmt.Fprint(w, reportHead)
	pair := func(what, is string) { fmt.Fprintf(w, "| %s | %s |\n", what, is) }
	fmt.Fprint(w, "| | |\n|---|---|\n")
	pair("date", at.UTC().Format("2006-01-02"))
	pair("softrdma", v.Revision)
	pair("guest's kernel, and source of siw", fmt.Sprintf("Linux %s; %s", v.Guest["kernel"], sources(v.Guest)))
	pair("guest's programs", fmt.Sprintf("rdma-core %s", v.Guest["rdmacm-utils"]))
	pair("host", v.Host)
	pair("virtual machine", fmt.Sprintf("%s, accelerator %s", v.Machine, o.Accel))
	failed := 0
	for _, d := range done {
		if d.Err != nil {
			failed++
		}
	}
	fmt.Fprintf(w, "\n**%d runs: %d passed, %d failed.**\n", len(done), len(done)-failed, failed)
	for _, kind := range kinds {
		fmt.Fprintf(w, "\n## Guest %s\n\n", kind)
		writeTable(w, slices.DeleteFunc(slices.Clone(done), func(d Outcome) bool { return d.Kind != kind }))
	}
	fmt.Fprint(w, "\n", reportLimits)
	writeFailures(w, done)
}

// sources names the package that siw was built from.
func sources(guest map[string]string) string {
	for name, version := range guest {
		if strings.HasPrefix(name, "linux-source-") {
			return name + " " + version
		}
	}
	return "unknown source"
}

// writeTable has a line for each way to carry a program's traffic, and a column for each
// load. A cell says how many of its runs have passed and how many FPDUs they had.
func writeTable(w io.Writer, done []Outcome) {
	fmt.Fprint(w, "| program | MTU | load | ours | "+strings.Join(columnsOf(done), " | ")+" |\n|---|---|---|---|"+strings.Repeat("---|", len(columnsOf(done)))+"\n")
	type line struct {
		program, role, held string
		mtu                 int
		load                Load
	}
	var lines []line
	cells := map[line]map[string][]Outcome{}
	for _, d := range done {
		l := line{program: d.guestProgram(), role: d.Role, mtu: d.MTU, load: d.Load}
		if d.Held() {
			l.held = " (held)"
		}
		if cells[l] == nil {
			lines, cells[l] = append(lines, l), map[string][]Outcome{}
		}
		cells[l][d.column()] = append(cells[l][d.column()], d)
	}
	for _, l := range lines {
		fmt.Fprintf(w, "| %s | %d | %v | %s%s |", l.program, l.mtu, l.load, l.role, l.held)
		for _, c := range columnsOf(done) {
			fmt.Fprintf(w, " %s |", cell(cells[l][c]))
		}
		fmt.Fprintln(w)
	}
}

func (d Outcome) column() string { return fmt.Sprintf("%s IPv%d", d.Backend, d.Family) }

// columnsOf are the columns that the runs need, in the matrix's order.
func columnsOf(done []Outcome) []string {
	var out []string
	for _, backend := range backends {
		for _, family := range families {
			c := Outcome{Row: Row{Backend: backend, Family: family}}.column()
			if slices.ContainsFunc(done, func(d Outcome) bool { return d.column() == c }) {
				out = append(out, c)
			}
		}
	}
	return out
}

// cell sums up the runs of one cell: with the CRC and without.
func cell(runs []Outcome) string {
	if len(runs) == 0 {
		return "-"
	}
	passed, fpdus := 0, 0
	for _, d := range runs {
		fpdus += d.FPDUs
		if d.Err == nil {
			passed++
		}
	}
	if passed < len(runs) {
		return fmt.Sprintf("**%d of %d**, %d FPDUs", passed, len(runs), fpdus)
	}
	return fmt.Sprintf("%d of %d, %d FPDUs", passed, len(runs), fpdus)
}

// writeFailures lists the runs that failed, and those that a fault of the guest's kernel
// made run again.
func writeFailures(w io.Writer, done []Outcome) {
	fmt.Fprint(w, "\n## Failures and repetitions\n\n")
	none := true
	for _, d := range done {
		if d.Repeated > 0 {
			fmt.Fprintf(w, "- %s: the guest's kernel broke %d times; run again on a fresh guest\n", d.name(), d.Repeated)
			none = false
		}
		if d.Err != nil {
			fmt.Fprintf(w, "- %s: %s\n", d.name(), strings.ReplaceAll(d.Err.Error(), "\n", "; "))
			none = false
		}
	}
	if none {
		fmt.Fprint(w, "None.\n")
	}
}

package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// outcome is a run in numbers.
type outcome struct {
	crc       bool
	took      time.Duration
	frames    uint64
	data      uint64
	lost      uint64
	twice     uint64
	fates     [fatesN]int
	fields    [fieldsN]int
	repeats   int
	due       int    // CRC terminations that the flips explain
	sent      int    // Terminates for a wrong CRC on the wire, of connections whose start was whole
	unmatched int    // directions where the one and the other differ
	startups  int    // connections whose start was hit
	startEnds int    // Terminates for a wrong CRC on those
	blind     int    // of those: markers were asked for by a flip, among which the ledger finds no Terminate
	others    int    // other Terminates, of connections whose start was whole
	resets    int    // of connections whose start was whole
	counted   uint64 // CRC errors that the devices count
	run       *run
	tasks     [kinds]uint64
	err       error
}

// account closes the ledger.
func (r *run) account() (o outcome) {
	t := r.tap
	t.mu.Lock()
	defer t.mu.Unlock()
	o.run, o.frames, o.data, o.lost, o.twice, o.err = r, t.frames, t.data, t.lost, t.twice, t.err
	o.fates[stale] = t.stale
	all := t.past
	for _, l := range t.live {
		all = append(all, l)
	}
	for _, l := range all {
		var fates [fatesN]int
		dueB, dueA := l.toB.verdict(&fates), l.toA.verdict(&fates)
		for _, f := range []*flow{&l.toB, &l.toA} {
			o.repeats += f.repeats
			for _, x := range f.flips {
				o.fields[x.field]++
			}
		}
		if fates[byStartup] > 0 {
			// The two sides may not even agree on where FPDUs begin.
			n := 0
			for _, k := range fates {
				n += k
			}
			o.fates[byStartup] += n
			o.startups++
			o.startEnds += l.toB.terms + l.toA.terms
			if l.toB.marked() || l.toA.marked() {
				o.blind++
			}
			continue
		}
		for i, k := range fates {
			o.fates[i] += k
		}
		o.others += l.toB.others + l.toA.others
		o.resets += l.resets
		for _, d := range []struct {
			due   bool
			terms int
			to    *flow
			name  string
		}{{dueB, l.toA.terms, &l.toB, "A to B"}, {dueA, l.toB.terms, &l.toA, "B to A"}} {
			want := 0
			if d.due {
				want = 1
			}
			o.due += want
			o.sent += d.terms
			if want != d.terms {
				o.unmatched++
				r.note("port %d to %d, %s: %d CRC terminations for flips %+v; A to B: %v; B to A: %v; %d resets", l.a, l.b, d.name, d.terms, d.to.flips, &l.toB, &l.toA, l.resets)
			}
		}
	}
	return o
}

func (o *outcome) flips() (n int) {
	for _, k := range o.fates {
		n += k
	}
	return n
}

// wrong says what speaks against the CRC, or against the ledger.
func (o *outcome) wrong() (list []string) {
	bad := func(is bool, format string, args ...any) {
		if is {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	r := o.run
	bad(o.err != nil, "%v", o.err)
	bad(r.wrong.Load() > 0, "%d deliveries of wrong octets", r.wrong.Load())
	bad(o.flips() == 0, "not one flip in %d frames: take more frames, or -every less", o.frames)
	bad(o.due != o.sent || o.unmatched > 0, "%d CRC terminations are due and %d were sent, %d of them elsewhere", o.due, o.sent, o.unmatched)
	least := uint64(o.due + o.startEnds)
	bad(o.counted < least || o.counted > least+2*uint64(o.blind), "the devices count %d CRC errors, and %d are due, or up to %d more on connections with markers", o.counted, least, 2*o.blind)
	// A listener's queue pair is gone when the message that opens a connection was hit.
	ends := int(r.crcEnds.Load())
	bad(ends > o.due+o.startEnds+2*o.blind || o.due+o.startEnds-ends > int(r.failed.Load()), "queue pairs report %d CRC terminations, %d are due", ends, o.due+o.startEnds)
	bad(o.others > 0, "%d Terminates for other reasons", o.others)
	return list
}

func (o *outcome) print(w io.Writer) {
	r := o.run
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(n any, what string) { fmt.Fprintf(t, "%v\t\t%s\n", n, what) }
	defer t.Flush()
	row(o.frames, fmt.Sprintf("frames, %d with payload, in %.1f s: %.0f a second", o.data, o.took.Seconds(), float64(o.frames)/o.took.Seconds()))
	row(o.lost, fmt.Sprintf("frames lost, %d doubled", o.twice))
	for i, n := range o.tasks {
		row(n, kindNames[i]+" done")
	}
	row(r.octets.Load(), "octets compared")
	row(r.conns.Load(), fmt.Sprintf("connections, %d more that did not come to be", r.failed.Load()))
	row(o.flips(), fmt.Sprintf("flips, repeated in %d further copies", o.repeats))
	for i, n := range o.fields {
		row(n, "  in "+fieldNames[i])
	}
	for i, n := range o.fates {
		row(n, "  "+fateNames[i])
	}
	row(o.due, "CRC terminations due")
	row(o.sent, "Terminates 0x2002 seen on the wire")
	row(o.counted, "CRC errors counted by the devices")
	row(r.crcEnds.Load(), "CRC terminations reported by queue pairs")
	row(o.startEnds, fmt.Sprintf("of these on the %d connections whose start was hit", o.startups))
	row(o.blind, "of those connections with markers, which nobody wanted")
	row(o.others, "Terminates for other reasons")
	row(o.resets, fmt.Sprintf("resets before both FINs; the slowest end took %v", r.slowest.Round(time.Millisecond)))
	row(r.wrong.Load(), "deliveries of wrong octets")
}

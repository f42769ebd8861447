package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// writeDump writes to a file what is known at the time of a failure.
func (e *end) writeDump(text string) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\ngo run ./test/soak %s\n\n", text, e.o.args())
	for _, l := range e.lanes {
		l.describe(&b)
	}
	st := e.dev.Stats()
	fmt.Fprintf(&b, "\n%d QPs, %d CQs, %d MRs, %d PDs, %d completions, %d lost\n", st.QPs, st.CQs, st.MRs, st.PDs, st.Completions, st.CompletionsLost)
	for _, c := range st.Counters {
		fmt.Fprintf(&b, "%-28s %d\n", c.Name, c.Value)
	}
	if out, err := exec.Command("ss", "-tnmie").CombinedOutput(); err == nil {
		fmt.Fprintf(&b, "\nthe kernel's connections:\n%s", out)
	}
	b.WriteString("\n" + goroutines())

	name := filepath.Join(e.o.Dump, fmt.Sprintf("soak-%d-%s.txt", os.Getpid(), sideName(e.side)))
	if err := os.WriteFile(name, []byte(b.String()), 0o644); err != nil {
		name = err.Error()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failures = append(e.failures, fmt.Sprintf("end %s: counters and goroutines are in %s", sideName(e.side), name))
}

// describe tells the state of a lane, as far as nobody changes it just now.
func (l *lane) describe(b *strings.Builder) {
	fmt.Fprintf(b, "lane %d: last progress %v ago, %q", l.num, time.Since(time.Unix(0, l.last.Load())).Round(time.Millisecond), *l.doing.Load())
	defer b.WriteString("\n")
	if !l.mu.TryLock() {
		b.WriteString(", busy")
		return
	}
	g := l.gen
	l.mu.Unlock()
	if g == nil {
		return
	}
	p := g.plan
	fmt.Fprintf(b, "\n  generation %d: %d rounds from a, %d from b, window %d, ends %v by a: %v, b: %v, in round %d",
		p.gen, p.rounds[0], p.rounds[1], p.window, p.how, p.by[0], p.by[1], p.at)
	if g.conn != nil {
		ird, ord := g.conn.ReadDepths()
		fmt.Fprintf(b, "\n  %v, %v, %v to %v, IRD %d, ORD %d", g.qp, g.qp.State(), g.conn.LocalAddr(), g.conn.RemoteAddr(), ird, ord)
	}
	if s := &g.out; s.mu.TryLock() {
		fmt.Fprintf(b, "\n  sends: rounds %d granted, %d begun, %d done, %d in all; %d requests have completed, %d have not: %+v",
			s.granted, s.begun, s.done, s.final, s.ledger.next, len(s.ledger.pending), s.ledger.pending[:min(len(s.ledger.pending), 3)])
		s.mu.Unlock()
	} else {
		b.WriteString("\n  sends: busy")
	}
	if v := &g.in; v.mu.TryLock() {
		fmt.Fprintf(b, "\n  receives: round %d, request %d, %d rounds in all; %d receives have completed, %d have not", v.now, v.op, v.final, v.ledger.next, len(v.ledger.pending))
		v.mu.Unlock()
	} else {
		b.WriteString("\n  receives: busy")
	}
}

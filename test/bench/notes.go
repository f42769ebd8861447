package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// text is the table with all that must be said beside it.
func (t *table) text(b *bench) string {
	var s strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	say("")
	if len(t.rows) > 0 {
		s.WriteString(t.grid())
		say("")
		say("Medians, %d round(s), %v a measurement. A ratio is ours divided by the other: of the medians, and the lowest and highest of a round.",
			b.options.rounds, b.options.each)
	}
	for _, r := range t.rows {
		if r.choices > 1 && r.OtherFrom != "" {
			say("%d: the best of %d was %s.", r.ID, r.choices, r.OtherFrom)
		}
		if strings.HasPrefix(r.OursFrom, "XDP") {
			say("%d: ours was %s.", r.ID, r.OursFrom)
		}
	}
	for _, r := range t.rows {
		if r.Why != "" {
			say("%d %s: %s", r.ID, r.Verdict, r.Why)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.data.failed)) {
		say("%s failed in %d of %d rounds: %s", name, len(b.data.failed[name]), len(b.data.values[name]), b.data.failed[name][0])
	}
	for _, d := range b.data.lost {
		say("The bad wire lost %d of %d frames from %s, in all its measurements together.", d.Lost, d.Frames, d.Name)
	}
	if n := len(b.data.checked); n > 0 {
		say("All data was compared in %d runs before the measurements: no wrong octet.", n)
	}
	s.WriteString(quietWords(b.data.rounds))
	if len(t.rows) > 0 {
		say("%s", t.words(b.options.quick))
	}
	return s.String()
}

// quietWords tells whether the figures can be believed.
func quietWords(rounds []conditions) string {
	var loud []string
	for _, c := range rounds {
		if len(c.NotQuiet) > 0 {
			loud = append(loud, fmt.Sprintf("  %s, round %d: %s\n", c.Wire, c.Round, strings.Join(c.NotQuiet, "; ")))
		}
	}
	switch {
	case len(rounds) == 0:
		return ""
	case len(loud) == 0:
		return "The host was quiet in all rounds.\n"
	}
	return fmt.Sprintf("NOT QUIET in %d of %d rounds: do not trust these figures.\n%s", len(loud), len(rounds), strings.Join(loud, ""))
}

// words count the verdicts.
func (t *table) words(quick bool) string {
	n := make(map[string]int)
	for _, r := range t.rows {
		n[r.Verdict]++
	}
	s := fmt.Sprintf("%d figures with a floor: %d reach the aim, %d the floor, %d MISS it", t.held, n[aimMet], n[floorMet], n[missed])
	if n[notThere] > 0 {
		s += fmt.Sprintf("; rows LEFT OUT: %d", n[notThere])
	}
	if n[broken] > 0 {
		s += fmt.Sprintf("; rows FAILED: %d", n[broken])
	}
	if quick {
		s += ". A quick run shows that it runs; its figures are of no use"
	}
	return s + "."
}

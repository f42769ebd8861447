package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// requirement is one line of testdata/conformance/requirements.tsv.
type requirement struct {
	id     string
	level  string // MUST, MUST NOT, SHOULD or MAY; with a p behind it: our own rule
	source string
	text   string
	waived string // why it does not apply here; empty: it does
}

// family is the letters of an ID.
func (r *requirement) family() string { return r.id[:3] }

// families are the families in the order of the report, with their titles.
var families = []struct{ name, title string }{
	{"MPA", "Framing over TCP (RFC 5044, RFC 6581)"},
	{"DDP", "Direct data placement (RFC 5041)"},
	{"RDM", "RDMA protocol (RFC 5040, RFC 7306)"},
	{"SEC", "Security (RFC 5042)"},
	{"IOP", "What known peers and programs do"},
	{"VRB", "Verbs and connection manager"},
}

// idForm finds the IDs in the name of a test, where a space stands as an underscore.
var idForm = regexp.MustCompile(`(?:MPA|DDP|RDM|SEC|IOP|VRB)-[0-9]+`)

var levels = []string{"MUST", "MUST NOT", "SHOULD", "MAY"}

// maxWaived bounds the requirements that may be put aside.
const maxWaived = 25

// readRequirements reads the list. Empty lines and those that begin with # are skipped.
func readRequirements(r io.Reader) ([]requirement, error) {
	var list []requirement
	seen := map[string]bool{}
	waived := 0
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) == 4 {
			f = append(f, "")
		}
		if len(f) != 5 || slices.Contains(f[:4], "") {
			return nil, fmt.Errorf("line %d: an ID, a level, a source and a requirement are due, and maybe a reason, with tabs between them: %q", n, line)
		}
		q := requirement{f[0], f[1], f[2], f[3], f[4]}
		switch {
		case idForm.FindString(q.id) != q.id:
			return nil, fmt.Errorf("line %d: %q is no ID", n, q.id)
		case seen[q.id]:
			return nil, fmt.Errorf("line %d: %s stands here twice", n, q.id)
		case !slices.Contains(levels, strings.TrimSuffix(q.level, " p")):
			return nil, fmt.Errorf("line %d: %q is no level", n, q.level)
		}
		seen[q.id] = true
		if q.waived != "" {
			waived++
		}
		list = append(list, q)
	}
	if waived > maxWaived {
		return nil, fmt.Errorf("%d requirements are said not to apply, %d may be: test some of them", waived, maxWaived)
	}
	if len(list) == 0 {
		return nil, cmp.Or(lines.Err(), errors.New("no requirements"))
	}
	return list, lines.Err()
}

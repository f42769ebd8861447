package main

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
)

type result uint8

const (
	open   result = iota // no test, or none that ran
	passed               // some passed and none failed
	failed
	waived // does not apply
)

var resultNames = [...]string{"open", "passed", "failed", "not applicable"}

func (r result) String() string { return resultNames[r] }

// event is one line of go test -json (see cmd/test2json).
type event struct {
	Action  string
	Package string
	Test    string
}

// results are the tests of a run by their names, "package.Test/Subtest".
type results struct {
	tests  map[string]result // open: skipped, or never ended
	broken []string          // packages that failed to build, or ended before their tests
}

// readResults reads what go test -json said.
func readResults(r io.Reader) (*results, error) {
	res := &results{tests: map[string]result{}}
	failedIn := map[string]bool{}
	d := json.NewDecoder(r)
	for {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			slices.Sort(res.broken)
			return res, nil
		} else if err != nil {
			return nil, err
		}
		if e.Test == "" {
			if e.Action == "fail" && !failedIn[e.Package] {
				res.broken = append(res.broken, e.Package)
			}
			continue
		}
		name := e.Package + "." + e.Test
		switch e.Action {
		case "run", "skip":
			res.tests[name] = open
		case "pass":
			res.tests[name] = passed
		case "fail":
			res.tests[name], failedIn[e.Package] = failed, true
		}
	}
}

// settle makes a test that passed only because all of its subtests were skipped a
// skipped one: it has shown nothing.
func (res *results) settle() {
	names := make([]string, 0, len(res.tests))
	for name := range res.tests {
		names = append(names, name)
	}
	// Subtests before their parents: the parents' verdicts rest on theirs.
	slices.SortFunc(names, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	type kids struct{ all, shown int }
	of := map[string]*kids{}
	for _, name := range names {
		if k := of[name]; k != nil && k.shown == 0 && res.tests[name] == passed {
			res.tests[name] = open
		}
		if i := strings.LastIndexByte(name, '/'); i >= 0 {
			k := of[name[:i]]
			if k == nil {
				k = &kids{}
				of[name[:i]] = k
			}
			k.all++
			if res.tests[name] != open {
				k.shown++
			}
		}
	}
}

// evidence is a test that names a requirement.
type evidence struct {
	test   string // without the module's path
	result result
}

// find maps IDs to the tests that name them. Where a test names an ID its subtests are
// part of it and do not stand for themselves.
func (res *results) find(module string) map[string][]evidence {
	found := map[string][]evidence{}
	for name, r := range res.tests {
		parent := ""
		own := name
		if i := strings.LastIndexByte(name, '/'); i >= 0 {
			parent, own = name[:i], name[i:]
		}
		inherited := idForm.FindAllString(parent, -1)
		ids := idForm.FindAllString(own, -1)
		slices.Sort(ids)
		for _, id := range slices.Compact(ids) {
			if !slices.Contains(inherited, id) {
				found[id] = append(found[id], evidence{strings.TrimPrefix(strings.TrimPrefix(name, module), "/"), r})
			}
		}
	}
	for _, list := range found {
		slices.SortFunc(list, func(a, b evidence) int { return strings.Compare(a.test, b.test) })
	}
	return found
}

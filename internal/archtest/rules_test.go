package archtest

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Module is the path of the module whose law this is.
const Module = "github.com/softrdma/softrdma"

// downward says which rooms of the module the code of a room may import. A
// room's sub-packages follow the same line unless they have their own. What is
// not listed may be imported by nobody but itself, and must be given a line.
var downward = map[string][]string{
	// protocol column
	"mpa":   {"mempool", "internal/ring", "internal/crc32c"},
	"ddp":   {"mpa", "mempool", "internal/ring"},
	"rdmap": {"ddp", "mpa", "mempool", "internal/ring"},
	// I/O column
	"mempool":  {},
	"pktio":    {"mempool", "internal/cacheline"},
	"netstack": {"pktio", "mempool", "internal/yield"},
	// the API, and where the columns meet
	"internal/ring":  {},
	"internal/yield": {},
	"verbs":          {"internal/ring", "internal/yield"},
	"verbs/rdmacm":   {"verbs"},
	"verbs/iwarp":    {"verbs", "rdmap", "ddp", "mpa", "netstack", "pktio", "mempool", "internal/ring", "internal/yield"},
	// around it
	"internal/crc32c":    {},
	"internal/cacheline": {},
	"internal/capture":   {"pktio", "mempool"}, // a second opinion shares nothing with the protocol column
	"internal/simnet":    {"netstack", "mpa", "pktio", "mempool"},
	"internal/wiretest":  {}, // likewise
	"internal/leakcheck": {"mempool"},
	"internal/archtest":  {},
	"test": {"internal/wiretest", "internal/simnet", "internal/leakcheck", "internal/capture",
		"verbs", "verbs/rdmacm", "verbs/iwarp", "rdmap", "ddp", "mpa", "netstack", "pktio", "mempool"},
	"cmd": {"verbs", "verbs/rdmacm", "verbs/iwarp", "internal/capture", "pktio", "netstack", "cmd"},
}

// outside says who may import a library: rooms (with their sub-packages). Tests
// of any room may, where test is set.
var outside = map[string]struct {
	rooms []string
	test  bool
}{
	"gvisor.dev":                 {rooms: []string{"netstack"}},
	"golang.org/x/sys":           {rooms: []string{"pktio", "mempool", "netstack", "internal/ring", "internal/crc32c", "cmd", "test"}, test: true},
	"golang.org/x/net":           {rooms: []string{"pktio"}, test: true},
	"github.com/google/gopacket": {rooms: []string{"internal/capture", "internal/wiretest", "cmd", "test"}, test: true},
	"github.com/cilium/ebpf":     {rooms: []string{"pktio", "cmd", "test"}, test: true},
	"github.com/spf13":           {rooms: []string{"cmd"}},
	"github.com/vishvananda":     {rooms: []string{"cmd", "test"}, test: true},
	"github.com/HdrHistogram":    {rooms: []string{"cmd", "test"}, test: true},
}

// testOnly are the packages that exist for tests: they may import testing. The
// table above lets no product code import them; "test" is the tools that test the
// whole against other implementations.
var testOnly = []string{"internal/leakcheck", "internal/wiretest", "internal/simnet", "internal/archtest"}

// interfaces are all exported interface types of the stack. Each has several
// real implementations; the rest is concrete.
var interfaces = []string{"mpa.ByteStream", "pktio.Port"}

// stack are the rooms in which interfaces are counted, with their sub-packages.
var stack = []string{"mpa", "ddp", "rdmap", "netstack", "pktio", "mempool", "verbs"}

// file is what the law looks at in one source file.
type file struct {
	name       string   // path in the module
	imports    []string // as written
	interfaces []string // exported interface types declared
}

func (f *file) test() bool { return strings.HasSuffix(f.name, "_test.go") }

func (f *file) pkg() string { return path.Dir(f.name) }

// within reports whether pkg is room or below it.
func within(pkg, room string) bool {
	return pkg == room || strings.HasPrefix(pkg, room+"/")
}

func withinAny(pkg string, rooms []string) bool {
	return slices.ContainsFunc(rooms, func(r string) bool { return within(pkg, r) })
}

// room returns the longest line of the table that covers pkg.
func room(pkg string) (string, bool) {
	for p := pkg; p != "." && p != "/"; p = path.Dir(p) {
		if _, ok := downward[p]; ok {
			return p, true
		}
	}
	return "", false
}

// breaches returns what in f is against the law, one sentence each.
func breaches(f *file) (b []string) {
	say := func(format string, args ...any) {
		b = append(b, f.name+": "+fmt.Sprintf(format, args...))
	}
	home, known := room(f.pkg())
	if !known && !f.test() {
		say("package %s has no line in the import law", f.pkg())
	}
	for _, imp := range f.imports {
		if imp == "C" {
			say("imports C")
			continue
		}
		if sub, ok := strings.CutPrefix(imp, Module+"/"); ok {
			if target, ok := room(sub); !f.test() && known && ok && !within(f.pkg(), target) && !slices.Contains(downward[home], target) {
				say("%s may not import %s", home, sub)
			} else if !f.test() && !ok {
				say("imports %s, which has no line in the import law", sub)
			}
			continue
		}
		for lib, rule := range outside {
			if within(imp, lib) && !withinAny(f.pkg(), rule.rooms) && (!rule.test || !f.test()) {
				say("%s belongs in %s", imp, strings.Join(rule.rooms, ", "))
			}
		}
		if !f.test() && (imp == "testing" || strings.HasPrefix(imp, "testing/")) && !slices.Contains(testOnly, f.pkg()) {
			say("imports %s outside of tests", imp)
		}
		if !f.test() && strings.Contains(imp, ".") && home == "verbs" {
			say("verbs imports the standard library and internal/ring alone, not %s", imp)
		}
	}
	if withinAny(f.pkg(), stack) && !f.test() {
		for _, name := range f.interfaces {
			if q := path.Base(f.pkg()) + "." + name; !slices.Contains(interfaces, q) {
				say("exported interface %s: there are only %s", q, strings.Join(interfaces, " and "))
			}
		}
	}
	return b
}

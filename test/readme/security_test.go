package readme

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSecurityManual: docs/security.md says what RFC 5042 leaves to the application.
func TestSecurityManual(t *testing.T) {
	text, err := os.ReadFile("../../docs/security.md")
	require.NoError(t, err)
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "(docs/security.md)", "README points to it")
	words := strings.Join(strings.Fields(string(text)), " ")
	for _, c := range []struct {
		name string
		says []string
	}{
		{"SEC-18 no stale data for remote reads", []string{"Offer no stale data", "clear it first", "`WC.ByteLen` octets only"}},
		{"SEC-19 take the right back, then trust", []string{"Take the right back before you trust", "Close the region or window, or copy the data, then check, then use"}},
		{"SEC-20 no right that is not needed", []string{"Give the right that is needed and no other", "smallest range, for the shortest time"}},
		{"SEC-23 no overlap between peers that distrust each other", []string{"a protection domain each, writable regions that do not overlap"}},
		{"SEC-29 no shared completion queue either", []string{"no shared completion queue and no shared receive queue"}},
		{"SEC-30 the size of completion queues", []string{"`CQ.Demand` must not be above `CQ.Cap`", "logs a warning"}},
		{"SEC-48 nothing authenticates or encrypts; IPsec under TCP does", []string{"No layer of iWARP authenticates or encrypts", "RFC 5042 (and RFC 7146) is IPsec: ESP under TCP", "TLS between TCP and MPA is not iWARP"}},
		{"SEC-49 the CRC finds accidents", []string{"is on by default and finds accidents, not attacks"}},
		{"SEC-50 what is left to TCP", []string{"leaves TCP's sequence numbers and the defence against forged resets to the kernel", "No listener uses SO_REUSEPORT"}},
		{"SEC-51 authenticate first", []string{"Authenticate before you expose memory"}},
		{"SEC-53 who may connect", []string{"before any queue pair, region or receive is bound to it"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, s := range c.says {
				require.Contains(t, words, s)
			}
		})
	}
}

// sources calls look with every Go file of the module, as a tree; the program in the
// README is one too.
func sources(t *testing.T, look func(name string, set *token.FileSet, f *ast.File)) {
	set := token.NewFileSet()
	root := "../.."
	require.NoError(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && (e.Name() == ".git" || e.Name() == "testdata" || e.Name() == "bin") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		look(filepath.ToSlash(name), set, f)
		return err
	}))
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	_, program, _ := strings.Cut(string(text), "```go\n")
	program, _, _ = strings.Cut(program, "```")
	f, err := parser.ParseFile(set, "README.md", program, parser.SkipObjectResolution)
	require.NoError(t, err)
	look("README.md example", set, f)
}

// TestListenersAreAlone: SEC-50.
func TestListenersAreAlone(t *testing.T) {
	t.Run("SEC-50 no socket shares its port with another process", func(t *testing.T) {
		files := 0
		sources(t, func(name string, set *token.FileSet, f *ast.File) {
			files++
			ast.Inspect(f, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && (id.Name == "SO_REUSEPORT" || strings.HasPrefix(id.Name, "SetReusePort")) {
					t.Errorf("%s: %s", set.Position(id.Pos()), id.Name)
				}
				return true
			})
		})
		require.Greater(t, files, 100)
	})
}

// both are the places that give a region both remote read and remote write, and what
// the peer does with the two.
var both = map[string]string{
	"verbs/iwarp/example_test.go ExampleOpen_oneSided": "writes, then reads back what it wrote",
	"cmd/softrdma/internal/demo/transfer.go transfers": "shows every operation on one region",
	"test/soak/memory.go rights":                       "the target is written and read back",
	"test/corruption/lane.go newEnd":                   "every operation works on it",
	"test/lifetimes/traffic.go rights":                 "written and read back",
	"verbs/iwarp/main_test.go newEnd":                  "the fixture of every operation",
}

// copied reports whether people copy from a file: an example, a command, a tool, or
// the fixture of the tests. What tests the checks themselves is another matter.
func copied(name string) bool {
	return strings.Contains(name, "example") || strings.HasPrefix(name, "cmd/") || strings.HasPrefix(name, "test/") || strings.HasSuffix(name, "/main_test.go") && strings.HasPrefix(name, "verbs/")
}

// TestRightsInExamples: SEC-20, programs that people copy from give no right that is
// not used.
func TestRightsInExamples(t *testing.T) {
	found := map[string]bool{}
	sources(t, func(name string, _ *token.FileSet, f *ast.File) {
		if !copied(name) {
			return
		}
		for _, d := range f.Decls {
			for where, n := range declared(d) {
				if grantsBoth(n) {
					found[name+" "+where] = true
				}
			}
		}
	})
	t.Run("SEC-20 remote read and remote write are given together only where both are used", func(t *testing.T) {
		for at := range found {
			require.NotEmpty(t, both[at], "%q gives a region both rights: give one, or say in this test what for", at)
		}
	})
	for at := range both {
		require.True(t, found[at], "%q is in the list and not in the tree", at)
	}
}

// declared yields the parts of a declaration that have names.
func declared(d ast.Decl) map[string]ast.Node {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return map[string]ast.Node{d.Name.Name: d}
	case *ast.GenDecl:
		m := map[string]ast.Node{}
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok {
				m[v.Names[0].Name] = v
			}
		}
		return m
	}
	return nil
}

// grantsBoth reports whether n has an expression of flags joined by | in which both
// rights are.
func grantsBoth(n ast.Node) (yes bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if b, ok := n.(*ast.BinaryExpr); ok && b.Op == token.OR {
			var names []string
			ast.Inspect(b, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					names = append(names, id.Name)
				}
				return true
			})
			yes = yes || slices.Contains(names, "AccessRemoteRead") && slices.Contains(names, "AccessRemoteWrite")
		}
		return !yes
	})
	return yes
}

// TestZeroedForReads: SEC-18, what examples offer for remote read comes from AllocMR,
// which gives zeroed memory.
func TestZeroedForReads(t *testing.T) {
	t.Run("SEC-18 no example registers memory of its own for remote read", func(t *testing.T) {
		looked := 0
		sources(t, func(name string, set *token.FileSet, f *ast.File) {
			if !strings.Contains(name, "example") && !strings.HasPrefix(name, "cmd/") {
				return
			}
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				sel, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || sel.Sel.Name != "AllocMR" && sel.Sel.Name != "RegMR" || len(call.Args) != 2 {
					return true
				}
				looked++
				if sel.Sel.Name == "RegMR" && strings.Contains(fmt.Sprint(idents(call.Args[1])), "AccessRemoteRead") {
					t.Errorf("%s: RegMR for remote read", set.Position(call.Pos()))
				}
				return true
			})
		})
		require.Greater(t, looked, 5)
	})
}

func idents(n ast.Node) (names []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			names = append(names, id.Name)
		}
		return true
	})
	return names
}

package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every file of the module, whatever its build tags, keeps the law.
func TestLaw(t *testing.T) {
	files := sources(t)
	require.NotEmpty(t, files)
	for i := range files {
		for _, b := range breaches(&files[i]) {
			t.Error(b)
		}
	}
}

// What a package links is more than what it imports.
func TestLinks(t *testing.T) {
	deps := links(t)
	for _, c := range []struct {
		pkg, not, why string
	}{
		{"verbs", "gvisor.dev", "a thin client links no stack"},
		{"verbs/rdmacm", "gvisor.dev", "a thin client links no stack"},
		{"verbs", "golang.org", "verbs is the standard library and rings"},
		{"verbs/iwarp", "github.com/google/gopacket", "it costs start-up time: load it where a capture is asked for"},
		{"verbs/iwarp", "testing", "product code does not link testing"},
		{"cmd/softrdma", "testing", "product code does not link testing"},
		{"rdmap", "gvisor.dev", "the protocol column is pure"},
	} {
		for _, d := range deps[Module+"/"+c.pkg] {
			if within(d, c.not) {
				t.Errorf("%s links %s: %s", c.pkg, d, c.why)
			}
		}
	}
}

// The law can be broken: each rule is shown to bite, and to spare what it should.
func TestBreaches(t *testing.T) {
	for _, c := range []struct {
		name string
		f    file
		want string // part of the only breach; empty: none
	}{
		{"down", file{name: "rdmap/tx.go", imports: []string{Module + "/ddp", Module + "/mpa", "errors"}}, ""},
		{"up", file{name: "mpa/rx.go", imports: []string{Module + "/ddp"}}, "mpa may not import ddp"},
		{"sideways", file{name: "mpa/rx.go", imports: []string{Module + "/netstack"}}, "mpa may not import netstack"},
		{"I/O column does not know the protocol", file{name: "netstack/conn.go", imports: []string{Module + "/mpa"}}, "netstack may not import mpa"},
		{"verbs and its transport", file{name: "verbs/qp.go", imports: []string{Module + "/verbs/iwarp"}}, "verbs may not import verbs/iwarp"},
		{"verbs and rings", file{name: "verbs/qp.go", imports: []string{Module + "/internal/ring", "sync"}}, ""},
		{"verbs and a library", file{name: "verbs/qp.go", imports: []string{"example.org/x"}}, "standard library"},
		{"verbs' tests and a library", file{name: "verbs/qp_test.go", imports: []string{"github.com/stretchr/testify/require", "testing"}}, ""},
		{"tests may look up", file{name: "mpa/rx_test.go", imports: []string{Module + "/internal/simnet"}}, ""},
		{"gvisor at home", file{name: "netstack/user.go", imports: []string{"gvisor.dev/gvisor/pkg/tcpip"}}, ""},
		{"gvisor abroad", file{name: "pktio/packet.go", imports: []string{"gvisor.dev/gvisor/pkg/tcpip"}}, "belongs in netstack"},
		{"gvisor abroad in a test", file{name: "mpa/a_test.go", imports: []string{"gvisor.dev/gvisor/pkg/tcpip"}}, "belongs in netstack"},
		{"x/sys at home", file{name: "internal/ring/memfd_linux.go", imports: []string{"golang.org/x/sys/unix"}}, ""},
		{"x/sys abroad", file{name: "verbs/iwarp/open.go", imports: []string{"golang.org/x/sys/unix"}}, "belongs in pktio"},
		{"x/sys in a test", file{name: "verbs/iwarp/open_test.go", imports: []string{"golang.org/x/sys/unix"}}, ""},
		{"a name that only begins alike", file{name: "verbs/iwarp/open.go", imports: []string{"golang.org/x/sysfoo"}}, ""},
		{"gopacket at home", file{name: "internal/capture/layers.go", imports: []string{"github.com/google/gopacket/layers"}}, ""},
		{"gopacket in a command", file{name: "cmd/softrdma/dump.go", imports: []string{"github.com/google/gopacket"}}, ""},
		{"gopacket abroad", file{name: "pktio/pipe.go", imports: []string{"github.com/google/gopacket"}}, "belongs in internal/capture"},
		{"cgo", file{name: "pktio/xdp.go", imports: []string{"C"}}, "imports C"},
		{"cgo in a test", file{name: "pktio/xdp_test.go", imports: []string{"C"}}, "imports C"},
		{"testing in product code", file{name: "mpa/rx.go", imports: []string{"testing"}}, "outside of tests"},
		{"testing/fstest in product code", file{name: "cmd/softrdma/main.go", imports: []string{"testing/fstest"}}, "outside of tests"},
		{"testing in a test-only package", file{name: "internal/leakcheck/main.go", imports: []string{"testing"}}, ""},
		{"product code and a test-only package", file{name: "verbs/iwarp/open.go", imports: []string{Module + "/internal/leakcheck"}}, "may not import internal/leakcheck"},
		{"unknown package", file{name: "util/x.go"}, "no line in the import law"},
		{"import of an unknown package", file{name: "mpa/rx.go", imports: []string{Module + "/util"}}, "no line in the import law"},
		{"sub-package follows its room", file{name: "netstack/fake/x.go", imports: []string{Module + "/mpa"}}, "netstack may not import mpa"},
		{"a room and its own sub-package", file{name: "cmd/softrdma/main.go", imports: []string{Module + "/cmd/softrdma/internal/perf"}}, ""},
		{"third interface", file{name: "ddp/table.go", interfaces: []string{"Buffer"}}, "exported interface ddp.Buffer"},
		{"the two", file{name: "pktio/port.go", interfaces: []string{"Port"}}, ""},
		{"interface in a test", file{name: "ddp/table_test.go", interfaces: []string{"Buffer"}}, ""},
		{"interface outside the stack", file{name: "internal/wiretest/x.go", interfaces: []string{"Buffer"}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := breaches(&c.f)
			if c.want == "" {
				require.Empty(t, b)
				return
			}
			require.Len(t, b, 1)
			require.Contains(t, b[0], c.want)
			require.True(t, strings.HasPrefix(b[0], c.f.name+": "))
		})
	}
}

func TestInterfacesOf(t *testing.T) {
	const src = `package p
type A interface{ M() }
type b interface{ M() }
type C struct{ x interface{ M() } }
type ( D[T any] interface{ M(T) }; E = interface{ M() } )
func f() { type G interface{ M() } }
`
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", src, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"A", "D", "E"}, interfacesOf(f))
}

// interfacesOf returns the exported interface types that f declares.
func interfacesOf(f *ast.File) (names []string) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, s := range g.Specs {
			ts := s.(*ast.TypeSpec)
			if _, ok := ts.Type.(*ast.InterfaceType); ok && ts.Name.IsExported() {
				names = append(names, ts.Name.Name)
			}
		}
	}
	return names
}

func root(t *testing.T) string {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	require.NoError(t, err)
	return filepath.Dir(strings.TrimSpace(string(out)))
}

// sources parses every Go file of the module. Nested modules, testdata and
// hidden folders are not part of it.
func sources(t *testing.T) (files []file) {
	top := root(t)
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p == top {
				return nil
			}
			_, nested := os.Stat(filepath.Join(p, "go.mod"))
			if name == "testdata" || name[0] == '.' || name[0] == '_' || nested == nil {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || name[0] == '.' || name[0] == '_' {
			return nil
		}
		src, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, p)
		if err != nil {
			return err
		}
		f := file{name: filepath.ToSlash(rel), interfaces: interfacesOf(src)}
		for _, s := range src.Imports {
			imp, err := strconv.Unquote(s.Path.Value)
			if err != nil {
				return err
			}
			f.imports = append(f.imports, imp)
		}
		files = append(files, f)
		return nil
	})
	require.NoError(t, err)
	return files
}

// links returns what each package of the module links, itself left out.
func links(t *testing.T) map[string][]string {
	cmd := exec.Command("go", "list", "-e", "-deps", "-json=ImportPath,Deps,CgoFiles,Standard", "./...")
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	require.NoError(t, err)
	deps := map[string][]string{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath string
			Deps       []string
			CgoFiles   []string
			Standard   bool
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return deps
		} else {
			require.NoError(t, err)
		}
		require.Empty(t, p.CgoFiles, p.ImportPath)
		if strings.HasPrefix(p.ImportPath, Module) {
			deps[p.ImportPath] = append([]string{}, p.Deps...)
		}
	}
}

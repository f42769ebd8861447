//go:build !softrdma_handoff

package netstack

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// Where the other tests run, segments are processed where they arrive.
func TestCanInline(t *testing.T) {
	require.True(t, canInline())
	w := newWire(t, Config{})
	require.NotNil(t, w.h.user.link.rx.inline)
}

// The version that was read is the one of go.mod.
func TestInlineVersion(t *testing.T) {
	var module struct{ Version string }
	require.NoError(t, json.Unmarshal(goTool(t, "list", "-m", "-json", "gvisor.dev/gvisor"), &module))
	require.Equal(t, module.Version, inlineVersion, "another gVisor: let TestGvisorIsAsRead tell what has changed, read that, and then change inlineVersion")
}

// gvisorTCP reads the package with which this one takes liberties, as built for this system.
func gvisorTCP(t *testing.T) (*token.FileSet, map[string]ast.Decl) {
	var pkg struct {
		Dir     string
		GoFiles []string
	}
	require.NoError(t, json.Unmarshal(goTool(t, "list", "-json=Dir,GoFiles", "gvisor.dev/gvisor/pkg/tcpip/transport/tcp"), &pkg))
	set := token.NewFileSet()
	decls := make(map[string]ast.Decl)
	for _, name := range pkg.GoFiles {
		file, err := parser.ParseFile(set, filepath.Join(pkg.Dir, name), nil, parser.SkipObjectResolution) // without comments
		require.NoError(t, err)
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				decls[funcName(d)] = d
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok {
						decls["type "+s.Name.Name] = &ast.GenDecl{Tok: token.TYPE, Specs: []ast.Spec{s}}
					}
				}
			}
		}
	}
	return set, decls
}

func funcName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	recv := d.Recv.List[0].Type
	if star, ok := recv.(*ast.StarExpr); ok {
		return "(*" + star.X.(*ast.Ident).Name + ")." + d.Name.Name
	}
	return recv.(*ast.Ident).Name + "." + d.Name.Name
}

// printed is the source of node, with single blanks between what it is made of.
func printed(t *testing.T, set *token.FileSet, node ast.Node) string {
	var b bytes.Buffer
	require.NoError(t, printer.Fprint(&b, set, node))
	var scan scanner.Scanner
	fresh := token.NewFileSet()
	scan.Init(fresh.AddFile("", fresh.Base(), b.Len()), b.Bytes(), nil, 0)
	var out strings.Builder
	for {
		_, tok, lit := scan.Scan()
		switch {
		case tok == token.EOF:
			return strings.NewReplacer("* ", "*", " . ", ".").Replace(strings.TrimSpace(out.String()))
		case tok == token.SEMICOLON && lit == "\n": // the end of a line
			lit = ""
		case lit == "":
			lit = tok.String()
		}
		out.WriteString(lit + " ")
	}
}

// signature is what a function takes, the receiver first, and returns, without the names.
func signature(t *testing.T, set *token.FileSet, d *ast.FuncDecl) string {
	types := func(lists ...*ast.FieldList) string {
		var all []string
		for _, list := range lists {
			if list == nil {
				continue
			}
			for _, f := range list.List {
				for range max(len(f.Names), 1) {
					all = append(all, printed(t, set, f.Type))
				}
			}
		}
		return "(" + strings.Join(all, ", ") + ")"
	}
	return types(d.Recv, d.Type.Params) + " " + types(d.Type.Results)
}

// wasLinked is what the functions that this package may call by their names are declared as. *segment and *segmentQueue
// are unsafe.Pointer here.
var wasLinked = map[string]string{
	"handleConnected":                  "(*Endpoint) ()",
	"(*Endpoint).handleSegmentsLocked": "(*Endpoint) (tcpip.Error)",
	"(*Endpoint).handleSegmentLocked":  "(*Endpoint, *segment) (bool, tcpip.Error)",
	"(*segmentQueue).dequeue":          "(*segmentQueue) (*segment)",
	"(*segmentQueue).empty":            "(*segmentQueue) (bool)",
	"(*segment).DecRef":                "(*segment) ()",
}

// The functions that are called by their names are declared in gVisor as they are here, and they are all in one file.
func TestLinkedDeclarations(t *testing.T) {
	set, decls := gvisorTCP(t)
	for name, want := range wasLinked {
		d, ok := decls[name].(*ast.FuncDecl)
		require.True(t, ok, "gVisor has no %s any more", name)
		require.Nil(t, d.Type.TypeParams, name)
		require.Equal(t, want, signature(t, set, d), name)
	}
	own := token.NewFileSet()
	file, err := parser.ParseFile(own, "inline_gvisor.go", nil, parser.ParseComments)
	require.NoError(t, err)
	ours := strings.NewReplacer("*tcp.Endpoint", "*Endpoint", "unsafe.Pointer", "*")
	theirs := strings.NewReplacer("*segmentQueue", "*", "*segment", "*")
	linked := 0
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body != nil {
			continue
		}
		require.NotNil(t, f.Doc, f.Name.Name)
		local, target, ok := strings.Cut(strings.TrimPrefix(f.Doc.List[len(f.Doc.List)-1].Text, "//go:linkname "), " ")
		require.True(t, ok, f.Name.Name)
		require.Equal(t, f.Name.Name, local)
		name, ok := strings.CutPrefix(target, "gvisor.dev/gvisor/pkg/tcpip/transport/tcp.")
		require.True(t, ok, target)
		want, ok := wasLinked[name]
		require.True(t, ok, "%s is not among those that were read", name)
		require.Equal(t, theirs.Replace(want), ours.Replace(signature(t, own, f)), name)
		linked++
	}
	require.GreaterOrEqual(t, linked, 5)
	all, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range all {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		if name != "inline_gvisor.go" && !strings.HasSuffix(name, "_test.go") {
			require.NotContains(t, string(b), "//go:linkname", name)
		}
	}
}

// The segments are where this package looks for them.
func TestSegmentQueueIsAField(t *testing.T) {
	f, ok := reflect.TypeFor[tcp.Endpoint]().FieldByName("segmentQueue")
	require.True(t, ok)
	require.Equal(t, "tcp.segmentQueue", f.Type.String())
	require.Equal(t, reflect.Struct, f.Type.Kind(), "it is in the endpoint, not somewhere else")
	require.Len(t, f.Index, 1, "and not in something that is embedded")
	require.Equal(t, f.Offset, queueAt)
	owner, ok := f.Type.FieldByName("ep")
	require.True(t, ok)
	s := newSpoken(t, inet4, Config{})
	ep := s.c.user.ep
	require.True(t, queueEmpty(queueOf(ep)))
	require.Nil(t, dequeue(queueOf(ep)))
	require.Equal(t, unsafe.Pointer(ep), *(*unsafe.Pointer)(unsafe.Add(queueOf(ep), owner.Offset)), "the queue knows its endpoint")
}

// wasRead is what gVisor's code was like, comments left out, when it was found that this package may do what it does; and
// what was found. Where one has changed, read it anew with that in mind.
var wasRead = map[string]struct{ sum, because string }{
	"handleConnected":                       {"a066fae97ced5613", "does all that comes with segments, takes the lock by trying, and leaves an endpoint alone that is not connected"},
	"(*Endpoint).handleSegmentsLocked":      {"76a8bcf45ee22e82", "what it does beside handleSegmentLocked may wait: ConfirmReachable, the acknowledgement, the keepalive timer"},
	"(*Endpoint).handleSegmentLocked":       {"0f6c2205b8a5c111", "needs the lock; octets and acknowledgements do not end an established connection"},
	"(*receiver).handleRcvdSegment":         {"24d97a48bc18cfe4", "acknowledges at once what is out of order or out of the window"},
	"(*receiver).consumeSegment":            {"1ab105b6171ff0e9", "acknowledges FIN at once, and octets not at all"},
	"(*sender).sendSegmentFromPacketBuffer": {"fdc27f7345dea349", "octets that are sent acknowledge all that was received"},
	"(*sender).sendEmptySegment":            {"e33888c465fd92e9", "so do segments without"},
	"(*sender).postXmit":                    {"911f71d1143be9a2", "begins the keepalive timer anew when all is acknowledged"},
	"(*Endpoint).LockUser":                  {"c1de63c42890ed0e", "makes the endpoint one that is owned by a user, and may have to wait for another one"},
	"(*Endpoint).UnlockUser":                {"eebe763dfe93dced", "wakes gVisor's goroutine if there are segments"},
	"(*Endpoint).TryLock":                   {"e6a70eb892dc4eda", "does not make the endpoint one that is owned by a user"},
	"(*Endpoint).ResumeWork":                {"1ea027fe9987764d", "unlocks, and leaves the owner"},
	"(*Endpoint).isOwnedByUser":             {"9df8917fe0fe40f9", "is what keeps gVisor's goroutine from being woken"},
	"(*Endpoint).Read":                      {"df95f35d13e4008e", "opens the window at once"},
	"(*Endpoint).enqueueSegment":            {"63cdce608c8faa56", "needs no lock"},
	"(*dispatcher).queuePacket":             {"b1723d4d1e05d59e", "queues a segment of an endpoint that is owned by a user and does no more"},
	"(*protocol).QueuePacket":               {"aa19eed798811b3f", "is queuePacket"},
	"(*processor).start":                    {"631945fa57b8a160", "is what is done here instead"},
	"(*segmentQueue).dequeue":               {"5eaeccc3106200eb", "gives its reference away"},
	"(*segmentQueue).empty":                 {"f111022cf8a04fde", "needs no lock"},
	"(*segmentQueue).enqueue":               {"71b2c2fed4e0c35e", "takes a reference of its own"},
	"(*segment).DecRef":                     {"1dcfa8ae8c25990f", "releases the segment"},
	"newIncomingSegment":                    {"6c28702e3621c37e", "needs a packet with both headers parsed, and takes a copy of it"},
	"startTimeWait":                         {"49483e0007fd68bd", "must not be called twice"},
	"EndpointState.connected":               {"4d9bbdbdecf7d815", "TIME_WAIT is among them, which has no business here"},
}

// What this package knows of gVisor beyond its documentation still holds.
func TestGvisorIsAsRead(t *testing.T) {
	set, decls := gvisorTCP(t)
	for name, was := range wasRead {
		d, ok := decls[name]
		require.True(t, ok, "gVisor has no %s any more", name)
		sum := sha256.Sum256([]byte(printed(t, set, d)))
		if now := hex.EncodeToString(sum[:8]); now != was.sum {
			t.Errorf("gVisor's %s has changed (%s). inline.go and inline_ack.go rely on this: %s. Read it with that in mind, and then write its new sum here", name, now, was.because)
		}
	}
}

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
	"gvisor.dev/gvisor/pkg/tcpip/header"
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

// gvisorPackage reads one of the packages with which this one takes liberties, as built for this system.
func gvisorPackage(t *testing.T, path string) (*token.FileSet, map[string]ast.Decl) {
	var pkg struct {
		Dir     string
		GoFiles []string
	}
	require.NoError(t, json.Unmarshal(goTool(t, "list", "-json=Dir,GoFiles", path), &pkg))
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
					one := &ast.GenDecl{Tok: d.Tok, Specs: []ast.Spec{s}}
					switch s := s.(type) {
					case *ast.TypeSpec:
						decls["type "+s.Name.Name] = one
					case *ast.ValueSpec:
						for _, n := range s.Names {
							decls[d.Tok.String()+" "+n.Name] = one
						}
					}
				}
			}
		}
	}
	return set, decls
}

const (
	inTCP    = "gvisor.dev/gvisor/pkg/tcpip/transport/tcp."
	inBuffer = "gvisor.dev/gvisor/pkg/buffer."
)

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

// wasLinked is what the functions and variables that this package may use by their names are declared as. Types that
// cannot be named here are unsafe.Pointer.
var wasLinked = map[string]string{
	inTCP + "handleConnected":                      "(*Endpoint) ()",
	inTCP + "(*Endpoint).handleSegmentsLocked":     "(*Endpoint) (tcpip.Error)",
	inTCP + "(*Endpoint).handleSegmentLocked":      "(*Endpoint, *segment) (bool, tcpip.Error)",
	inTCP + "(*segmentQueue).dequeue":              "(*segmentQueue) (*segment)",
	inTCP + "(*segmentQueue).empty":                "(*segmentQueue) (bool)",
	inTCP + "(*segment).DecRef":                    "(*segment) ()",
	inTCP + "(*sndQueueMutex).Lock":                "(*sndQueueMutex) ()",
	inTCP + "(*sndQueueMutex).Unlock":              "(*sndQueueMutex) ()",
	inTCP + "(*Endpoint).isEndpointWritableLocked": "(*Endpoint) (int, tcpip.Error)",
	inTCP + "newOutgoingSegment":                   "(stack.TransportEndpointID, tcpip.Clock, buffer.Buffer, uint32) (*segment)",
	inTCP + "(*protectedWriteList).PushBack":       "(*protectedWriteList, *segment) ()",
	inTCP + "(*receiver).getSendParams":            "(*receiver) (seqnum.Value, seqnum.Size)",
	inTCP + "(*sender).postXmit":                   "(*sender, bool, bool) ()",
	inTCP + "(*receiver).handleRcvdSegment":        "(*receiver, *segment) (bool, tcpip.Error)",
	inTCP + "(*sender).handleRcvdSegment":          "(*sender, *segment) ()",
	inTCP + "(*Endpoint).updateRecentTimestamp":    "(*Endpoint, uint32, seqnum.Value, seqnum.Value) ()",
	inTCP + "(*Endpoint).tsValNow":                 "(*Endpoint) (uint32)",
	inTCP + "(*Endpoint).recentTimestamp":          "(*Endpoint) (uint32)",
	inTCP + "(*Endpoint).sendData":                 "(*Endpoint, *segment) ()",
	inBuffer + "(*chunkRefs).InitRefs":             "(*chunkRefs) ()",
	inBuffer + "chunkPools":                        "[ numPools ] sync.Pool",
	inBuffer + "viewPool":                          "sync.Pool",
}

// What is used by its name is declared in gVisor as it is here, and in no other files than these.
func TestLinkedDeclarations(t *testing.T) {
	theirs := strings.NewReplacer("*segmentQueue", "*", "*receiver", "*", "*sender", "*", "*segment", "*", "*sndQueueMutex", "*", "*protectedWriteList", "*", "*chunkRefs", "*")
	decls := make(map[string]map[string]ast.Decl)
	for _, pkg := range []string{inTCP, inBuffer} {
		var set *token.FileSet
		set, decls[pkg] = gvisorPackage(t, strings.TrimSuffix(pkg, "."))
		for name, want := range wasLinked {
			name, ok := strings.CutPrefix(name, pkg)
			if !ok {
				continue
			}
			if v, ok := decls[pkg]["var "+name].(*ast.GenDecl); ok {
				s := v.Specs[0].(*ast.ValueSpec)
				if s.Type != nil {
					require.Equal(t, want, printed(t, set, s.Type), name)
				} else {
					require.Equal(t, want, printed(t, set, s.Values[0].(*ast.CompositeLit).Type), name)
				}
				continue
			}
			d, ok := decls[pkg][name].(*ast.FuncDecl)
			require.True(t, ok, "gVisor has no %s any more", name)
			require.Nil(t, d.Type.TypeParams, name)
			require.Equal(t, want, signature(t, set, d), name)
		}
	}
	linked := 0
	all, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range all {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		if !strings.HasSuffix(name, "_gvisor.go") {
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			require.NotContains(t, string(b), "//go:linkname", name)
			continue
		}
		linked += linkedIn(t, name, theirs)
	}
	require.Equal(t, len(wasLinked), linked)
}

// linkedIn compares what is linked in a file with wasLinked, and returns how much it is.
func linkedIn(t *testing.T, name string, theirs *strings.Replacer) (linked int) {
	ours := strings.NewReplacer("*tcp.Endpoint", "*Endpoint", "unsafe.Pointer", "*")
	own := token.NewFileSet()
	file, err := parser.ParseFile(own, name, nil, parser.ParseComments)
	require.NoError(t, err)
	for _, d := range file.Decls {
		var doc *ast.CommentGroup
		var local, is string
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Body != nil {
				continue
			}
			doc, local, is = d.Doc, d.Name.Name, ours.Replace(signature(t, own, d))
		case *ast.GenDecl:
			s, ok := d.Specs[0].(*ast.ValueSpec)
			if !ok || d.Doc == nil || !strings.Contains(d.Doc.List[len(d.Doc.List)-1].Text, "//go:linkname") {
				continue
			}
			doc, local, is = d.Doc, s.Names[0].Name, printed(t, own, s.Type)
		}
		require.NotNil(t, doc, local)
		here, target, ok := strings.Cut(strings.TrimPrefix(doc.List[len(doc.List)-1].Text, "//go:linkname "), " ")
		require.True(t, ok, local)
		require.Equal(t, local, here)
		want, ok := wasLinked[target]
		require.True(t, ok, "%s is not among those that were read", target)
		// Lists of receivers that share memory with what they are in have no type here.
		want = theirs.Replace(want)
		if target == inBuffer+"chunkPools" {
			want = strings.Replace(want, "numPools", "11", 1)
		}
		require.Equal(t, strings.ReplaceAll(want, " ", ""), strings.ReplaceAll(is, " ", ""), target)
		linked++
	}
	return linked
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
	"(*Endpoint).Write":                     {"51713df3ac79cd20", "is what queueChunk does instead, with queueSegment"},
	"(*Endpoint).queueSegment":              {"a451b122f016dc59", "adds to SndBufUsed and to the list what it makes a segment of, under both locks"},
	"(*Endpoint).isEndpointWritableLocked":  {"6b15380a960ec8d7", "says that there is no room only if there is none"},
	"newOutgoingSegment":                    {"90ea405181720bb1", "has the buffer then"},
	"(*sender).sendData":                    {"f9c10b18b4693be8", "is what quick does instead, with the four that follow, if the first segment it looks at is the last and can go as a whole"},
	"(*sender).maybeSendSegment":            {"d6bc4ec184dff6cc", "gives a segment SndNxt and ACK and PSH; neither Nagle nor cork is at work, and the window has room for it"},
	"(*sender).sendSegment":                 {"79909819f2861071", "notes when and how often"},
	"(*Endpoint).sendRaw":                   {"498884fff0e6bb82", "has no SACK option without pendingRcvdSegments"},
	"(*Endpoint).sendTCP":                   {"30f0b2ae7ea437d3", "counts"},
	"sendTCP":                               {"9964798bd277f160", "counts, too"},
	"buildTCPHdr":                           {"a60ba9a29a863e38", "has the sum of the pseudo header in the checksum for the port to finish"},
	"(*Endpoint).makeOptions":               {"5daa91bea1644c6f", "makes options of the timestamp, and of SACK"},
	"(*sender).pCount":                      {"fb87773599b1323a", "is how many segments count as outstanding"},
	"(*receiver).getSendParams":             {"5c2d234dab284ef8", "takes rcvQueueMu alone, and has the window told"},
	"(*Endpoint).updateRecentTimestamp":     {"e82f48301ca157fc", "may be called twice for a segment"},
	"(*Endpoint).tsValNow":                  {"cd9137472e3dd70e", "is what a timestamp option says"},
	"(*Endpoint).recentTimestamp":           {"d3f73a55484af7fb", "is what it echoes"},
	"type receiver":                         {"cbdacd822f820a2b", "is where pendingRcvdSegments is"},
	"type segmentHeap":                      {"e7a70947422459c0", "is a slice"},
	"(*Endpoint).sendData":                  {"db92edf38b4cf133", "begins with the segment if nothing before it waits"},
	"(*protectedWriteList).PushBack":        {"9470ce084ef9c25a", "needs the endpoint's lock"},
	"type protectedWriteList":               {"d97f8432f740d1d7", "is in the sender"},
	"type sndQueueInfo":                     {"a24c454eeaa426da", "begins with the lock"},
	"(*segment).merge":                      {"c7d4bd5e59684775", "moves views and does not write into memory that several may share"},
	"(*Endpoint).Readiness":                 {"231d48dbc9d32aca", "compares SndBufUsed and the buffer's size: more than full is full"},
	"buffer newChunk":                       {"b1091b9672ecc073", "takes the memory out of the pool, clears it and gives it its first reference"},
	"buffer (*chunk).destroy":               {"88a982ebbd1dfccb", "puts it into the pool of its length"},
	"buffer type chunk":                     {"7ae3e4ee26ce89be", "begins with its references"},
	"buffer type View":                      {"ce5500bd7aea67ea", "is what viewFields says"},
	"buffer NewView":                        {"f13bd99b84afdfef", "takes a view out of the pool and overwrites all of it"},
	"buffer (*View).Release":                {"b24a266eb6e0edc5", "forgets all and puts it back"},
	"buffer (*View).CapLength":              {"30ca6febb647d4d2", "leaves the chunk as it is"},
	"buffer type chunkRefs":                 {"943d541aea3b4099", "is the count alone"},
	"buffer (*chunkRefs).InitRefs":          {"d74d930fe140e0bf", "sets the count"},
	"(*segment).DecRef":                     {"1dcfa8ae8c25990f", "releases the segment"},
	"newIncomingSegment":                    {"6c28702e3621c37e", "needs a packet with both headers parsed, and takes a copy of it"},
	"startTimeWait":                         {"49483e0007fd68bd", "must not be called twice"},
	"EndpointState.connected":               {"4d9bbdbdecf7d815", "TIME_WAIT is among them, which has no business here"},
	"(*sender).handleRcvdSegment":           {"7b4bf457f98ea558", "takes the window of a segment before it counts duplicates, and no blocks it knows already; it measures the round trip by when the segment came, and needs of the receive half what was done before"},
	"(*sender).detectLoss":                  {"02c554b9bcc11722", "counts duplicates outside of recovery only, and begins none before the last one's end is acknowledged"},
	"(*sender).isDupAck":                    {"950d224f9dd27bb6", "asks for blocks that are new, for an acknowledgement and a window that are not"},
	"(*sender).shouldEnterRecovery":         {"a066e9f9276b62bf", "needs three duplicates, or what IsLost needs"},
	"(*sender).enterRecovery":               {"2e45d710e1ad2117", "takes the congestion window from Ssthresh"},
	"(*sender).leaveRecovery":               {"20e2ef50556ce0d7", "does so, too"},
	"(*sender).retransmitTimerExpired":      {"9ad38e7253878512", "notes in FastRecovery.Last what was under way, and begins anew with one segment"},
	"(*sender).NextSeg":                     {"567ffaeb53845d51", "looks for losses behind HighRxt, and cuts segments to one MSS"},
	"(*sender).SetPipe":                     {"dbf57032c3ce27ea", "goes through all that is under way"},
	"(*sackRecovery).DoRecovery":            {"03fad27fe29795bf", "goes on with any acknowledgement"},
	"(*sackRecovery).handleSACKRecovery":    {"e7c1c23d5c17f660", "sends what NextSeg says, one MSS at a time"},
	"(*SACKScoreboard).IsRangeLost":         {"9c25880651c55016", "takes two MSS beyond for a loss"},
	"(*renoState).HandleLossDetected":       {"87bdc558db8de5f8", "changes nothing but Ssthresh"},
	"(*renoState).reduceSlowStartThreshold": {"e2c3dcca8bdfdc82", "halves what is under way"},
	"initSender":                            {"8b4d741f614bf060", "makes sender and scoreboard, which stay"},
	"type sender":                           {"7ae9f7fbc3d8883c", "has its state in it, not a pointer to it, and writeNext and state"},
}

// The sender's state is where this package looks for it.
func TestSenderStateIsAField(t *testing.T) {
	s := newSpoken(t, inet4, Config{})
	ep := s.c.user.ep
	state, board := senderOf(ep)
	require.NotNil(t, state)
	ep.LockUser()
	defer ep.UnlockUser()
	require.Equal(t, s.una, uint32(state.SndUna))
	require.Equal(t, s.una, uint32(state.SndNxt))
	require.Equal(t, s.seq, uint32(state.MaxSentAck))
	require.Equal(t, header.TCPDefaultMSS, state.MaxPayloadSize, "the peer asked for no other")
	require.Equal(t, uint16(state.MaxPayloadSize), board.SMSS())
	require.True(t, board.Empty())
}

// What this package knows of gVisor beyond its documentation still holds.
func TestGvisorIsAsRead(t *testing.T) {
	set, decls := gvisorPackage(t, strings.TrimSuffix(inTCP, "."))
	memSet, memory := gvisorPackage(t, strings.TrimSuffix(inBuffer, "."))
	for name, was := range wasRead {
		d, ok := decls[name]
		set := set
		if n, of := strings.CutPrefix(name, "buffer "); of {
			d, ok = memory[n]
			set = memSet
		}
		require.True(t, ok, "gVisor has no %s any more", name)
		sum := sha256.Sum256([]byte(printed(t, set, d)))
		if now := hex.EncodeToString(sum[:8]); now != was.sum {
			t.Errorf("gVisor's %s has changed (%s). This package relies on this: %s. Read it with that in mind, and then write its new sum here", name, now, was.because)
		}
	}
}

// The fields are found, each of them where no other is.
func TestFieldsAreFound(t *testing.T) {
	needInline(t)
	at := fieldAt
	segment := []uintptr{at.seq, at.flags, at.window, at.options, at.sent, at.timesSent, at.data}
	for i, a := range segment {
		require.NotZero(t, a, i)
		require.NotContains(t, segment[:i], a)
	}
	require.NotZero(t, at.receiver)
	require.NotZero(t, at.writeNext)
	require.NotZero(t, at.congestion)
	require.NotZero(t, at.pending)
}

package wiretest_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/internal/capture"
	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/mempool"
	"github.com/softrdma/softrdma/mpa"
	"github.com/softrdma/softrdma/rdmap"
)

// replay is a ByteStream that hands out a recorded direction in small pieces and keeps
// what is written.
type replay struct {
	chunks  [][]byte
	written bytes.Buffer
}

func (r *replay) Peek() ([][]byte, error) {
	if len(r.chunks) == 0 {
		return nil, io.EOF
	}
	return r.chunks, nil
}

func (r *replay) Discard(n int) {
	for n > 0 {
		k := min(n, len(r.chunks[0]))
		r.chunks[0] = r.chunks[0][k:]
		if len(r.chunks[0]) == 0 {
			r.chunks = r.chunks[1:]
		}
		n -= k
	}
}

func (r *replay) Writev(parts [][]byte) error {
	for _, p := range parts {
		r.written.Write(p)
	}
	return nil
}

func (r *replay) Room() int         { return 1 << 20 }
func (r *replay) Stage() []byte     { return nil }
func (r *replay) Commit(int) error  { panic("nothing was lent") }
func (r *replay) MSS() int          { return 1448 }
func (r *replay) CloseWrite() error { return nil }
func (r *replay) Abort()            {}

// TestStackReadsSiw lets the stack's own parsers read what real siw peers said, and
// compares them field by field with the decoder, which was written apart from them. What
// they build again must be the same octets.
func TestStackReadsSiw(t *testing.T) {
	files, err := filepath.Glob("../../testdata/siw/*.pcap")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	total := 0
	for _, name := range files {
		t.Run("IOP-36 "+filepath.Base(name), func(t *testing.T) {
			f, err := os.Open(name)
			require.NoError(t, err)
			defer f.Close()
			s, err := capture.DecodeFile(f)
			require.NoError(t, err)
			for i, ses := range s.All {
				t.Run(fmt.Sprintf("connection %d initiator", i), func(t *testing.T) { total += flow(t, ses, &ses.Initiator) })
				t.Run(fmt.Sprintf("connection %d responder", i), func(t *testing.T) { total += flow(t, ses, &ses.Responder) })
			}
		})
	}
	require.Equal(t, 338, total)
}

// flow replays one direction and returns how many FPDUs it compared.
func flow(t *testing.T, ses *capture.Session, f *capture.Flow) int {
	sameStartup(t, f.Startup)
	pool, err := mempool.New(mempool.Config{Count: 4, Size: 256 << 10})
	require.NoError(t, err)
	defer func() { require.NoError(t, pool.Close()) }()
	r := &replay{chunks: wiretest.Chunks(f.Stream(), 700, 1)}
	c := mpa.NewConn(r, pool)
	defer c.Drop()
	if !open(t, c, ses, f) {
		require.Empty(t, f.FPDUs)
		return 0
	}
	r.written.Reset()
	for i := range f.FPDUs {
		u := &f.FPDUs[i]
		got, ok, err := c.Next()
		require.NoError(t, err)
		require.True(t, ok)
		b := make([]byte, got.Len())
		require.Equal(t, len(b), got.CopyTo(b, 0))
		require.Equal(t, u.MPA.Payload, b, "ULPDU %d", i)
		sameHeader(t, u, b)
		require.NoError(t, c.Write(b, nil))
	}
	_, _, err = c.Next()
	require.ErrorIs(t, err, io.EOF, "nothing is left over")
	require.NoError(t, c.Flush())
	require.True(t, bytes.Equal(cleanPadding(ses, f), r.written.Bytes()), "framed again: the same octets")
	return len(f.FPDUs)
}

// open brings a connection that reads f into FPDU mode, in the role of f's receiver.
func open(t *testing.T, c *mpa.Conn, ses *capture.Session, f *capture.Flow) bool {
	if f == &ses.Initiator {
		req, ok, err := c.RecvRequest(mpa.Config{})
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, ses.Initiator.Startup.ULPData(), append([]byte{}, req.Private...))
		if ses.Rejected {
			require.NoError(t, c.Reject(nil))
			return false
		}
		p, err := c.Accept(mpa.Config{NoCRC: !ses.CRC, IRD: 128, ORD: 128}, nil)
		require.NoError(t, err)
		require.Equal(t, ses.CRC, p.CRC)
		return true
	}
	e, _ := ses.Initiator.Startup.Enhanced()
	require.NoError(t, c.Request(mpa.Config{NoCRC: !ses.CRC, ClientServer: !e.A, OfferRTR: mpa.Kinds(mpa.RTRWrite, mpa.RTRRead), IRD: 128, ORD: 128}, nil))
	rep, ok, err := c.RecvReply()
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, ses.Rejected, rep.Rejected)
	return !rep.Rejected
}

func sameStartup(t *testing.T, s *capture.Startup) {
	f, n, err := mpa.ParseFrame(s.Contents)
	require.NoError(t, err)
	require.Equal(t, len(s.Contents), n)
	want := mpa.Frame{Reply: s.Reply, Markers: s.Markers, CRC: s.CRC, Reject: s.Reject, Enhanced: s.Enh, Res: s.Res, Rev: s.Rev, Private: s.ULPData()}
	if e, ok := s.Enhanced(); ok {
		want.PeerToPeer, want.RTRSend, want.RTRWrite, want.RTRRead, want.IRD, want.ORD = e.A, e.B, e.C, e.D, e.IRD, e.ORD
	}
	require.Equal(t, fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", f))
	again, err := f.Append(nil)
	require.NoError(t, err)
	require.Equal(t, s.Contents, again)
}

func sameHeader(t *testing.T, u *capture.FPDU, b []byte) {
	d := &u.DDP
	h, ok := ddp.ParseHeader(b)
	require.True(t, ok)
	require.Equal(t, d.Contents, []byte(h))
	require.Equal(t, []any{d.Tagged, d.Last, d.Version, d.Control}, []any{h.Tagged(), h.Last(), h.Version(), h.ULP()})
	again := make([]byte, len(h))
	if d.Tagged {
		require.Equal(t, []any{d.STag, d.TO}, []any{uint32(h.STag()), h.TO()})
		ddp.PutTagged(again, d.Last, d.Control, ddp.STag(d.STag), d.TO)
	} else {
		require.Equal(t, []uint32{d.InvSTag, d.QN, d.MSN, d.MO}, []uint32{h.ULPWord(), h.QN(), uint32(h.MSN()), h.MO()})
		ddp.PutUntagged(again, d.Last, d.Control, d.InvSTag, d.QN, ddp.MSN(d.MSN), d.MO)
	}
	require.Equal(t, d.Contents, again)
	if want := u.RDMAP.Terminate; want != nil {
		got := rdmap.ParseTerminate(b[len(h):])
		require.Equal(t, []any{want.Layer, want.EType, want.Code, want.Swapped, want.SegLen, want.DDPHeader, want.ReadHeader},
			[]any{got.Layer, got.Type, got.Code, got.Swapped, got.SegLen, got.DDPHeader, got.ReadHeader})
	}
}

// cleanPadding is the direction as a careful sender would have framed it: siw leaves old
// octets in some padding.
func cleanPadding(ses *capture.Session, f *capture.Flow) []byte {
	var out []byte
	for i := range f.FPDUs {
		out = append(out, wiretest.Frame(f.FPDUs[i].MPA.Payload, ses.CRC)...)
	}
	return out
}

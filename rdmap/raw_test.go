package rdmap

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/internal/simnet"
	"github.com/softrdma/softrdma/mempool"
	"github.com/softrdma/softrdma/mpa"
)

// The startup frames of both ends, revision 1 with CRC.
const (
	mpaRequest = "4d 50 41 20 49 44 20 52 65 71 20 46 72 61 6d 65 40 01 00 00"
	mpaReply   = "4d 50 41 20 49 44 20 52 65 70 20 46 72 61 6d 65 40 01 00 00"
)

// raw is a peer that plays octets.
type raw struct {
	t   testing.TB
	net *simnet.Stream
	got []byte
}

// rawBuffer is what the stream to a raw peer holds.
const rawBuffer = 64 << 10

// newRaw connects a stream under test to a raw peer, over MPA revision 1.
func newRaw(t testing.TB, cfg Config) (*end, *raw) {
	t.Helper()
	return newRawPool(t, cfg, newPool(t))
}

func newRawPool(t testing.TB, cfg Config, pool *mempool.Pool) (*end, *raw) {
	t.Helper()
	bare, r := bareConnPool(t, pool)
	c := bare.c
	if cfg.Initiator {
		require.NoError(t, c.Request(mpa.Config{Rev1: true}, nil))
		r.expectBytes(unhex(t, mpaRequest))
		r.play(unhex(t, mpaReply))
		_, ok, err := c.RecvReply()
		require.True(t, ok, "%v", err)
	} else {
		r.play(unhex(t, mpaRequest))
		_, ok, err := c.RecvRequest(mpa.Config{})
		require.True(t, ok, "%v", err)
		_, err = c.Accept(mpa.Config{}, nil)
		require.NoError(t, err)
		r.expectBytes(unhex(t, mpaReply))
	}
	return newEnd(t, c, bare.net, cfg), r
}

// bare is an end without RDMAP yet.
type bare struct {
	c   *mpa.Conn
	net *simnet.Stream
}

// bareConn joins a connection that has done nothing yet to a raw peer.
func bareConn(t testing.TB) (*bare, *raw) { return bareConnPool(t, newPool(t)) }

func bareConnPool(t testing.TB, pool *mempool.Pool) (*bare, *raw) {
	na, nb := simnet.StreamPair(1448, rawBuffer)
	return &bare{mpa.NewConn(na, pool), na}, &raw{t: t, net: nb}
}

// helloArrives puts RDMAP on b and wants the Send that is there already.
func helloArrives(t testing.TB, b *bare, cfg Config) {
	t.Helper()
	e := newEnd(t, b.c, b.net, cfg)
	g := newRegion(t, e.table, 8, testPD, ddp.LocalWrite)
	e.recvs = []RecvBuf{{ID: 3, SGL: []SGE{g.sge(0, 8)}}}
	settle(e)
	require.NoError(t, e.rxErr)
	require.Equal(t, Event{Kind: RecvDone, ID: 3, Len: 5}, e.events[len(e.events)-1])
	require.Equal(t, "hello", string(g.mem[:5]))
}

func (r *raw) play(b []byte) { require.NoError(r.t, r.net.Writev([][]byte{b})) }

func (r *raw) read() {
	pieces, err := r.net.Peek()
	if err != nil && !errors.Is(err, io.EOF) {
		require.NoError(r.t, err)
	}
	n := 0
	for _, p := range pieces {
		r.got = append(r.got, p...)
		n += len(p)
	}
	r.net.Discard(n)
}

func (r *raw) expectBytes(want []byte) {
	r.t.Helper()
	r.read()
	require.GreaterOrEqual(r.t, len(r.got), len(want), "sent so far: % x", r.got)
	require.Equal(r.t, hex.EncodeToString(want), hex.EncodeToString(r.got[:len(want)]))
	r.got = r.got[len(want):]
}

// expectFPDU takes one FPDU off the wire, checks its framing and returns the
// ULPDU.
func (r *raw) expectFPDU() []byte {
	r.t.Helper()
	r.read()
	require.Greater(r.t, len(r.got), 2, "nothing was sent")
	n := int(binary.BigEndian.Uint16(r.got))
	size := (n+2+3)&^3 + 4
	require.GreaterOrEqual(r.t, len(r.got), size)
	f := r.got[:size]
	require.Equal(r.t, fpdu(f[2:2+n]), f)
	r.got = r.got[size:]
	return f[2 : 2+n]
}

// silent checks that nothing more was sent.
func (r *raw) silent() {
	r.t.Helper()
	r.read()
	require.Empty(r.t, r.got, "unexpected octets on the wire")
}

// fpdu frames a ULPDU: written apart from package mpa, after the drawing in
// RFC 5044, Section 4.1.
func fpdu(ulpdu []byte) []byte {
	b := []byte{byte(len(ulpdu) >> 8), byte(len(ulpdu))}
	b = append(b, ulpdu...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// seg builds the ULPDU of an untagged or tagged segment by hand.
func untaggedSeg(control, ulp byte, word, qn, msn, mo uint32, payload ...byte) []byte {
	b := []byte{control, ulp}
	for _, v := range []uint32{word, qn, msn, mo} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return append(b, payload...)
}

func taggedSeg(control, ulp byte, stag ddp.STag, to uint64, payload ...byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{control, ulp}, uint32(stag))
	return append(binary.BigEndian.AppendUint64(b, to), payload...)
}

func readReq(msn uint32, sink ddp.STag, sinkTO uint64, size uint32, src ddp.STag, srcTO uint64) []byte {
	b := untaggedSeg(0x41, 0x41, 0, 1, msn, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(sink))
	b = binary.BigEndian.AppendUint64(b, sinkTO)
	b = binary.BigEndian.AppendUint32(b, size)
	b = binary.BigEndian.AppendUint32(b, uint32(src))
	return binary.BigEndian.AppendUint64(b, srcTO)
}

// termULPDU builds the Terminate that answers segment bad with code: which
// headers it quotes follows the table of RFC 5040, Section 4.8.
func termULPDU(code uint16, bad []byte) []byte {
	b := untaggedSeg(0x41, 0x47, 0, 2, 1, 0, byte(code>>8), byte(code))
	read := code>>8 == 0x01 && bad != nil && bad[1]&0xf == 1
	if code>>12 == 2 || code>>8 == 0 || code == 0x1000 || bad == nil {
		return append(b, 0, 0)
	}
	bits := byte(0xc0)
	if read {
		bits = 0xe0
	}
	b = append(b, bits, 0, byte(len(bad)>>8), byte(len(bad)))
	head := 18
	if bad[0]&0x80 != 0 {
		head = 14
	}
	b = append(b, bad[:head]...)
	if read {
		b = append(b, bad[18:46]...)
	}
	return b
}

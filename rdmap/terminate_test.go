package rdmap

import (
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/mpa"
)

func TestParseTerminate(t *testing.T) {
	write := taggedSeg(0xc1, 0x40, 0x12345678, base)
	send := untaggedSeg(0x41, 0x43, 0, 0, 1, 0)
	read := readReq(1, 0xaabbcc01, 0x1000, 16, 0x12345678, base)
	cat := func(s string, parts ...[]byte) []byte {
		b := unhex(t, s)
		for _, p := range parts {
			b = append(b, p...)
		}
		return b
	}
	cases := []struct {
		name string
		in   []byte
		want Terminate
	}{
		{"RDM-52 tagged", cat("11 00 c0 00 00 16", write), Terminate{Layer: 1, Type: 1, HasSegLen: true, SegLen: 22, DDPHeader: write}},
		{"RDM-52 untagged", cat("12 02 c0 00 00 12", send), Terminate{Layer: 1, Type: 2, Code: 2, HasSegLen: true, SegLen: 18, DDPHeader: send}},
		{"RDM-52 read", cat("01 02 e0 00 00 2e", read), Terminate{Type: 1, Code: 2, HasSegLen: true, SegLen: 46, DDPHeader: read[:18], ReadHeader: read[18:]}},
		{"RDM-52 LLP", cat("20 02 00 00"), Terminate{Layer: 2, Code: 2}},
		{"RDM-52 local", cat("00 00 00 00"), Terminate{}},
		{"IOP-01 swapped, access, M D R", cat("10 02 07 00 00 00", read), Terminate{Type: 1, Code: 2, HasSegLen: true, DDPHeader: read[:18], ReadHeader: read[18:], Swapped: true}},
		{"IOP-01 swapped, invalid STag, M D", cat("11 00 03 00 00 08", write), Terminate{Layer: 1, Type: 1, HasSegLen: true, SegLen: 8, DDPHeader: write, Swapped: true}},
		{"IOP-01 swapped, no buffer, M D", cat("21 02 03 00 00 00", send), Terminate{Layer: 1, Type: 2, Code: 2, HasSegLen: true, DDPHeader: send, Swapped: true}},
		{"IOP-01 swapped, R set, header missing", cat("10 09 07 00 00 00", send), Terminate{Type: 1, Code: 9, HasSegLen: true, DDPHeader: send, Swapped: true}},
		{"IOP-01 swapped CRC", cat("02 02 00 00"), Terminate{Layer: 2, Code: 2, Swapped: true}},
		{"IOP-01 swapped operation 08", cat("20 08 00 00"), Terminate{Type: 2, Code: 8, Swapped: true}},
		{"IOP-01 swapped operation 09", cat("20 09 00 00"), Terminate{Type: 2, Code: 9, Swapped: true}},
		{"IOP-01 swapped operation ff", cat("20 ff 00 00"), Terminate{Type: 2, Code: 0xff, Swapped: true}},
		{"IOP-01 swapped 21 without bits", cat("21 02 00 00"), Terminate{Layer: 1, Type: 2, Code: 2, Swapped: true}},
		{"IOP-01 swapped 10 with a code", cat("10 04 00 00"), Terminate{Type: 1, Code: 4, Swapped: true}},
		{"IOP-01 10 without a code is plain", cat("10 00 00 00"), Terminate{Layer: 1}},
		{"IOP-01 01 is plain", cat("01 02 00 00"), Terminate{Type: 1, Code: 2}},
		{"IOP-01 11 is plain", cat("11 02 00 00"), Terminate{Layer: 1, Type: 1, Code: 2}},
		{"IOP-01 12 is plain", cat("12 02 00 00"), Terminate{Layer: 1, Type: 2, Code: 2}},
		{"IOP-01 20 06 is unclear", cat("20 06 00 00"), Terminate{Layer: 2, Code: 6, Ambiguous: true}},
		{"IOP-01 02 05 is unclear", cat("02 05 00 00"), Terminate{Type: 2, Code: 5, Ambiguous: true}},
		{"IOP-01 02 09 is plain", cat("02 09 00 00"), Terminate{Type: 2, Code: 9}},
		{"IOP-01 reserved bits beside M and D are plain", cat("11 01 c7 00 00 16", write), Terminate{Layer: 1, Type: 1, Code: 1, HasSegLen: true, SegLen: 22, DDPHeader: write}},
		{"a seen one of siw", unhex(t, "11 01 03 00 00 64 c1 42 57 4e bc 00 00 00 55 6b e8 d2 75 50"),
			Terminate{Layer: 1, Type: 1, Code: 1, HasSegLen: true, SegLen: 100, DDPHeader: unhex(t, "c1 42 57 4e bc 00 00 00 55 6b e8 d2 75 50"), Swapped: true}},
		{"RDM-53 nothing", nil, Terminate{}},
		{"RDM-53 one octet", []byte{0x11}, Terminate{Layer: 1, Type: 1}},
		{"RDM-53 zeros", make([]byte, 52), Terminate{}},
		{"SEC-43 SEC-37 bits and no data", cat("01 02 e0 00"), Terminate{Type: 1, Code: 2}},
		{"SEC-43 SEC-37 bits and one octet", cat("01 02 e0 00 00"), Terminate{Type: 1, Code: 2}},
		{"SEC-43 SEC-37 length and no header", cat("01 02 e0 00 00 2e"), Terminate{Type: 1, Code: 2, HasSegLen: true, SegLen: 46}},
		{"SEC-43 SEC-37 half a header", cat("11 02 c0 00 00 16", write[:13]), Terminate{Layer: 1, Type: 1, Code: 2, HasSegLen: true, SegLen: 22}},
		{"SEC-43 SEC-37 half a read header", cat("01 02 e0 00 00 2e", read[:45]), Terminate{Type: 1, Code: 2, HasSegLen: true, SegLen: 46, DDPHeader: read[:18]}},
		{"SEC-43 SEC-37 D without M", cat("11 02 40 00", write), Terminate{Layer: 1, Type: 1, Code: 2}},
		{"RDM-53 more than all", append(cat("20 02 00 00"), make([]byte, 60)...), Terminate{Layer: 2, Code: 2}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := ParseTerminate(c.in)
			require.Equal(t, c.want, got)
			require.NotEmpty(t, got.String())
			if !got.Swapped && len(c.in) <= maxTermLen && c.want.HasSegLen {
				require.Equal(t, got, ParseTerminate(got.append(nil)))
			}
		})
		t.Run("RDM-57 RDM-58 "+c.name+", received", func(t *testing.T) {
			e, peer := newRaw(t, Config{IRD: 1, ORD: 1})
			e.post(&Op{Kind: Send, ID: 1})
			peer.play(fpdu(untaggedSeg(0x41, 0x47, 0, 2, 1, 0, c.in...)))
			e.receive()
			var pe *PeerError
			require.ErrorAs(t, e.rxErr, &pe)
			require.Equal(t, c.want, pe.Terminate)
			settle(e)
			peer.silent() // no answer, nothing else either
			require.Empty(t, e.sent)
			require.False(t, e.TerminateSent())
			e.Terminate(&Error{Type: TypeOperation, Code: CodeCatastrophic})
			settle(e)
			peer.silent()
			require.EqualValues(t, 1, e.Stats().TerminatesIn)
		})
	}
	t.Run("IOP-02 both readings are shown", func(t *testing.T) {
		pe := &PeerError{ParseTerminate(unhex(t, "20 06 00 00"))}
		require.Equal(t, "rdmap: terminated by the peer: insufficient IRD (2/0/06) or unexpected opcode (0/2/06)", pe.Error())
	})
}

func TestTerminateShapes(t *testing.T) {
	plain := untaggedSeg(0x41, 0x47, 0, 2, 1, 0, 0x11, 0, 0, 0)
	mod := func(at int, v byte) []byte {
		b := append([]byte{}, plain...)
		b[at] = v
		return b
	}
	for name, seg := range map[string][]byte{
		"RDM-53 18 octets":         plain[:18],
		"RDM-53 19 octets":         plain[:19],
		"RDM-61 on QN 0":           mod(9, 0),
		"RDM-61 on QN 9":           mod(9, 9),
		"RDM-61 MSN 2":             mod(13, 2),
		"RDM-61 MO 4":              mod(17, 4),
		"without L":                mod(0, 0x01),
		"RDM-61 tagged":            taggedSeg(0xc1, 0x47, 0, 0, 0x11, 0, 0, 0),
		"RDM-02 reserved bits set": mod(1, 0x77),
		"with more than a payload": append(append([]byte{}, plain...), make([]byte, 1000)...),
	} {
		t.Run(name, func(t *testing.T) {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			b := append(fpdu(seg), fpdu(taggedSeg(0xc1, 0x40, k.s.stag, base, 1))...)
			peer.play(append(b, fpdu(plain)...)) // SEC-43, SEC-44: what follows is dropped
			settle(e)
			var pe *PeerError
			require.ErrorAs(t, e.rxErr, &pe)
			_, _, err := e.Receive()
			require.Equal(t, e.rxErr, err)
			peer.silent()
			k.untouched(t)
			require.EqualValues(t, 1, e.Stats().TerminatesIn)
		})
	}
	for n := 2; n < 18; n++ {
		t.Run(fmt.Sprintf("DDP-05 SEC-37 %d octets are no Terminate yet", n), func(t *testing.T) {
			e, peer := newRaw(t, Config{})
			peer.play(fpdu(plain[:n]))
			settle(e)
			require.Equal(t, termULPDU(0x2003, nil), peer.expectFPDU())
		})
	}
	t.Run("RDM-58 inside a Send", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		k.post(e)
		peer.play(append(fpdu(untaggedSeg(0x01, 0x43, 0, 0, 1, 0, 1)), fpdu(plain)...))
		settle(e)
		var pe *PeerError
		require.ErrorAs(t, e.rxErr, &pe)
	})
}

// TestChooseTerminate has the one switch from errors to Terminates.
func TestChooseTerminate(t *testing.T) {
	send := untaggedSeg(0x41, 0x43, 0, 0, 1, 0)
	read := readReq(1, 1, 2, 3, 4, 5)
	cases := []struct {
		name string
		err  error
		want string // hex; "none": no message; "": not an end
	}{
		{"local", &LocalError{Err: &ddp.Fault{Kind: ddp.FaultPD}}, "00 00 00 00"},
		{"wrapped local", fmt.Errorf("x: %w", &LocalError{}), "00 00 00 00"},
		{"unknown", io.ErrNoProgress, "00 00 00 00"},
		{"none", nil, "00 00 00 00"},
		{"DDP-61 DDP catastrophic", &ddp.Error{Type: ddp.TypeCatastrophic}, "10 00 00 00"},
		{"DDP-50 DDP", &ddp.Error{Type: 2, Code: 5, Header: send, SegLen: 300}, fmt.Sprintf("12 05 c0 00 01 2c % x", send)},
		{"operation without a segment", &Error{Type: 2, Code: 7}, "02 07 00 00"},
		{"operation", &Error{Type: 2, Code: 6, Header: send, SegLen: 18}, fmt.Sprintf("02 06 c0 00 00 12 % x", send)},
		{"protection", &Error{Type: 1, Code: 4, Header: read[:18], ReadHeader: read[18:], SegLen: 46}, fmt.Sprintf("01 04 e0 00 00 2e % x", read)},
		{"RDM-60 closed", &mpa.Error{Code: mpa.CodeClosed, Err: syscall.ECONNRESET}, "none"},
		{"MPA-17 frame", &mpa.Error{Code: mpa.CodeFrame}, "none"},
		{"MPA-80 CRC", &mpa.Error{Code: mpa.CodeCRC}, "20 02 00 00"},
		{"MPA-80 marker", &mpa.Error{Code: mpa.CodeMarker}, "20 03 00 00"},
		{"MPA-80 local", &mpa.Error{Code: mpa.CodeLocal}, "20 05 00 00"},
		{"RDM-57 peer", &PeerError{}, "none"},
		{"FIN", io.EOF, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, ok := chooseTerminate(c.err)
			switch c.want {
			case "":
				require.False(t, ok)
			case "none":
				require.True(t, ok)
				require.Nil(t, got)
			default:
				require.True(t, ok)
				require.Equal(t, unhex(t, c.want), got.append(nil))
			}
		})
	}
	t.Run("RDM-51 the first error wins", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true})
		e.Terminate(&mpa.Error{Code: mpa.CodeRTR})
		e.Terminate(&LocalError{})
		e.Terminate(&PeerError{})
		settle(e)
		peer.expectBytes(unhex(t, vecTerm2007))
		peer.silent()
	})
}

func TestCodeNames(t *testing.T) {
	for layer := uint8(0); layer < 4; layer++ {
		for typ := uint8(0); typ < 4; typ++ {
			for _, code := range []uint8{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xff} {
				require.NotEmpty(t, codeText(layer, typ, code))
			}
		}
	}
	require.Equal(t, "unexpected opcode", codeText(0, 2, 6))
	require.Equal(t, "message too long for its buffer", codeText(1, 2, 5))
	require.Equal(t, "CRC mismatch", codeText(2, 0, 2))
	require.Contains(t, (&Error{Type: 1, Code: 3, Err: io.EOF}).Error(), "STag not associated with the stream (0/1/03): EOF")
}

func TestTerminateOf(t *testing.T) {
	got, ok := TerminateOf(fmt.Errorf("x: %w", &PeerError{Terminate{Layer: 1, Type: 2, Code: 3}}))
	require.True(t, ok)
	require.Equal(t, Terminate{Layer: 1, Type: 2, Code: 3}, got)
	got, ok = TerminateOf(&ddp.Error{Type: 2, Code: 5})
	require.True(t, ok)
	require.Equal(t, Terminate{Layer: 1, Type: 2, Code: 5}, got)
	_, ok = TerminateOf(io.EOF)
	require.False(t, ok)
	_, ok = TerminateOf(&mpa.Error{Code: mpa.CodeClosed})
	require.False(t, ok)
}

func TestTerminateIsAbout(t *testing.T) {
	for _, c := range []struct {
		header   []byte
		qn       uint32
		known    bool
		response bool
	}{
		{nil, 0, false, false},
		{taggedSeg(0xc1, 0x40, 1, 2), 0, false, false},
		{taggedSeg(0xc1, 0x42, 1, 2), 0, false, true},
		{taggedSeg(0xc1, 0x72, 1, 2), 0, false, true},
		{untaggedSeg(0x41, 0x43, 0, 0, 1, 0), 0, true, false},
		{untaggedSeg(0x41, 0x41, 0, 1, 1, 0), 1, true, false},
	} {
		term := Terminate{DDPHeader: c.header}
		qn, known := term.QN()
		require.Equal(t, c.qn, qn)
		require.Equal(t, c.known, known)
		require.Equal(t, c.response, term.ReadResponse())
	}
}

package wiretest

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// Known is a known iWARP implementation as its peers see it: the values it chooses where
// the standards leave a choice, and where it leaves the standards. What hardware does
// below its driver is not known and not played.
type Known struct {
	Name string
	Rev  uint8
	// CRC: it asks for a CRC. EchoC: its Reply has the C bit of the Request, whatever it
	// would have asked for.
	CRC, EchoC bool
	// Offer holds the ready-to-receive messages that it offers as initiator, BlockC and
	// BlockD; 0 is the client/server model. Take are those it takes as responder, the best
	// first; the first also stands where nothing fits.
	Offer uint16
	Take  []uint16
	// NeedsA: a Request of revision 2 without A is not answered.
	NeedsA bool
	// MaxDepth bounds its IRD and ORD.
	MaxDepth uint16
	// EchoRes: the reserved bits of the Request stand in its Reply.
	EchoRes bool
	// NoMarkers: a peer that asks for markers is refused. AsksMarkers: it asks for them.
	NoMarkers, AsksMarkers bool
	// SpeaksFirst: a responder of the client/server model may send before it has received.
	SpeaksFirst bool
	// Swaps: its Terminates have the nibbles and bits of their first octets in the other order.
	Swaps bool
	// StalePad: in the padding of short messages stand old octets.
	StalePad bool
	// ReadTO is the tagged offset in its Read of no octets that opens a connection.
	ReadTO uint64
}

// Knowns returns those that drivers of Linux 6.1 make, and the ancestor of siw.
func Knowns() []Known {
	return []Known{
		{Name: "siw", Rev: 2, EchoC: true, Take: []uint16{BlockC, BlockD}, MaxDepth: 128, EchoRes: true, NoMarkers: true,
			SpeaksFirst: true, Swaps: true, StalePad: true},
		{Name: "siw-strict", Rev: 2, CRC: true, EchoC: true, Offer: BlockC | BlockD, Take: []uint16{BlockC, BlockD}, MaxDepth: 128, EchoRes: true,
			NoMarkers: true, SpeaksFirst: true, Swaps: true, StalePad: true},
		{Name: "cxgb4", Rev: 2, CRC: true, Offer: BlockD, Take: []uint16{BlockD}, MaxDepth: 32, ReadTO: 1},
		{Name: "irdma", Rev: 2, CRC: true, Offer: BlockC | BlockD, Take: []uint16{BlockD, BlockC}, NeedsA: true, MaxDepth: 127},
		{Name: "irdma-ooo", Rev: 2, CRC: true, Offer: BlockC | BlockD, Take: []uint16{BlockD, BlockC}, NeedsA: true, MaxDepth: 127, AsksMarkers: true},
		{Name: "softiwarp", Rev: 1, EchoC: true, MaxDepth: 128, NoMarkers: true, SpeaksFirst: true, Swaps: true, StalePad: true},
	}
}

// Ask is its Request, for the wanted depths and an application's private data.
func (k Known) Ask(ird, ord uint16, ulp ...byte) Startup {
	s := Startup{Rev: k.Rev, Private: ulp}
	if k.CRC {
		s.Flags |= FlagC
	}
	if k.AsksMarkers {
		s.Flags |= FlagM
	}
	if k.Rev < 2 {
		return s
	}
	s.Flags |= FlagS
	in, out := min(ird, k.MaxDepth), min(ord, k.MaxDepth)
	if k.Offer != 0 {
		in, out = in|BlockA, out|k.Offer
	}
	if k.Offer&BlockD != 0 && out&0x3fff == 0 {
		out |= 1 // the Read that opens the connection needs it
	}
	s.Private = Block(in, out, ulp...)
	return s
}

// Answer is its Reply to req, for the wanted depths; with FlagR where it refuses. It
// fails the test where the implementation would hang up instead.
func (k Known) Answer(t testing.TB, req Startup, ird, ord uint16, ulp ...byte) Startup {
	t.Helper()
	require.LessOrEqual(t, req.Rev, k.Rev, "%s closes on a later revision", k.Name)
	s := Startup{Reply: true, Rev: req.Rev, Flags: req.Flags & FlagS, Private: ulp}
	if k.EchoRes {
		s.Flags |= req.Flags & 0x0f
	}
	switch {
	case k.EchoC:
		s.Flags |= req.Flags & FlagC
	case k.CRC || req.Flags&FlagC != 0:
		s.Flags |= FlagC
	}
	if k.AsksMarkers {
		s.Flags |= FlagM
	}
	enhanced := req.Rev > 1 && req.Flags&FlagS != 0
	if req.Flags&FlagM != 0 && k.NoMarkers {
		s.Flags |= FlagR
		s.Private = nil
		if enhanced {
			s.Private = Block(0, 0)
		}
		return s
	}
	if !enhanced {
		return s
	}
	require.GreaterOrEqual(t, len(req.Private), 4, "%s closes without the block", k.Name)
	in, out := binary.BigEndian.Uint16(req.Private), binary.BigEndian.Uint16(req.Private[2:])
	// They clip to their limit and raise their IRD to what the peer wants. Only irdma knows
	// what 0x3fff means; to the others it is a number.
	wantIn := max(min(ird, k.MaxDepth), min(out&0x3fff, k.MaxDepth))
	wantOut := min(ord, k.MaxDepth, in&0x3fff)
	if in&BlockA != 0 {
		take := k.Take[0]
		for _, r := range k.Take {
			if out&r != 0 {
				take = r
				break
			}
		}
		if take == BlockD && wantIn == 0 {
			wantIn = 1
		}
		wantIn, wantOut = wantIn|BlockA, wantOut|take
	} else {
		require.False(t, k.NeedsA, "%s closes on the client/server model", k.Name)
	}
	s.Private = Block(wantIn, wantOut, ulp...)
	return s
}

// Opens is the message with which it opens the connection as initiator when it has got
// rep, nil for none: then what its application sends is the first.
func (k Known) Opens(rep Startup) []byte {
	if k.Offer == 0 || len(rep.Private) < 4 {
		return nil
	}
	take := binary.BigEndian.Uint16(rep.Private[2:])
	if k.Offer&take&BlockC != 0 {
		return Tagged(0, true, 1, 0, nil)
	}
	return ReadRequest(1, 1, k.ReadTO, 0, 1, k.ReadTO)
}

// Terminate is its Terminate about a message whose ULPDU began with header (none if
// empty) and was length octets long.
func (k Known) Terminate(code uint16, length int, header []byte) []byte {
	b := []byte{byte(code >> 8), byte(code), 0, 0}
	if len(header) > 0 {
		b[2] = 0xc0
		if len(header) > 18 { // the header of a Read Request follows
			b[2] |= 0x20
		}
	}
	if k.Swaps {
		b[0] = b[0]<<4 | b[0]>>4
		b[2] >>= 5
		b[2] = b[2]>>2 | b[2]&2 | b[2]<<2&4
		length -= min(len(header), 18) // it counts the payload alone
	}
	if len(header) > 0 {
		b = binary.BigEndian.AppendUint16(b, uint16(length))
		b = append(b, header...)
	}
	return Untagged(7, true, 0, 2, 1, 0, b)
}

// stalePad is what a capture shows in the padding of siw's short messages.
var stalePad = []byte{0x00, 0x40, 0x5a}

// Play makes the peer frame its messages as k does.
func (p *Peer) Play(k Known) {
	if k.StalePad {
		p.pad = stalePad
	}
}

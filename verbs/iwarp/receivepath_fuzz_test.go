package iwarp

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/capture"
	"github.com/softrdma/softrdma/internal/wiretest"
)

// playCut plays b in pieces. Each octet of cuts is one piece: how long it is, 0 for
// the rest, and in its high bit whether the device has a turn before the next one.
func (s *scene) playCut(b, cuts []byte) {
	for len(b) > 0 {
		n, turn := len(b), true
		if len(cuts) > 0 {
			if k := int(cuts[0] & 0x7f); k > 0 {
				n = min(n, k)
			}
			turn = cuts[0]&0x80 != 0
			cuts = cuts[1:]
		}
		n = min(n, longestPiece)
		s.arrive(b[:n])
		if b = b[n:]; turn || len(b) == 0 {
			s.quiet()
		}
	}
}

// TestModelHostile holds the model against the table of hostile FPDUs, which was
// made without it, and the stack against both.
func TestModelHostile(t *testing.T) {
	r := newRig(t)
	for _, v := range wiretest.Hostile() {
		for _, mode := range []uint16{0, stingy, narrow} {
			s := r.newScene(t, asResponder|mode)
			s.playCut(v.Octets, nil)
			got := uint16(0)
			if s.m.term != nil {
				got = uint16(s.m.term[18])<<8 | uint16(s.m.term[19])
			}
			s.end()
			require.Equal(t, v.Want, got, "%s %s: the model says %#04x", v.ID, v.What, got)
		}
	}
}

// FuzzReceivePath gives octets of a peer to a whole connection: start-up, framing,
// placement, work queues, completions, Terminate, teardown.
func FuzzReceivePath(f *testing.F) {
	for _, v := range wiretest.Hostile() {
		f.Add(v.Octets, []byte{}, uint16(asResponder))
		f.Add(v.Octets, []byte{0x81, 0x82, 3, 0x85}, uint16(asInitiatorBusy))
	}
	for _, v := range wiretest.FPDUs() {
		for mode := range uint16(shapes) {
			f.Add(v.Octets, []byte{}, mode)
		}
		f.Add(v.Octets, []byte{7}, uint16(asResponderBusy|withoutCRC))
	}
	window := wiretest.Tagged(0, true, 0x88888801, wiretest.HostileBase+1024, payload(9))
	window = append(wiretest.Frame(window, false), wiretest.Frame(wiretest.Untagged(4, true, 0x88888801, 0, 1, 0, payload(3)), false)...)
	f.Add(window, []byte{}, uint16(asResponderBusy|withoutCRC))
	f.Add(wiretest.Marked()[3].Octets, []byte{0x85, 3}, uint16(asResponder|marked))
	for _, v := range wiretest.Startups() {
		f.Add(v.Octets, []byte{0x90}, uint16(asResponderRaw))
		f.Add(v.Octets, []byte{}, uint16(asInitiatorRaw))
	}
	for _, d := range siwStreams(f) {
		f.Add(d.octets[:min(len(d.octets), maxSceneOctets)], []byte{0, 0x9c, 0x80}, d.mode)
	}
	r := newRig(f)
	f.Fuzz(func(t *testing.T, b, cuts []byte, mode uint16) {
		if len(b) > maxSceneOctets {
			return
		}
		s := r.newScene(t, mode)
		if s.window != nil && !s.c.params.CRC {
			// The one key that cannot be known before; with a CRC it could not be put in.
			b = bytes.ReplaceAll(b, []byte(windowName), binary.BigEndian.AppendUint32(nil, uint32(s.window.Key())))
		}
		s.playCut(b, cuts)
		s.end()
	})
}

// windowName stands for the key of a scene's window.
const windowName = "\x88\x88\x88\x01"

// siwStream is what one end of a recorded connection has said.
type siwStream struct {
	octets []byte
	mode   uint16
}

// siwStreams returns all that Linux siw and its peers say in the recordings.
func siwStreams(tb testing.TB) (list []siwStream) {
	files, err := filepath.Glob("../../testdata/siw/*.pcap")
	require.NoError(tb, err)
	require.NotEmpty(tb, files)
	for _, name := range files {
		f, err := os.Open(name)
		require.NoError(tb, err)
		all, err := capture.DecodeFile(f)
		require.NoError(tb, err)
		require.NoError(tb, f.Close())
		for _, ses := range all.All {
			mode := uint16(0)
			if !ses.CRC {
				mode = withoutCRC
			}
			list = append(list, siwStream{ses.Initiator.Stream(), asResponderRaw | mode}, siwStream{ses.Responder.Stream(), asInitiatorRaw | mode})
		}
	}
	return list
}

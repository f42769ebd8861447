package iwarp

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
)

// lengthChanges make a ULPDU_Length one more, and one less.
func lengthChanges(n int) [2]uint64 { return [2]uint64{uint64(n ^ (n + 1)), uint64(n ^ (n - 1))} }

func fieldNamed(t *testing.T, name string) *field {
	for i := range fields {
		if fields[i].name == name {
			return &fields[i]
		}
	}
	require.Fail(t, "no such field", name)
	return nil
}

func sessionNamed(t *testing.T, name string) (which int, ses session) {
	for i, s := range sessions(0, 0) {
		if s.name == name {
			return i, s
		}
	}
	require.Fail(t, "no such session", name)
	return 0, session{}
}

// TestReceivePath holds whole connections against the model where a requirement is
// about what any octets may do.
func TestReceivePath(t *testing.T) {
	r := newRig(t)
	t.Run("SEC-37 octets of any kind, in pieces of any size, leave behind what the model says", func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(37, 37))
		var all [][]byte
		for _, v := range wiretest.FPDUs() {
			all = append(all, v.Octets)
		}
		for _, v := range wiretest.Hostile() {
			all = append(all, v.Octets)
		}
		for range 500 {
			var b []byte
			for range 1 + rnd.IntN(6) {
				b = append(b, all[rnd.IntN(len(all))]...)
			}
			for range rnd.IntN(3) {
				b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
			}
			cuts := make([]byte, rnd.IntN(20))
			for i := range cuts {
				cuts[i] = byte(rnd.Uint32())
			}
			s := r.newScene(t, uint16(rnd.IntN(0x100)))
			s.playCut(b, cuts)
			s.end()
		}
	})
	t.Run("SEC-38 a length that is one off", func(t *testing.T) {
		length := fieldNamed(t, "ULPDU_Length")
		for which, ses := range sessions(0, 0) {
			for i, u := range ses.ulpdus {
				for _, c := range lengthChanges(len(u)) {
					r.playMutated(t, which, []mutation{{i, length, c}}, nil, 0)
				}
			}
		}
	})
	t.Run("SEC-42 a second segment that is of another message", func(t *testing.T) {
		sends, ses := sessionNamed(t, "Writes and Sends")
		require.EqualValues(t, 7, ses.ulpdus[6][17], "the second segment of a Send")
		for name, code := range map[string]uint16{"opcode": 0x0206, "QN": 0x1201, "MSN": 0x1203, "MO": 0x1204} {
			// 6 makes a plain Send of the Send with SE.
			s := r.playMutated(t, sends, []mutation{{6, fieldNamed(t, name), 6}}, nil, 0)
			require.Equal(t, []byte{byte(code >> 8), byte(code)}, s.term[18:20], name)
		}
		invalidates, _ := sessionNamed(t, "a Send with Invalidate in parts")
		s := r.playMutated(t, invalidates, []mutation{{2, fieldNamed(t, "Invalidate STag"), 0x100}}, nil, 0)
		require.Equal(t, []byte{0x02, 0x06}, s.term[18:20])
	})
	t.Run("SEC-43 a Terminate in any shape ends the stream and has no answer", func(t *testing.T) {
		which, ses := sessionNamed(t, "a Terminate")
		at := len(ses.ulpdus) - 1
		for _, name := range []string{"L", "T", "DDP reserved", "RDMAP reserved", "Invalidate STag", "QN", "MSN", "MO", "Terminate control", "ULPDU_Length"} {
			for _, c := range []uint64{1, 2, 4, 0xff, whole} {
				m := mutation{at, fieldNamed(t, name), c}
				if f, _, changed := m.field.mutate(ses.ulpdus[at], c); changed && (len(f.body) >= 20 || f.body[2]&0x80 != 0 && len(f.body) >= 16) {
					s := r.playMutated(t, which, []mutation{m}, nil, 0)
					require.Nil(t, s.term, "%s", name)
					require.True(t, s.m.peer, "%s", name)
				}
			}
		}
	})
	t.Run("SEC-44 octets behind an error are not parsed", func(t *testing.T) {
		for _, v := range wiretest.Hostile() {
			if v.Want == 0 {
				continue
			}
			s := r.newScene(t, asResponder)
			b := append([]byte(nil), v.Octets...)
			b = append(b, s.frame(0, wiretest.Tagged(0, true, wiretest.RegionAll, wiretest.HostileBase, payload(8)))...)
			s.playCut(append(b, s.frame(0, wiretest.Untagged(3, true, 0, 0, 1, 0, payload(8)))...), nil)
			s.end()
			require.Equal(t, byte(0xa5), s.regions[0].Bytes()[0], "%s: a Write behind it was placed", v.ID)
		}
	})
}

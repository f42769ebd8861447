package iwarp

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
)

// mutation changes one field of one FPDU of a session.
type mutation struct {
	fpdu   int
	field  *field
	change uint64
}

const mutationLen = 10

// mutationsOf reads mutations, up to four, off b.
func mutationsOf(b []byte, n int) (list []mutation) {
	for ; len(b) >= mutationLen && len(list) < 4; b = b[mutationLen:] {
		list = append(list, mutation{int(b[0]) % n, &fields[int(b[1])%len(fields)], binary.BigEndian.Uint64(b[2:])})
	}
	return list
}

func (m mutation) octets() []byte {
	for i := range fields {
		if &fields[i] == m.field {
			return binary.BigEndian.AppendUint64([]byte{byte(m.fpdu), byte(i)}, m.change)
		}
	}
	panic("no such field")
}

// ourIdent is the identifier of the atomic that a busy scene has under way.
func (s *scene) ourIdent() uint32 {
	for _, rd := range s.m.reads {
		if rd.atomic {
			return rd.ident
		}
	}
	return 0
}

// playMutated plays session which with the mutations, and holds the outcome against
// the model; where one field alone was changed, against what that field's rule says
// as well.
func (r *rig) playMutated(t testing.TB, which int, list []mutation, cuts []byte, mode uint16) *scene {
	s := r.newScene(t, mode&^7|sessions(0, 0)[which].shape)
	var window uint32
	if s.window != nil {
		window = uint32(s.window.Key())
	}
	ses := sessions(s.ourIdent(), window)[which]
	p := s.c.params
	verdict := uint16(depends)
	var octets []byte
	for i, u := range ses.ulpdus {
		f := rawOf(u)
		var rule func(marker bool) uint16
		for _, m := range list {
			if m.fpdu != i {
				continue
			}
			if mutated, now, changed := m.field.mutate(u, m.change); changed {
				f = mutated // the last one counts
				first := i == 0 || last(ses.ulpdus[i-1]) || isTagged(ses.ulpdus[i-1])
				rule = func(marker bool) uint16 { return m.field.due(u, now, first, p.CRC, marker, window) }
			}
		}
		b, marker := f.octets(s.at()+len(octets), p.CRC, p.MarkersIn)
		if rule != nil && len(list) == 1 {
			verdict = rule(marker)
		}
		octets = append(octets, b...)
	}
	if len(list) == 0 {
		verdict = 0
	}
	s.playCut(octets, cuts)
	s.end()
	if verdict == depends || mode&(endsInReset|narrow) != 0 {
		return s
	}
	var got uint16
	if s.term != nil {
		got = binary.BigEndian.Uint16(s.term[18:])
	}
	if verdict != got {
		what := ""
		if len(list) == 1 {
			what = fmt.Sprintf("%s of FPDU %d changed by %#x", list[0].field.name, list[0].fpdu, list[0].change)
		}
		t.Fatalf("session %q, %s: the Terminate is %#04x and should be %#04x", ses.name, what, got, verdict)
	}
	if len(list) == 0 {
		require.Empty(t, s.m.reads)
	}
	return s
}

// TestMutatedFields changes every field of every FPDU of every session, alone.
func TestMutatedFields(t *testing.T) {
	r := newRig(t)
	changes := []uint64{1, 2, 4, 8, 0x10, 0x20, 0x40, 0x80, 0x8000, 0x80000000, 0x7fffffffffffffff, whole,
		0x0101010101010101, 0x1000, uint64(wiretest.RegionAll ^ wiretest.RegionOther), uint64(stagAgain ^ wiretest.RegionNoW)}
	if testing.Short() {
		changes = changes[:4]
	}
	for which, ses := range sessions(0, 0) {
		t.Run(ses.name, func(t *testing.T) {
			r.playMutated(t, which, nil, nil, 0)
			r.playMutated(t, which, nil, []byte{0x90, 0xff, 11}, marked)
			r.playMutated(t, which, nil, []byte{1, 2, 3, 0x81, 5, 0x86, 7}, withoutCRC|stingy)
			for i, u := range ses.ulpdus {
				for f := range fields {
					for k, c := range changes {
						if _, _, changed := fields[f].mutate(u, c); changed {
							r.playMutated(t, which, []mutation{{i, &fields[f], c}}, nil, uint16(k%2)*withoutCRC|uint16(k/2%2)*marked)
						}
					}
				}
			}
		})
	}
}

// FuzzMutatedFPDUs starts from sessions in good order and changes header fields. The
// CRC is made right again, so that all of it gets past MPA.
func FuzzMutatedFPDUs(f *testing.F) {
	for which, ses := range sessions(0, 0) {
		f.Add(uint8(which), []byte{}, []byte{}, uint16(0))
		for i := range ses.ulpdus {
			for k := range fields {
				m := mutation{i, &fields[k], 1 << (7 * uint(i) % 60)}
				f.Add(uint8(which), m.octets(), []byte{0x83, 0x14}, uint16(i*8))
			}
		}
	}
	r := newRig(f)
	f.Fuzz(func(t *testing.T, which uint8, mutations, cuts []byte, mode uint16) {
		n := int(which) % len(sessions(0, 0))
		r.playMutated(t, n, mutationsOf(mutations, len(sessions(0, 0)[n].ulpdus)), cuts, mode)
	})
}

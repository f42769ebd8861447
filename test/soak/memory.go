package main

import (
	"fmt"

	"github.com/softrdma/softrdma/verbs"
)

// guard is how many octets lie untouched before and behind each region.
const guard = 4096

// rights are those of the areas' regions.
var rights = [areas]verbs.Access{
	areaSource: 0,
	areaSink:   verbs.AccessLocalWrite,
	areaInbox:  verbs.AccessLocalWrite,
	areaTarget: verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead,
	areaExport: verbs.AccessRemoteRead,
}

// memory is what one end of a lane has. It stays for all generations, each of which
// makes regions of it. Sink, inbox and target are untouched wherever no operation
// is under way.
type memory struct {
	o    *options
	pat  pattern
	side int
	lane int
	raw  [areas][]byte // guard, region, guard
	mr   [areas]*verbs.MR
}

func newMemory(o *options, side, lane int) *memory {
	m := &memory{o: o, pat: pattern{o.Seed}, side: side, lane: lane}
	for a := range m.raw {
		n := maxWindow * o.slot()
		if a == areaExport {
			n = o.MaxSize
		}
		m.raw[a] = make([]byte, n+2*guard)
		m.restore(a, -guard, len(m.raw[a]))
	}
	return m
}

// register makes the regions of a generation.
func (m *memory) register(pd *verbs.PD, gen uint32) (err error) {
	m.pat.fill(m.at(areaExport, 0, m.o.MaxSize), m.export(gen), 0)
	for a := range m.mr {
		if m.mr[a], err = pd.RegMR(m.at(a, 0, m.len(a)), rights[a]); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) unregister() (err error) {
	for a, mr := range m.mr {
		if mr == nil {
			continue
		}
		if e := mr.Close(); e != nil {
			err = fmt.Errorf("closing the %s: %w", areaNames[a], e)
		}
		m.mr[a] = nil
	}
	return err
}

func (m *memory) len(area int) int { return len(m.raw[area]) - 2*guard }

// at returns n octets of a region.
func (m *memory) at(area, off, n int) []byte { return m.raw[area][guard+off : guard+off+n] }

func (m *memory) rest(area int) mark {
	return mark{kind: markRest, side: m.side, lane: m.lane, seq: uint32(area)}
}

func (m *memory) export(gen uint32) mark {
	return mark{kind: markExport, side: m.side, lane: m.lane, gen: gen}
}

// restore makes octets untouched again.
func (m *memory) restore(area, off, n int) {
	m.pat.fill(m.at(area, off, n), m.rest(area), guard+off)
}

// untouched checks that octets are.
func (m *memory) untouched(area, off, n int) error {
	return m.want(area, off, n, m.rest(area), guard+off)
}

// want checks that n octets at off are what the mark says, from octet from on.
func (m *memory) want(area, off, n int, what mark, from int) error {
	ok := m.pat.check(m.at(area, off, n), what, from)
	if ok == n {
		return nil
	}
	return m.wrong(area, off+ok, what, from+ok)
}

// wrong says what is at a place and what should be.
func (m *memory) wrong(area, off int, what mark, at int) error {
	run := 0 // wrong octets in a row
	for b := m.raw[area][guard+off:]; run < len(b) && b[run] != m.pat.octet(what, at+run); {
		run++
	}
	return fmt.Errorf("WRONG OCTETS: %s, offset %d (slot %d, %d in it): want octet %d of %v, found %s; %d in a row are wrong",
		areaNames[area], off, off/m.o.slot(), off%m.o.slot(), at, what, m.pat.name(m.raw[area], guard+off, m.o.Lanes), run)
}

// placed reports how many of n octets at off are what the mark says; the rest has to
// be untouched.
func (m *memory) placed(area, off, n int, what mark, from int) (int, error) {
	ok := m.pat.check(m.at(area, off, n), what, from)
	return ok, m.untouched(area, off+ok, n-ok)
}

// whole checks all that no operation uses now, guards included.
func (m *memory) whole(gen uint32) error {
	for a := range m.raw {
		var err error
		switch a {
		case areaSource, areaExport:
			err = m.untouched(a, -guard, guard)
			if err == nil {
				err = m.untouched(a, m.len(a), guard)
			}
		default:
			err = m.untouched(a, -guard, len(m.raw[a]))
		}
		if err == nil && a == areaExport {
			err = m.want(a, 0, m.len(a), m.export(gen), 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

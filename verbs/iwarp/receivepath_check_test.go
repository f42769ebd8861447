package iwarp

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/mpa"
	"github.com/softrdma/softrdma/verbs"
)

// follow feeds the model what has come in, and lets it answer as much as was
// answered.
func (s *scene) follow() {
	p, up := s.entered()
	if !up {
		return
	}
	for !s.m.over {
		u, n, bad := cutFPDU(s.stream[s.parsed:], s.parsed-s.base, p.CRC, p.MarkersIn)
		switch {
		case n == 0:
		case bad != 0:
			s.m.fault(bad, nil)
		default:
			s.parsed += n
			s.m.segment(u)
			continue
		}
		break
	}
	n := 0
	for _, u := range s.messages() {
		if op := u[1] & 0xf; op == 2 || op == 11 {
			n++
		}
	}
	s.must(n-s.answered <= len(s.m.waiting), "answers that nobody asked for", nil)
	s.m.answer(n - s.answered)
	s.answered = n
	if s.c.state == draining {
		s.m.sourceGone()
	}
	s.must(s.mode&stingy != 0 || s.m.over || len(s.m.waiting) == 0, "requests that nobody answers", nil)
}

// entered says whether FPDU mode was reached, and sets the model to its first octet.
func (s *scene) entered() (mpa.Params, bool) {
	p := s.c.params
	if s.c.stream == nil {
		return p, false
	}
	if s.parsed == 0 {
		s.parsed = 20 + int(binary.BigEndian.Uint16(s.stream[18:]))
		s.base = s.parsed
		for _, u := range s.messages() {
			// The Reply asked for what we do not have: MPA-39 and MPA-45 have tests of their own.
			if u[1] == 0x47 && u[18] == 0x20 && (u[19] == 6 || u[19] == 7) && s.shape() == asInitiatorRaw {
				s.m.over, s.refused = true, true
			}
		}
		s.m.slots = 1
		for s.m.slots < p.IRD {
			s.m.slots *= 2
		}
		if s.initiator() && p.RTR == mpa.RTRRead {
			s.m.reads = append(s.m.reads, modelRead{stag: 1, hidden: true})
		}
	}
	return p, true
}

// must fails the test unless ok. The checks of octets are made so often that they
// cannot afford to build a message each time.
func (s *scene) must(ok bool, what string, octets []byte) {
	if !ok {
		s.tb.Helper()
		s.tb.Fatalf("%s: % x", what, octets[:min(len(octets), 256)])
	}
}

// messages returns the whole messages of ours, each as one ULPDU. Every octet has
// to be in its place.
func (s *scene) messages() (all [][]byte) {
	b := append(append([]byte(nil), s.sent...), s.tcp.out...)
	if len(b) < 20 {
		s.must(len(b) == 0, "half a startup frame", b)
		return nil
	}
	p := s.c.params
	b = b[20+int(binary.BigEndian.Uint16(b[18:])):]
	if s.c.stream == nil {
		s.must(len(b) == 0, "octets before FPDU mode", b)
		return nil
	}
	var open []byte // message begun
	for pos := 0; len(b) > 0; {
		u, n, bad := cutFPDU(b, pos, p.CRC, p.MarkersOut)
		s.must(n > 0 && len(u) >= 14, "half an FPDU of ours", b)
		s.must(bad == 0, "wrong CRC or marker of ours", b[:n])
		s.must(n <= memMSS, "an FPDU of ours longer than a segment", b[:n])
		if !p.MarkersOut {
			s.must(bytes.Count(b[2+len(u):n-4], []byte{0}) == n-6-len(u), "padding of ours that is not zero", b[:n])
		}
		pos += n
		s.must(p.CRC || bytes.Equal(b[n-4:n], []byte{0, 0, 0, 0}), "a CRC field of ours that is not used and not zero", b[:n])
		b = b[n:]
		head := 18
		if u[0]&0x80 != 0 {
			head = 14
		}
		s.must(len(u) >= head && u[0]&0x3f == 1 && u[1]&0xf0 == 0x40, "reserved bits and versions of ours", u)
		switch {
		case open == nil || u[1] == 0x47:
			open = append([]byte(nil), u...)
		case head == 14:
			s.must(open[1] == u[1] && binary.BigEndian.Uint64(open[6:])+uint64(len(open)-14) == binary.BigEndian.Uint64(u[6:]), "part of another message", u)
			open = append(open, u[head:]...)
		default:
			s.must(open[1] == u[1], "part of another message", u)
			open = append(open, u[head:]...)
		}
		if last(u) {
			open[0] |= 0x40
			all = append(all, open)
			open = nil
		}
	}
	return all
}

// end closes the peer's side and holds everything against the model.
func (s *scene) end() {
	tb := s.tb
	part := s.parsed < len(s.stream)
	_, up := s.entered()
	wasOver := s.m.over
	if s.mode&endsInReset != 0 {
		s.tcp.reset = true
		s.m.over = true
	} else {
		s.tcp.fin = true
		if up {
			s.m.fin(part, len(s.m.reads) > 0)
		}
	}
	s.tcp.dirty = true
	s.settle(tb)
	for len(s.tcp.out) > 0 {
		s.sent = append(s.sent, s.tcp.takeOut()...)
		s.settle(tb)
	}
	if s.mode&endsInReset == 0 {
		s.follow()
	}
	require.Equal(tb, gone, s.c.state, "the connection is over")
	s.checkSaid(up, wasOver)
	s.checkCompletions()
	if !bytes.Equal(s.want, s.real) {
		at := 0
		for s.want[at] == s.real[at] {
			at++
		}
		require.Fail(tb, "wrong octet in memory", "at %d of the arena: %02x, the model has %02x", at, s.real[at], s.want[at])
	}
	s.checkRest()
}

// checkSaid looks at all that we have sent.
func (s *scene) checkSaid(up, wasOver bool) {
	tb := s.tb
	if !up {
		require.Empty(tb, s.messages())
		return
	}
	var answers, terms [][]byte
	msn := uint32(0)
	for _, u := range s.messages() {
		require.Empty(tb, terms, "nothing follows a Terminate: % x", u)
		switch u[1] & 0xf {
		case 2:
			answers = append(answers, u)
		case 11:
			msn++
			require.Equal(tb, msn, binary.BigEndian.Uint32(u[10:]))
			clear(u[10:14])
			answers = append(answers, u)
		case 7:
			terms = append(terms, u)
		}
	}
	reset := s.mode&endsInReset != 0
	if reset && len(answers) < len(s.m.answers) {
		s.m.answers = s.m.answers[:len(answers)] // the rest was cut off
	}
	require.Equal(tb, len(s.m.answers), len(answers), "answers")
	for i := range answers {
		if s.mode&stingy != 0 && answers[i][1]&0xf == 2 {
			// Its parts may have been fetched at different times.
			require.Equal(tb, s.m.answers[i][:14], answers[i][:14])
			require.Equal(tb, len(s.m.answers[i]), len(answers[i]))
			continue
		}
		s.must(bytes.Equal(s.m.answers[i], answers[i]), "an answer differs from the model's", answers[i])
	}
	switch {
	case s.refused:
		require.Len(tb, terms, 1)
	case s.m.term == nil:
		require.Empty(tb, terms, "no Terminate is due")
	case reset && !(wasOver && s.mode&stingy == 0):
		// The reset may have come before it.
	default:
		require.Len(tb, terms, 1, "one Terminate is due: % x", s.m.term)
	}
	if len(terms) > 0 {
		s.term = terms[0]
	}
	if len(terms) > 0 && s.m.term != nil {
		if s.mode&stingy != 0 && len(terms[0]) == 70 && len(s.m.term) == 70 {
			terms[0], s.m.term = terms[0][:42], s.m.term[:42] // how far the answer has come, nobody knows
		}
		require.Equal(tb, s.m.term, terms[0], "the Terminate % x should be % x", terms[0], s.m.term)
	}
	var te *verbs.TerminateError
	switch err := s.qp.Err(); {
	case s.m.peer:
		require.ErrorAs(tb, err, &te)
		require.True(tb, te.Remote)
	case s.m.term != nil && !s.raw():
		require.ErrorAs(tb, err, &te)
		require.Equal(tb, binary.BigEndian.Uint16(s.m.term[18:]), te.Value())
		require.False(tb, te.Remote)
	}
}

// checkCompletions wants each work request once, and success for those alone that
// the model saw succeed.
func (s *scene) checkCompletions() {
	tb := s.tb
	s.rig.run(func() { require.NoError(tb, s.qp.Close()) })
	wcs := make([]verbs.WC, 32)
	n, err := s.cq.Poll(wcs)
	require.NoError(tb, err)
	wcs = wcs[:n]
	got := map[uint64]*verbs.WC{}
	for i := range wcs {
		require.NotContains(tb, got, wcs[i].ID, "completed twice")
		got[wcs[i].ID] = &wcs[i]
	}
	require.Len(tb, got, len(s.posted), "completions of %v", s.posted)
	good, allReads := map[uint64]modelDone{}, true
	for _, d := range s.m.done {
		good[d.id] = d
	}
	for _, id := range s.posted {
		wc := got[id]
		require.NotNil(tb, wc, "no completion of %d", id)
		d, ok := good[id]
		if id == idBind {
			require.Equal(tb, verbs.WCSuccess, wc.Status, "%+v", wc)
			continue
		}
		if id >= firstOwn+3 {
			// Handed to TCP long ago, it waits for the Reads before it alone.
			require.Equal(tb, allReads, wc.Status == verbs.WCSuccess, "%+v", wc)
			continue
		}
		if !ok {
			allReads = allReads && id < idBind
			require.NotEqual(tb, verbs.WCSuccess, wc.Status, "%+v", wc)
			if id < idBind {
				want := verbs.WCWRFlushErr
				if int(id) == s.m.busy && s.m.term != nil && s.m.term[18] == 0x12 && s.m.term[19] == 5 {
					want = verbs.WCLocLenErr
				}
				require.Equal(tb, want, wc.Status, "%+v", wc)
			}
			continue
		}
		require.Equal(tb, verbs.WCSuccess, wc.Status, "%+v", wc)
		require.Equal(tb, d.n, wc.ByteLen, "%+v", wc)
		require.Equal(tb, d.isInv, wc.Flags&verbs.WCWithInv != 0, "%+v", wc)
		require.Equal(tb, d.isImm, wc.Flags&verbs.WCWithImm != 0, "%+v", wc)
		if d.isInv {
			require.EqualValues(tb, d.inv, wc.Inv)
		}
		if d.isImm {
			require.Equal(tb, d.imm, wc.Imm)
		}
	}
}

// checkRest wants nothing left behind.
func (s *scene) checkRest() {
	tb, d := s.tb, s.d
	require.Zero(tb, d.pool.Out(), "staging buffers out")
	require.Empty(tb, d.conns)
	require.Empty(tb, d.live)
	require.Empty(tb, d.qps)
	require.Empty(tb, d.again)
	require.Empty(tb, d.timers.heap)
	if s.lis != nil {
		require.Empty(tb, s.lis.young)
		require.Empty(tb, s.lis.queue)
	}
	// Closing a region waits for whoever uses it: a use that was not given back would hang here.
	limit := time.AfterFunc(20*time.Second, func() { panic("a use of a region was not given back") })
	if s.window != nil {
		require.NoError(tb, s.window.Close())
	}
	for _, mr := range s.regions {
		require.NoError(tb, mr.Close())
	}
	limit.Stop()
	require.Zero(tb, d.table.Len())
	for {
		select {
		case <-d.events.c:
			continue
		default:
		}
		return
	}
}

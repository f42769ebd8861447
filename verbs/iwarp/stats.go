package iwarp

import (
	"sync/atomic"

	"github.com/softrdma/softrdma/mpa"
	"github.com/softrdma/softrdma/rdmap"
	"github.com/softrdma/softrdma/verbs"
)

// stats counts what happens in this room. Those of the streams are added up
// from the live ones and what ended ones left behind.
type stats struct {
	connected, accepted, ended, dialErrors            atomic.Uint64
	halfOpenDropped, requestTimeouts, requestsRefused atomic.Uint64
	backlogFull, noSlots, srqEmpty, srqLimits         atomic.Uint64
	noReceive, accessErrors, requestErrors            atomic.Uint64
}

// streamTotals are the counters of streams that have ended; guarded by
// device.mu.
type streamTotals struct {
	mpa   mpa.Stats
	rdmap rdmap.Stats
}

func (t *streamTotals) add(c *conn) {
	m := c.mpa.Stats()
	t.mpa.FPDUsIn += m.FPDUsIn
	t.mpa.OctetsIn += m.OctetsIn
	t.mpa.FPDUsOut += m.FPDUsOut
	t.mpa.OctetsOut += m.OctetsOut
	t.mpa.CRCErrors += m.CRCErrors
	if c.stream == nil {
		return
	}
	r := c.stream.Stats()
	t.rdmap.SendsOut += r.SendsOut
	t.rdmap.WritesOut += r.WritesOut
	t.rdmap.ReadsOut += r.ReadsOut
	t.rdmap.ResponsesOut += r.ResponsesOut
	t.rdmap.SendsIn += r.SendsIn
	t.rdmap.WritesIn += r.WritesIn
	t.rdmap.RequestsIn += r.RequestsIn
	t.rdmap.ResponsesIn += r.ResponsesIn
	t.rdmap.ImmediatesOut += r.ImmediatesOut
	t.rdmap.ImmediatesIn += r.ImmediatesIn
	t.rdmap.AtomicsOut += r.AtomicsOut
	t.rdmap.AtomicsIn += r.AtomicsIn
	t.rdmap.AtomicResponsesOut += r.AtomicResponsesOut
	t.rdmap.AtomicResponsesIn += r.AtomicResponsesIn
	t.rdmap.TerminatesOut += r.TerminatesOut
	t.rdmap.TerminatesIn += r.TerminatesIn
}

// snapshot is what verbs.Device.Stats shows of this provider.
func (d *device) snapshot() verbs.Stats {
	d.mu.Lock()
	t := d.totals
	for c := range d.live {
		t.add(c)
	}
	d.mu.Unlock()
	s := &d.stats
	n := d.stack.Stats()
	c := []verbs.Counter{
		{Name: "cm.connected", Value: s.connected.Load()},
		{Name: "cm.accepted", Value: s.accepted.Load()},
		{Name: "cm.ended", Value: s.ended.Load()},
		{Name: "cm.dial_errors", Value: s.dialErrors.Load()},
		{Name: "cm.half_open_dropped", Value: s.halfOpenDropped.Load()},
		{Name: "cm.request_timeouts", Value: s.requestTimeouts.Load()},
		{Name: "cm.requests_refused", Value: s.requestsRefused.Load()},
		{Name: "cm.backlog_full", Value: s.backlogFull.Load()},
		{Name: "cm.events_dropped", Value: d.events.dropped.Load()},
		{Name: "cm.events_merged", Value: d.events.merged.Load()},
		{Name: "cm.no_read_slots", Value: s.noSlots.Load()},
		{Name: "cm.access_errors", Value: s.accessErrors.Load()},
		{Name: "cm.request_errors", Value: s.requestErrors.Load()},
		{Name: "cm.logs_left_out", Value: d.log.total.Load()},
		{Name: "rq.empty", Value: s.noReceive.Load()},
		{Name: "srq.empty", Value: s.srqEmpty.Load()},
		{Name: "srq.limit_reached", Value: s.srqLimits.Load()},
		{Name: "mpa.fpdus_in", Value: t.mpa.FPDUsIn},
		{Name: "mpa.fpdus_out", Value: t.mpa.FPDUsOut},
		{Name: "mpa.octets_in", Value: t.mpa.OctetsIn},
		{Name: "mpa.octets_out", Value: t.mpa.OctetsOut},
		{Name: "mpa.crc_errors", Value: t.mpa.CRCErrors},
		{Name: "rdmap.sends_in", Value: t.rdmap.SendsIn},
		{Name: "rdmap.sends_out", Value: t.rdmap.SendsOut},
		{Name: "rdmap.writes_in", Value: t.rdmap.WritesIn},
		{Name: "rdmap.writes_out", Value: t.rdmap.WritesOut},
		{Name: "rdmap.read_requests_in", Value: t.rdmap.RequestsIn},
		{Name: "rdmap.read_requests_out", Value: t.rdmap.ReadsOut},
		{Name: "rdmap.read_responses_in", Value: t.rdmap.ResponsesIn},
		{Name: "rdmap.read_responses_out", Value: t.rdmap.ResponsesOut},
		{Name: "rdmap.immediates_in", Value: t.rdmap.ImmediatesIn},
		{Name: "rdmap.immediates_out", Value: t.rdmap.ImmediatesOut},
		{Name: "rdmap.atomic_requests_in", Value: t.rdmap.AtomicsIn},
		{Name: "rdmap.atomic_requests_out", Value: t.rdmap.AtomicsOut},
		{Name: "rdmap.atomic_responses_in", Value: t.rdmap.AtomicResponsesIn},
		{Name: "rdmap.atomic_responses_out", Value: t.rdmap.AtomicResponsesOut},
		{Name: "rdmap.terminates_in", Value: t.rdmap.TerminatesIn},
		{Name: "rdmap.terminates_out", Value: t.rdmap.TerminatesOut},
		{Name: "rx.turns_device", Value: d.role.own.Load()},
		{Name: "rx.turns_application", Value: d.role.apps.Load()},
		{Name: "tx.turns_device", Value: d.txq.own.Load()},
		{Name: "tx.turns_application", Value: d.txq.apps.Load()},
		{Name: "mempool.tx_out", Value: uint64(d.pool.Out())},
	}
	c = append(c,
		verbs.Counter{Name: "tcp.open", Value: uint64(n.Conns)},
		verbs.Counter{Name: "tcp.retransmits", Value: n.Retransmits},
		verbs.Counter{Name: "tcp.timeouts", Value: n.Timeouts},
		verbs.Counter{Name: "tcp.recoveries", Value: n.Recoveries},
		verbs.Counter{Name: "tcp.resets_in", Value: n.ResetsIn},
		verbs.Counter{Name: "tcp.resets_out", Value: n.ResetsOut},
		verbs.Counter{Name: "tcp.checksum_errors", Value: n.ChecksumErrors},
		verbs.Counter{Name: "tcp.silent_peers", Value: n.Silent},
		verbs.Counter{Name: "link.frames_in", Value: n.FramesIn},
		verbs.Counter{Name: "link.frames_out", Value: n.FramesOut},
		verbs.Counter{Name: "link.octets_in", Value: n.OctetsIn},
		verbs.Counter{Name: "link.octets_out", Value: n.OctetsOut},
		verbs.Counter{Name: "link.drops_in", Value: n.DropsIn},
		verbs.Counter{Name: "link.drops_out", Value: n.DropsOut},
		verbs.Counter{Name: "link.address_conflicts", Value: n.AddressConflicts},
	)
	return verbs.Stats{Counters: c}
}

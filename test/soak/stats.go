package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/pktio"
)

// stats counts what an end does.
type stats struct {
	start   time.Time
	resends uint64 // of the kernel, until then

	posted      [opKinds]atomic.Uint64 // requests taken
	inline      atomic.Uint64          // of them with inline data
	batches     atomic.Uint64
	queueFull   atomic.Uint64 // times that PostSend found the queue full
	completions atomic.Uint64 // good ones
	received    atomic.Uint64 // of them of receives
	flushed     atomic.Uint64 // completions of requests that an end cut off
	octets      atomic.Uint64 // compared: received, written by the peer, read
	rounds      atomic.Uint64
	generations atomic.Uint64
	ends        [endings]atomic.Uint64 // that this end has made
	dialsLost   atomic.Uint64          // connections that the link has lost while they were made
	rejects     atomic.Uint64          // calls refused as planned
	events      atomic.Uint64
}

// snapshot is what one end, or both together, have done so far.
type snapshot struct {
	Seconds     float64            `json:"seconds"`
	Operations  map[string]uint64  `json:"operations"`
	Inline      uint64             `json:"inline"`
	Batches     uint64             `json:"batches"`
	QueueFull   uint64             `json:"queue_full"`
	Completions uint64             `json:"completions"`
	Received    uint64             `json:"received"`
	Flushed     uint64             `json:"flushed"`
	Octets      uint64             `json:"octets_compared"`
	Rounds      uint64             `json:"rounds"`
	Generations uint64             `json:"connections"` // ended and checked, counted at one end
	Ends        map[string]uint64  `json:"ends"`
	DialsLost   uint64             `json:"dials_lost"`
	Rejects     uint64             `json:"rejects"`
	Events      uint64             `json:"events"`
	Objects     objects            `json:"objects"`
	Counters    map[string]uint64  `json:"counters"` // of the devices
	Faults      *pktio.FaultyStats `json:"faults,omitempty"`
	Host        host               `json:"host"` // of all processes
}

// objects are what the devices have open.
type objects struct {
	QPs, CQs, MRs, PDs int
	Leaks              uint64
}

func (e *end) snapshot() snapshot {
	st := &e.stats
	s := snapshot{
		Seconds: time.Since(st.start).Seconds(), Operations: map[string]uint64{}, Ends: map[string]uint64{}, Counters: map[string]uint64{},
		Inline: st.inline.Load(), Batches: st.batches.Load(), QueueFull: st.queueFull.Load(), Completions: st.completions.Load(),
		Received: st.received.Load(), Flushed: st.flushed.Load(), Octets: st.octets.Load(), Rounds: st.rounds.Load(),
		DialsLost: st.dialsLost.Load(), Rejects: st.rejects.Load(), Events: st.events.Load(),
	}
	for i := range st.posted {
		s.Operations[opNames[i]] = st.posted[i].Load()
	}
	for i := range st.ends {
		s.Ends[endingNames[i]] = st.ends[i].Load()
	}
	if e.side == dialing {
		s.Generations = st.generations.Load()
	}
	d := e.dev.Stats()
	s.Objects = objects{d.QPs, d.CQs, d.MRs, d.PDs, d.Leaks}
	for _, c := range d.Counters {
		s.Counters[c.Name] = c.Value
	}
	if e.o.Link == "netns" && e.o.Backend == "kernel" { // elsewhere the kernel has other connections too
		s.Counters["tcp.retransmits"] += kernelRetransmits() - st.resends
	}
	return s
}

// kernelRetransmits is the kernel's own count in this network namespace.
func kernelRetransmits() uint64 {
	b, err := os.ReadFile("/proc/self/net/snmp")
	if err != nil {
		return 0
	}
	var names []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != "Tcp:" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		if i := slices.Index(names, "RetransSegs"); i >= 0 && i < len(f) {
			n, _ := strconv.ParseUint(f[i], 10, 64) // 0 if it is none
			return n
		}
	}
	return 0
}

// add makes s that of both ends.
func (s *snapshot) add(o snapshot) {
	s.Seconds = max(s.Seconds, o.Seconds)
	for _, m := range []struct{ to, from map[string]uint64 }{{s.Operations, o.Operations}, {s.Ends, o.Ends}, {s.Counters, o.Counters}} {
		for k, v := range m.from {
			m.to[k] += v
		}
	}
	for _, n := range []struct{ to, from *uint64 }{
		{&s.Inline, &o.Inline}, {&s.Batches, &o.Batches}, {&s.QueueFull, &o.QueueFull}, {&s.Completions, &o.Completions},
		{&s.Received, &o.Received}, {&s.Flushed, &o.Flushed}, {&s.Octets, &o.Octets}, {&s.Rounds, &o.Rounds},
		{&s.Generations, &o.Generations}, {&s.DialsLost, &o.DialsLost}, {&s.Rejects, &o.Rejects}, {&s.Events, &o.Events}, {&s.Objects.Leaks, &o.Objects.Leaks},
	} {
		*n.to += *n.from
	}
	s.Objects.QPs += o.Objects.QPs
	s.Objects.CQs += o.Objects.CQs
	s.Objects.MRs += o.Objects.MRs
	s.Objects.PDs += o.Objects.PDs
	s.Host.add(o.Host)
}

// addFaults adds those of one direction.
func (s *snapshot) addFaults(f pktio.FaultyStats) {
	if s.Faults == nil {
		s.Faults = new(pktio.FaultyStats)
	}
	t := s.Faults
	t.Sent += f.Sent
	t.Lost += f.Lost
	t.Duplicated += f.Duplicated
	t.Reordered += f.Reordered
	t.Corrupted += f.Corrupted
	t.Delayed += f.Delayed
	t.NoQueue += f.NoQueue
	t.NoRoom += f.NoRoom
}

// all is the number of requests posted.
func (s *snapshot) all() (n uint64) {
	for _, v := range s.Operations {
		n += v
	}
	return n
}

// String is the line of a report.
func (s *snapshot) String() string {
	kinds := make([]string, len(opNames))
	for i, k := range opNames {
		kinds[i] = fmt.Sprintf("%s %d", k, s.Operations[k])
	}
	cut := uint64(0)
	for how, n := range s.Ends {
		if how != endInOrder.String() {
			cut += n
		}
	}
	faults := "no faults"
	if f := s.Faults; f != nil {
		faults = fmt.Sprintf("faults: lost %d doubled %d reordered %d corrupted %d delayed %d no room %d of %d frames",
			f.Lost, f.Duplicated, f.Reordered, f.Corrupted, f.Delayed, f.NoQueue+f.NoRoom, f.Sent)
	}
	return fmt.Sprintf("%4.0f s: %d operations (%s), %.2f GiB compared; retransmits %d; %s; %d connections ended, cut off by an end %d times, lost %d; "+
		"RSS %d MiB, %d goroutines; %d QPs %d CQs %d MRs %d PDs, %d leaked",
		s.Seconds, s.all(), strings.Join(kinds, " "), float64(s.Octets)/(1<<30), s.Counters["tcp.retransmits"], faults,
		s.Generations, cut, s.DialsLost, s.Host.RSS>>20, s.Host.Goroutines,
		s.Objects.QPs, s.Objects.CQs, s.Objects.MRs, s.Objects.PDs, s.Objects.Leaks)
}

// rates are the figures of a whole run.
func (s *snapshot) rates() string {
	return fmt.Sprintf("%.0f operations/s, %.1f MiB/s compared", float64(s.all())/s.Seconds, float64(s.Octets)/s.Seconds/(1<<20))
}

package verbs

// Counter is a named number that only grows. Names are dotted, layer first:
// "mpa.crc_errors".
type Counter struct {
	Name  string
	Value uint64
}

// Stats is a snapshot of a device's counters. The first group counts objects
// that are open now.
type Stats struct {
	PDs, MRs, MWs, CQs, QPs, SRQs int
	MRBytes                       int64 // octets in open memory regions
	QueueBytes                    int64 // octets in open work and completion queues

	SendsPosted, RecvsPosted uint64 // work requests accepted, by all queue pairs so far
	Completions              uint64 // stored in all completion queues so far
	CompletionsLost          uint64 // found their completion queue full
	Refused                  uint64 // objects that were not made because a limit was reached (syscall.ENOMEM)
	Leaks                    uint64 // objects that became unreachable without Close

	// Counters are the provider's own, in a fixed order.
	Counters []Counter
}

// Counter returns the value of the provider's counter with that name; 0 if there
// is none.
func (s *Stats) Counter(name string) uint64 {
	for i := range s.Counters {
		if s.Counters[i].Name == name {
			return s.Counters[i].Value
		}
	}
	return 0
}

package netstack

// Stats counts what a Stack did since it was made. What a carrier cannot know is 0.
type Stats struct {
	// Frames and their octets, Ethernet headers included; a frame that stands for several on the wire counts once.
	// User-space carrier.
	FramesIn, OctetsIn, FramesOut, OctetsOut uint64

	// DropsIn are arrived frames of no use: for another host, of another protocol, malformed, or with a bad
	// checksum. DropsOut are frames the port had no room for. User-space carrier.
	DropsIn, DropsOut uint64

	// ChecksumErrors are arrived packets whose IP or TCP checksum was wrong. User-space carrier.
	ChecksumErrors uint64

	// Retransmits are segments sent again, Timeouts expirations of a retransmission timer, Recoveries losses found
	// without it. User-space carrier.
	Retransmits, Timeouts, Recoveries uint64

	// Silent are connections given up because the peer answered no more, see Keepalive.
	Silent uint64

	// AddressConflicts are arrived frames of other hosts that use one of our addresses, see Stack.Conflict.
	// User-space carrier.
	AddressConflicts uint64

	// Resets are connections reset by either side. User-space carrier.
	ResetsIn, ResetsOut uint64

	// Opened and Accepted are connections established by us and by peers.
	Opened, Accepted uint64

	// Events are those Poll handed out.
	Events uint64

	// Conns and Listeners are open now.
	Conns, Listeners int
}

// Stats returns the counters. Any goroutine.
func (s *Stack) Stats() Stats {
	s.mu.Lock()
	st := Stats{Conns: len(s.conns), Listeners: len(s.listeners)}
	s.mu.Unlock()
	st.Events = s.ready.events.Load()
	st.Silent = s.silent.Load()
	if s.user != nil {
		s.user.addStats(&st)
	} else {
		s.kern.addStats(&st)
	}
	return st
}

func (u *userStack) addStats(st *Stats) {
	c := &u.link.count
	st.FramesIn, st.OctetsIn, st.DropsIn = c.framesIn.Load(), c.octetsIn.Load(), c.dropsIn.Load()
	st.FramesOut, st.OctetsOut, st.DropsOut = c.framesOut.Load(), c.octetsOut.Load(), c.dropsOut.Load()
	t := u.tcp.Stats().TCP
	st.ChecksumErrors = c.badSums.Load() + t.ChecksumErrors.Value()
	st.Retransmits = t.Retransmits.Value()
	st.Timeouts = t.Timeouts.Value()
	st.Recoveries = t.FastRecovery.Value() + t.SACKRecovery.Value()
	st.AddressConflicts = u.link.others.count.Load()
	st.ResetsIn, st.ResetsOut = t.ResetsReceived.Value(), t.ResetsSent.Value()
	st.Opened, st.Accepted = t.ActiveConnectionOpenings.Value(), t.PassiveConnectionOpenings.Value()
}

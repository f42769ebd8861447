package verbs

import "errors"

// SRQ is a shared receive queue: receives that several queue pairs take from in
// posting order. It is not there yet; PD.CreateSRQ refuses.
type SRQ struct {
	pd *PD
}

// SRQConfig sizes a shared receive queue.
type SRQConfig struct {
	MaxWR  int // receives
	MaxSGE int // SGEs of a receive
	Limit  int // raise EventSRQLimitReached once when fewer are left; 0: never
}

// CreateSRQ makes a shared receive queue. Today it always fails with an error
// that matches [errors.ErrUnsupported].
func (p *PD) CreateSRQ(SRQConfig) (*SRQ, error) {
	return nil, &OpError{"create srq", p.name(), &unsupported{"a shared receive queue"}}
}

// PD returns the protection domain whose keys the receives of s use.
func (s *SRQ) PD() *PD { return s.pd }

// PostRecv posts receives. Today it always fails with errors.ErrUnsupported.
func (s *SRQ) PostRecv([]RecvWR) (int, error) { return 0, errors.ErrUnsupported }

// Close frees s.
func (s *SRQ) Close() error { return nil }

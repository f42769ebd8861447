package verbs

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
)

// PD is a protection domain. Work requests of its queue pairs may name its
// memory regions only, and peers connected to its queue pairs reach no others.
type PD struct {
	p    *pd
	dev  *Device
	leak runtime.Cleanup
}

type pd struct {
	d       *device
	num     uint32
	closing bool              // guarded by d.life
	mrs     map[*mr]struct{}  // guarded by d.mu
	mws     map[*mw]struct{}  // guarded by d.mu
	qps     map[*qp]struct{}  // guarded by d.mu
	srqs    map[*srq]struct{} // guarded by d.mu
	once    sync.Once
}

// Device returns the device of p.
func (p *PD) Device() *Device { return p.dev }

// Num returns the number of p, unique in its device.
func (p *PD) Num() uint32 { return p.p.num }

func (p *PD) String() string { return p.name() }
func (p *PD) name() string   { return fmt.Sprintf("pd %d", p.p.num) }

// Close closes the queue pairs of p, then its shared receive queues, then its
// memory windows and regions, then p, and returns the errors met, joined. If
// queue pairs of other protection domains use a shared receive queue of p, Close
// changes nothing and returns a *[BusyError] that names them. A second Close
// waits for the first and returns nil.
func (p *PD) Close() error {
	if err := p.p.begin(); err != nil {
		return err
	}
	p.leak.Stop()
	if err := p.p.close(); err != nil {
		return &OpError{"close", p.name(), err}
	}
	return nil
}

// begin marks p as closing, unless others use what is in it.
func (p *pd) begin() error {
	p.d.life.Lock()
	defer p.d.life.Unlock()
	if p.closing {
		return nil
	}
	p.d.mu.Lock()
	srqs := keys(p.srqs)
	p.d.mu.Unlock()
	for _, s := range srqs {
		if err := s.busy(p); err != nil {
			return err
		}
	}
	p.closing = true
	return nil
}

func (p *pd) close() (err error) {
	p.once.Do(func() {
		p.d.life.Lock()
		p.closing = true
		p.d.life.Unlock()

		p.d.mu.Lock()
		qps, srqs, mws, mrs := keys(p.qps), keys(p.srqs), keys(p.mws), keys(p.mrs)
		p.d.mu.Unlock()
		var errs []error
		for _, q := range qps {
			errs = append(errs, q.close())
		}
		for _, s := range srqs {
			errs = append(errs, s.shut())
		}
		for _, m := range mws {
			errs = append(errs, m.close())
		}
		for _, m := range mrs {
			errs = append(errs, m.close())
		}
		p.d.mu.Lock()
		delete(p.d.pds, p)
		p.d.mu.Unlock()
		err = errors.Join(errs...)
	})
	return err
}

// open reports ErrClosed if p or its device is closing. The caller holds d.life.
func (p *pd) open() error {
	if p.closing || p.d.closing {
		return ErrClosed
	}
	return nil
}

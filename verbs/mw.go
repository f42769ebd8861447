package verbs

import (
	"fmt"
	"runtime"
	"sync"
)

// MWType is the type of a memory window (ibv_mw_type).
type MWType uint8

const (
	// MWType1 serves every queue pair of its domain. Each bind gives it another
	// key and takes it from what it showed before.
	MWType1 MWType = 1
	// MWType2 serves the queue pair that bound it and no other (type 2B of
	// libibverbs). Its user chooses the last octet of its key; it is bound when it
	// is invalid, and made invalid by OpLocalInv or by the peer's OpSendWithInv.
	MWType2 MWType = 2
)

func (t MWType) String() string { return fmt.Sprintf("type %d", uint8(t)) }

// MW is a memory window: a second key for a part of a memory region, with rights
// of its own, that is given and taken by work requests in line with the others.
// So a peer can be shown the octets of one transfer for the time of it.
//
// A window is bound by a work request with [OpBindMW]. Peers then reach the range
// with the rights that the request gave, whatever the region's own remote rights
// are. The key is for peers alone: an SGE needs the region. A region with windows
// cannot be closed. The rules are those of libibverbs and of
// draft-hilland-rddp-verbs; for what a peer meets on a window it may not use see
// RFC 5041, Section 7.1, and RFC 5040, Section 7.2.
//
// Any goroutine may call the methods. Binds of one window that are posted to
// several queue pairs at once come in any order, so do not.
type MW struct {
	m    *mw
	pd   *PD
	leak runtime.Cleanup
}

type mw struct {
	pd  *pd
	typ MWType

	mu    sync.Mutex // guards what follows
	gone  bool
	shows RemoteBuf // as bound last by a post; RKey is the key in any case
	of    *mr       // the region of that
}

// AllocMW makes a memory window of p, which shows nothing until it is bound.
// Errors match syscall.EINVAL (unknown type), syscall.ENOMEM (too many windows),
// errors.ErrUnsupported and ErrClosed.
func (p *PD) AllocMW(t MWType) (*MW, error) {
	h, err := p.allocMW(t)
	if err != nil {
		return nil, p.p.d.failed("alloc mw", p.name(), err)
	}
	return h, nil
}

func (p *PD) allocMW(t MWType) (*MW, error) {
	d := p.p.d
	switch {
	case d.p.AllocMW == nil || d.attr.MaxMW == 0:
		return nil, &unsupported{"a memory window"}
	case t != MWType1 && t != MWType2:
		return nil, invalidf("memory window of type %d: there are MWType1 and MWType2", uint8(t))
	}
	d.life.RLock()
	defer d.life.RUnlock()
	if err := p.p.open(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	if d.mws >= d.attr.MaxMW {
		d.mu.Unlock()
		return nil, noRoom("memory windows", d.attr.MaxMW)
	}
	d.mws++
	d.mu.Unlock()
	key, err := d.p.AllocMW(p.p.num, t)
	m := &mw{pd: p.p, typ: t, shows: RemoteBuf{RKey: key}}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.mws--
		return nil, err
	}
	p.p.mws[m] = struct{}{}
	h := &MW{m: m, pd: p}
	h.leak = watch(d, h, "mw", uint32(key))
	return h, nil
}

// PD returns the protection domain of w.
func (w *MW) PD() *PD { return w.pd }

// Type returns the type of w.
func (w *MW) Type() MWType { return w.m.typ }

// Remote returns what a peer needs in order to name what w shows, as the bind
// that was posted last said. Peers may use it once that bind has completed, or
// from a message that is posted behind it. Only RKey is set as long as w has
// shown nothing.
func (w *MW) Remote() RemoteBuf {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	return w.m.shows
}

// Key returns the key that the bind posted last has given, or will give, to w.
func (w *MW) Key() Key { return w.Remote().RKey }

// Valid reports whether w shows something under its key now: it turns true when a
// bind is done, and false when the window is invalidated, from here or by the
// peer, or closed.
func (w *MW) Valid() bool {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	return !w.m.gone && w.m.pd.d.p.KeyValid(w.m.shows.RKey)
}

func (w *MW) String() string { return fmt.Sprintf("mw %v %v", w.m.typ, w.Remote()) }

// Close frees w, bound or not: when it returns no peer reaches anything through
// it any more. Work requests that still name it fail with [WCMWBindErr] or
// [WCLocProtErr]. A second Close returns nil. The close of a queue pair makes the
// windows of type 2 that it bound invalid, but does not free them; the close of a
// domain does.
func (w *MW) Close() error {
	w.leak.Stop()
	if err := w.m.close(); err != nil {
		return &OpError{"close", fmt.Sprintf("mw %v", w.Key()), err}
	}
	return nil
}

func (m *mw) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return nil
	}
	d := m.pd.d
	if err := d.p.DeallocMW(m.shows.RKey); err != nil {
		return err
	}
	m.gone, m.of = true, nil
	d.mu.Lock()
	delete(m.pd.mws, m)
	d.mws--
	d.mu.Unlock()
	return nil
}

// busy names the windows bound to m if err is a *BusyError of the provider that
// names none; any other error it returns as it is.
func (m *mr) busy(err error) error {
	e, ok := err.(*BusyError)
	if !ok || len(e.Users) > 0 {
		return err
	}
	d := m.pd.d
	d.mu.Lock()
	mws := keys(m.pd.mws)
	d.mu.Unlock()
	e = &BusyError{Object: fmt.Sprintf("mr %v", m.getKey())}
	for _, w := range mws {
		w.mu.Lock()
		if w.of == m && d.p.KeyValid(w.shows.RKey) {
			e.Users = append(e.Users, fmt.Sprintf("mw %v", w.shows.RKey))
		}
		w.mu.Unlock()
	}
	if e.Users == nil { // one that is just being bound
		e.Users = []string{"memory windows"}
	}
	return e
}

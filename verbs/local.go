package verbs

import (
	"math"

	"github.com/softrdma/softrdma/internal/ring"
)

// windowRights are the rights that a memory window can grant.
const windowRights = AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic

// putLocal is putSend for requests that concern keys of this side alone. What the
// provider checks when their turn comes is not checked here: it depends on the
// requests before.
func (q *qp) putLocal(wr *SendWR, flags SendFlags) error {
	switch a := &q.pd.d.attr; {
	case a.MaxMW == 0:
		return &unsupported{wr.Op.String()}
	case flags&SendInline != 0:
		return invalidf("%v cannot be inline", wr.Op)
	case wr.Op != OpBindMW && len(wr.SGL) > 0:
		return invalidf("%v takes no SGE", wr.Op)
	case wr.Op == OpBindMW:
		return q.putBind(wr, flags)
	case wr.Op == OpRegMR:
		return q.putReg(wr, flags)
	case wr.Inv == 0:
		return invalidf("key 0 names no memory: OpLocalInv takes the key in Inv")
	}
	w, err := q.localSlot(wr, flags)
	if err == nil {
		w.SetInv(uint32(wr.Inv))
	}
	return err
}

// localSlot returns the next slot with what every request has.
func (q *qp) localSlot(wr *SendWR, flags SendFlags) (ring.WQE, error) {
	rec := q.sq.ring.Slot()
	if rec == nil {
		return nil, ErrQueueFull
	}
	w := ring.WQE(rec)
	w.SetHead(wr.ID, uint8(wr.Op), uint8(flags))
	w.SetNumSGE(0)
	return w, nil
}

// putBind is putLocal for OpBindMW.
func (q *qp) putBind(wr *SendWR, flags SendFlags) error {
	var s SGE
	switch {
	case wr.MW == nil:
		return invalidf("no memory window to bind")
	case wr.MW.m.pd.d != q.pd.d:
		return invalidf("memory window of another device")
	case wr.Access&^windowRights != 0:
		return invalidf("a memory window cannot grant %v", wr.Access&^windowRights)
	case len(wr.SGL) > 1:
		return invalidf("a memory window shows one SGE, has %d", len(wr.SGL))
	case len(wr.SGL) == 1:
		s = wr.SGL[0]
	}
	m := wr.MW.m
	switch {
	case s.Len < 0 || s.Off < 0:
		return invalidf("SGE 0: octets %d+%d", s.Off, s.Len)
	case s.Len == 0 && m.typ != MWType1:
		return invalidf("a memory window of %v needs octets to show: OpLocalInv ends it", m.typ)
	case s.Len > 0 && s.MR == nil:
		return invalidf("SGE 0: no region")
	case s.Len > 0 && s.MR.m.pd.d != q.pd.d:
		return invalidf("SGE 0: region of another device")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return invalidf("memory window is closed")
	}
	if m.typ == MWType1 && wr.Key != 0 {
		return invalidf("the key of a memory window of %v cannot be chosen", m.typ)
	}
	key, err := m.shows.RKey.next(wr.Key)
	if err != nil {
		return err
	}
	w, err := q.localSlot(wr, flags)
	if err != nil {
		return err
	}
	b := ring.Bind{Key: uint32(key), Access: uint8(wr.Access)}
	m.shows, m.of = RemoteBuf{RKey: key}, nil
	if s.Len > 0 {
		r := s.MR.m
		b.Region, b.Off, b.Len = uint32(r.key.Load()), uint64(s.Off), uint64(s.Len)
		m.shows.Addr, m.shows.Len = r.addr+uint64(s.Off), uint32(min(uint64(s.Len), math.MaxUint32))
		m.of = r
	}
	w.SetBind(b)
	return nil
}

// putReg is putLocal for OpRegMR.
func (q *qp) putReg(wr *SendWR, flags SendFlags) error {
	switch {
	case wr.MR == nil:
		return invalidf("no region to register")
	case wr.MR.m.pd.d != q.pd.d:
		return invalidf("region of another device")
	case !wr.MR.m.fast:
		return invalidf("%v is registered for good: OpRegMR takes a region of AllocFastMR", wr.MR.m)
	case wr.Access&AccessZeroBased != 0:
		return invalidf("fast registration has no %v", AccessZeroBased)
	}
	if err := wr.Access.check(); err != nil {
		return err
	}
	m := wr.MR.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone.Load() {
		return invalidf("region is closed")
	}
	key, err := m.getKey().next(wr.Key)
	if err != nil {
		return err
	}
	w, err := q.localSlot(wr, flags)
	if err != nil {
		return err
	}
	w.SetBind(ring.Bind{Key: uint32(key), Access: uint8(wr.Access)})
	m.key.Store(uint32(key))
	m.access.Store(uint32(wr.Access))
	return nil
}

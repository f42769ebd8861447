package verbs

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// MR is a memory region: octets that work requests and, as far as its access
// says, peers may name by a key. The region keeps its memory alive until Close.
type MR struct {
	m    *mr
	pd   *PD
	leak runtime.Cleanup
}

type mr struct {
	pd     *pd
	mem    []byte
	addr   uint64 // of mem[0] for peers
	fast   bool   // key and access change by OpRegMR
	key    atomic.Uint32
	access atomic.Uint32
	gone   atomic.Bool // closed: posts refuse it

	mu sync.Mutex // serialises close and what changes key and access
}

func (m *mr) getKey() Key       { return Key(m.key.Load()) }
func (m *mr) getAccess() Access { return Access(m.access.Load()) }

// AllocMR makes a region of n octets of zeroed memory that begins on a page.
// Such memory also works through a daemon; prefer it. Errors as for [PD.RegMR].
func (p *PD) AllocMR(n int, a Access) (*MR, error) {
	if err := p.p.checkMR(n, a); err != nil {
		return nil, &OpError{"alloc mr", p.name(), err}
	}
	return p.reg("alloc mr", n, func() []byte { return pages(n) }, a, false)
}

// RegMR makes a region of buf, whose memory must stay the caller's to give: it
// must not be memory that something else reuses. With an in-process device any
// memory does; through a daemon RegMR fails with [ErrNotShareable].
//
// Errors match syscall.EINVAL (no octets, too many octets, a right to write from
// afar without AccessLocalWrite), syscall.ENOMEM (too many regions, or too many
// octets in all of them) and ErrClosed.
func (p *PD) RegMR(buf []byte, a Access) (*MR, error) {
	if err := p.p.checkMR(len(buf), a); err != nil {
		return nil, &OpError{"reg mr", p.name(), err}
	}
	return p.reg("reg mr", len(buf), func() []byte { return buf[:len(buf):len(buf)] }, a, false)
}

// AllocFastMR makes a region of n octets of zeroed memory, like [PD.AllocMR], for
// fast registration: nothing can be done with it until a work request with
// [OpRegMR] gives it rights. OpLocalInv takes them back, and so may a peer, by
// OpSendWithInv on any connection of the domain, if some of them are remote
// rights; then it can be registered again. So it suits one peer at a time.
//
// Errors are those of AllocMR; where the device has no fast registration they
// match errors.ErrUnsupported.
func (p *PD) AllocFastMR(n int) (*MR, error) {
	d := p.p.d
	err := p.p.checkMR(n, 0)
	if d.p.AllocFastMR == nil {
		err = &unsupported{"fast registration"}
	}
	if err != nil {
		return nil, &OpError{"alloc fast mr", p.name(), err}
	}
	return p.reg("alloc fast mr", n, func() []byte { return pages(n) }, 0, true)
}

func (p *pd) checkMR(n int, a Access) error {
	if n <= 0 {
		return invalidf("region of %d octets", n)
	}
	if int64(n) > p.d.attr.MaxMRSize {
		return invalidf("region of %d octets: the device allows %d", n, p.d.attr.MaxMRSize)
	}
	return a.check()
}

// reg makes a region of the n octets that get returns, once there is room for
// them.
func (p *PD) reg(op string, n int, get func() []byte, a Access, fast bool) (*MR, error) {
	d := p.p.d
	d.life.RLock()
	defer d.life.RUnlock()
	if err := p.p.open(); err != nil {
		return nil, &OpError{op, p.name(), err}
	}
	if err := d.takeMR(n); err != nil {
		return nil, d.failed(op, p.name(), err)
	}
	mem := get()
	reg := d.p.RegMR
	if fast {
		reg = d.p.AllocFastMR
	}
	key, addr, err := reg(p.p.num, mem, a)
	if err != nil {
		d.dropMR(len(mem))
		return nil, &OpError{op, p.name(), err}
	}
	m := &mr{pd: p.p, mem: mem, addr: addr, fast: fast}
	m.key.Store(uint32(key))
	m.access.Store(uint32(a))
	d.mu.Lock()
	p.p.mrs[m] = struct{}{}
	d.mu.Unlock()
	h := &MR{m: m, pd: p}
	h.leak = watch(d, h, "mr", uint32(key))
	return h, nil
}

func (d *device) takeMR(n int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mrs >= d.attr.MaxMR {
		return noRoom("memory regions", d.attr.MaxMR)
	}
	if int64(n) > d.attr.MaxMRBytes-d.mrLen {
		return roomf("no room for a region of %d octets: the device allows %d octets in memory regions, %d are taken", n, d.attr.MaxMRBytes, d.mrLen)
	}
	d.mrs++
	d.mrLen += int64(n)
	return nil
}

func (d *device) dropMR(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mrs--
	d.mrLen -= int64(n)
}

// pages returns n zeroed octets that begin on a page. Go's heap does not move.
func pages(n int) []byte {
	page := os.Getpagesize()
	b := make([]byte, n+page-1)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & uintptr(page-1))
	return b[skip : skip+n : skip+n]
}

// PD returns the protection domain of m.
func (m *MR) PD() *PD { return m.pd }

// Bytes returns the memory of the region. While a work request has it on loan,
// or a peer may write it, its octets may change at any time; they are the
// caller's after the completion that says so was polled.
func (m *MR) Bytes() []byte { return m.m.mem }

// Len returns the size of the region in octets.
func (m *MR) Len() int { return len(m.m.mem) }

// Key returns the key of the region, which is local and remote key in one. That of
// a region of [PD.AllocFastMR] is the one that the OpRegMR posted last has given,
// or will give.
func (m *MR) Key() Key { return m.m.getKey() }

// Access returns what the region may be used for; like Key for a region of
// [PD.AllocFastMR].
func (m *MR) Access() Access { return m.m.getAccess() }

// Valid reports whether the region can be used under its key now. It is true until
// Close, but for a region of [PD.AllocFastMR]: for that it turns true when an
// OpRegMR is done, and false when it is invalidated, from here or by the peer.
func (m *MR) Valid() bool {
	return !m.m.gone.Load() && (!m.m.fast || m.m.pd.d.p.KeyValid(m.m.getKey()))
}

// SGE names the n octets from octet off on. The range is checked when it is
// posted.
func (m *MR) SGE(off, n int) SGE { return SGE{MR: m, Off: off, Len: n} }

// Remote returns what a peer needs in order to name the whole region. Its Len
// stops at 2^32-1; of a larger region Addr still reaches every octet.
func (m *MR) Remote() RemoteBuf {
	return RemoteBuf{Addr: m.m.addr, RKey: m.Key(), Len: uint32(min(uint64(len(m.m.mem)), math.MaxUint32))}
}

// Uint64 returns the 8 octets at off as an atomic variable in host byte order:
// the way to watch or change memory that peers or work requests change too. It
// panics unless the octets are inside the region and aligned to 8 in memory;
// every multiple of 8 is, in a region from AllocMR.
func (m *MR) Uint64(off int) *atomic.Uint64 {
	p := unsafe.Pointer(&m.m.mem[off : off+8][0])
	if uintptr(p)%8 != 0 {
		panic(fmt.Sprintf("verbs: Uint64(%d) is not aligned to 8 octets", off))
	}
	return (*atomic.Uint64)(p)
}

func (m *MR) String() string { return m.m.String() }

func (m *mr) String() string {
	return fmt.Sprintf("mr %v addr 0x%x len %d %v", m.getKey(), m.addr, len(m.mem), m.getAccess())
}

// Close takes the region back: when it returns nil nothing touches the memory
// through its key any more, from here or from afar. Work requests that still
// name it fail with [WCLocProtErr]. With memory windows bound to it Close fails
// with a *[BusyError] that names them, and nothing changes. A second Close returns
// nil.
func (m *MR) Close() error {
	if err := m.m.close(); err != nil {
		if busy, ok := err.(*BusyError); ok {
			return busy
		}
		return &OpError{"close", fmt.Sprintf("mr %v", m.Key()), err}
	}
	m.leak.Stop()
	return nil
}

func (m *mr) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone.Load() {
		return nil
	}
	m.gone.Store(true) // first, so that no post is accepted and then fails
	d := m.pd.d
	if err := d.p.DeregMR(m.getKey()); err != nil {
		m.gone.Store(false)
		return m.busy(err)
	}
	d.mu.Lock()
	delete(m.pd.mrs, m)
	d.mrs--
	d.mrLen -= int64(len(m.mem))
	d.mu.Unlock()
	return nil
}

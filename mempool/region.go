package mempool

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Pages is a kind of memory, worse ones first.
type Pages uint8

// The kinds of memory.
const (
	Heap        Pages = iota // Go's own heap; no mapping of our own
	Plain                    // a mapping in pages of the system's size
	Transparent              // a mapping that the kernel backs with huge pages as it finds them
	Huge                     // a mapping in huge pages that the host has set aside
)

// String returns how a person would call it.
func (p Pages) String() string {
	switch p {
	case Heap:
		return "Go's heap"
	case Plain:
		return "plain"
	case Transparent:
		return "transparent huge"
	case Huge:
		return "huge"
	}
	return fmt.Sprintf("Pages(%d)", uint8(p))
}

// maxAlign is the most a region can be aligned to, in octets.
const maxAlign = 1 << 30

// RegionConfig describes a region. Only Size must be set.
type RegionConfig struct {
	// Size is how many octets the region has.
	Size int
	// Align is what the address of the first octet is a multiple of, in octets: a power of two. 0 means the system's
	// page size, which is also the least there is.
	Align int
	// Pages is the best kind of memory to try; what cannot be had falls back to the next worse. 0 means Huge.
	Pages Pages
	// Prefault takes all memory at once, so that no octet of it costs a page fault later. Without it memory is taken
	// as it is touched, except for Huge, which the host has set aside anyway.
	Prefault bool
	// NoLock leaves the region to be swapped out. Without it the region is locked where that is allowed, in the
	// amount that is there at a time: locking takes no memory.
	NoLock bool
	// Guard makes sure that the pages before and behind the region fault when touched, so that an overrun is found
	// where it happens; make Size a multiple of the page size for that. It rules out Huge.
	Guard bool
}

// Info says what memory a region or a pool got.
type Info struct {
	Pages    Pages
	PageSize int    // octets of the pages it is meant to be in
	Locked   bool   // it is never swapped out
	Size     int    // octets
	Resident int    // octets that have memory behind them at this moment; -1 where that cannot be told
	InHuge   int    // octets of those that are in huge pages
	Why      string // why it is not better, and what to do about it; empty for the best there is
}

// String returns all of it in one line.
func (i Info) String() string {
	s := fmt.Sprintf("%s in %s pages of %s", octets(i.Size), i.Pages, octets(i.PageSize))
	if i.Pages == Heap {
		s = fmt.Sprintf("%s of %s", octets(i.Size), i.Pages)
	}
	if i.Locked {
		s += ", locked"
	}
	if i.Resident >= 0 {
		s += fmt.Sprintf(", %s resident", octets(i.Resident))
	}
	if i.Pages == Transparent && i.Resident > 0 {
		s += fmt.Sprintf(" (%s in huge pages)", octets(i.InHuge))
	}
	if i.Why != "" {
		s += " (" + i.Why + ")"
	}
	return s
}

// octets writes n in the largest unit that divides it, with up to one digit behind the point from 1 MiB on.
func octets(n int) string {
	const k = 1 << 10
	switch {
	case n >= k*k*k && n%(k*k*k) == 0:
		return fmt.Sprintf("%d GiB", n/(k*k*k))
	case n >= k*k && n%(k*k) == 0:
		return fmt.Sprintf("%d MiB", n/(k*k))
	case n >= k*k:
		return fmt.Sprintf("%.1f MiB", float64(n)/(k*k))
	case n >= k && n%k == 0:
		return fmt.Sprintf("%d KiB", n/k)
	}
	return fmt.Sprintf("%d octets", n)
}

// Region is a piece of zeroed memory outside of Go's heap, in the largest pages that are to be had and locked where
// that is allowed. Never having got those is no error; [Region.Info] tells. On systems other than Linux it is memory
// of Go's heap.
//
// Its methods may be called by any goroutine. The race detector does not see the region's octets.
type Region struct {
	size int

	mu   sync.Mutex // guards what follows
	mem  []byte     // nil once closed
	info Info
	back backing
}

// mapped counts the octets in regions that are not closed.
var mapped atomic.Int64

// Mapped returns how many octets there are in regions that nobody has closed, those of pools included. It is for
// tests that look for leaks.
func Mapped() int64 { return mapped.Load() }

// NewRegion makes a region. It belongs to the caller, who closes it. It fails if c makes no region or the system
// has no memory at all for it.
//
// A region that would less than half fill a huge page is in plain pages.
func NewRegion(c RegionConfig) (*Region, error) {
	if c.Pages == Heap {
		c.Pages = Huge
	}
	switch {
	case c.Size <= 0 || c.Size > maxRegion:
		return nil, fmt.Errorf("mempool: a region has 1 to %d octets, not %d", maxRegion, c.Size)
	case c.Align < 0 || c.Align&(c.Align-1) != 0 || c.Align > maxAlign:
		return nil, fmt.Errorf("mempool: a region is aligned to a power of two up to %d, not to %d", maxAlign, c.Align)
	case c.Pages > Huge:
		return nil, fmt.Errorf("mempool: there is no kind of pages %d", c.Pages)
	}
	c.Align = max(c.Align, os.Getpagesize())
	r := &Region{size: c.Size, info: Info{Size: c.Size, Resident: -1}}
	if err := r.acquire(&c); err != nil {
		return nil, fmt.Errorf("mempool: no memory for a region of %s: make it smaller, or raise the limit on address space (ulimit -v): %w", octets(c.Size), err)
	}
	mapped.Add(int64(c.Size))
	return r, nil
}

// Bytes returns the region's octets; nil once it is closed. The slice is borrowed: to touch it after Close ends the
// program.
func (r *Region) Bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mem
}

// Info says what memory the region got, as of now: whether the kernel really used huge pages for a transparent one
// shows when it has been touched. It takes some time.
func (r *Region) Info() Info {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem != nil {
		r.look()
	}
	i := r.info
	if i.Pages == Transparent && i.Resident > 0 && i.InHuge == 0 {
		i.because("no huge page was at hand when it was touched: \"sysctl vm.compact_memory=1\" gathers free memory")
		i.Pages, i.PageSize = Plain, os.Getpagesize()
	}
	return i
}

// Close gives the memory back. The caller sees to it that nobody uses it any more, the kernel included. A second
// Close does nothing.
func (r *Region) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem == nil {
		return nil
	}
	r.mem = nil
	r.info.Resident, r.info.InHuge = 0, 0
	mapped.Add(-int64(r.size))
	if err := r.release(); err != nil {
		return fmt.Errorf("mempool: a region of %s does not unmap: %w", octets(r.size), err)
	}
	return nil
}

// because adds a reason why the memory is not better.
func (i *Info) because(format string, args ...any) {
	if i.Why != "" {
		i.Why += "; "
	}
	i.Why += fmt.Sprintf(format, args...)
}

// heapInfo is that of memory on Go's heap.
func heapInfo(size int) Info {
	return Info{Pages: Heap, PageSize: os.Getpagesize(), Size: size, Resident: -1}
}

// touch takes all pages of new memory, which holds zeroes.
func touch(mem []byte) {
	for i := 0; i < len(mem); i += os.Getpagesize() {
		mem[i] = 0
	}
}

// heapBytes returns size octets of Go's heap whose first is at a multiple of align.
func heapBytes(size, align int) []byte {
	mem := make([]byte, size+align-1)
	off := int(-uintptr(unsafe.Pointer(&mem[0])) & uintptr(align-1))
	return mem[off : off+size : off+size]
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

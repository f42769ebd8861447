package mempool

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// backing is the mapping behind a region.
type backing struct {
	whole  unsafe.Pointer // with guard pages and what alignment took
	length uintptr        // of whole
	first  uintptr        // address of the region
	span   int            // octets in use: the size, rounded up to whole pages
}

// acquire maps memory of the best kind that is to be had.
func (r *Region) acquire(c *RegionConfig) error {
	page, h := os.Getpagesize(), lookHost()
	want := c.Pages
	if want > Plain {
		switch {
		case h.hugeSize <= page:
			r.info.because("this kernel has no huge pages")
			want = Plain
		case roundUp(c.Size, h.hugeSize) > 2*c.Size:
			r.info.because("too small for huge pages of %s", octets(h.hugeSize))
			want = Plain
		}
	}
	if want == Huge && r.mapHuge(c, h) {
		return nil
	}
	return r.mapPages(c, h, want)
}

// mapHuge tries for huge pages that the host has set aside.
func (r *Region) mapHuge(c *RegionConfig, h *host) bool {
	b := &r.back
	b.span = roundUp(c.Size, h.hugeSize)
	size := octets(h.hugeSize)
	switch {
	case c.Guard:
		r.info.because("no huge pages between guard pages")
		return false
	case c.Align > h.hugeSize:
		r.info.because("no huge pages aligned to %s", octets(c.Align))
		return false
	}
	flags := unix.MAP_PRIVATE | unix.MAP_ANON | unix.MAP_HUGETLB | log2(h.hugeSize)<<unix.MAP_HUGE_SHIFT
	at, err := unix.MmapPtr(-1, 0, nil, uintptr(b.span), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		r.info.because("%s", h.noHuge(b.span/h.hugeSize, err))
		return false
	}
	// All of it at once: where a limit of a control group or a node of the host's memory stands in the way, touching
	// a page later would be the end of the program. This says so instead. It takes from nobody: they are ours.
	if err := populate(at, b.span); err != nil {
		_ = unix.MunmapPtr(at, uintptr(b.span))
		r.info.because("huge pages of %s are set aside but this process does not get %d of them: %v", size, b.span/h.hugeSize, err)
		return false
	}
	b.whole, b.length, b.first = at, uintptr(b.span), uintptr(at)
	r.own(at, c.Size)
	r.info.Pages, r.info.PageSize, r.info.Locked = Huge, h.hugeSize, true // the kernel never swaps them
	return true
}

// mapPages maps the system's pages, between two that fault: so the kernel's account of the region is not mixed up
// with that of its neighbours either. If want is Transparent it asks for huge pages and lets the kernel find them.
func (r *Region) mapPages(c *RegionConfig, h *host, want Pages) error {
	b, page := &r.back, os.Getpagesize()
	align := c.Align
	b.span = roundUp(c.Size, page)
	if want >= Transparent {
		want = Transparent
		if why := h.noTransparent(); why != "" {
			r.info.because("%s", why)
			want = Plain
		} else {
			align = max(align, h.hugeSize)
			if !c.Guard { // else the end stays where it faults, in plain pages
				b.span = roundUp(c.Size, h.hugeSize)
			}
		}
	}
	b.length = uintptr(b.span + align + 2*page)
	whole, err := unix.MmapPtr(-1, 0, nil, b.length, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	at := unsafe.Add(whole, page)
	at = unsafe.Add(at, -uintptr(at)&uintptr(align-1))
	mem := unsafe.Slice((*byte)(at), b.span)
	if err := unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		_ = unix.MunmapPtr(whole, b.length)
		return err
	}
	b.whole, b.first = whole, uintptr(at)
	r.own(at, c.Size)
	r.info.Pages, r.info.PageSize = Plain, page
	if want == Transparent {
		if err := unix.Madvise(mem, unix.MADV_HUGEPAGE); err != nil {
			r.info.because("the kernel refuses transparent huge pages: %v", err)
		} else {
			r.info.Pages, r.info.PageSize = Transparent, h.hugeSize
		}
	}
	if c.Prefault {
		prefault(at, roundUp(c.Size, page))
	}
	if c.NoLock {
		return nil
	}
	if err := lock(at, b.span); err != nil {
		r.info.because("not locked: %s", noLock(b.span, err))
	} else {
		r.info.Locked = true
	}
	return nil
}

// own makes the mapping at the given place the region's. A child process does not inherit it: to copy pages that a
// device or the kernel writes to ends badly, and of huge pages there may be none left to copy to.
func (r *Region) own(at unsafe.Pointer, size int) {
	_ = unix.Madvise(unsafe.Slice((*byte)(at), r.back.span), unix.MADV_DONTFORK)
	r.mem = unsafe.Slice((*byte)(at), size)
}

// populate touches all pages for writing and reports what would be a fault.
func populate(at unsafe.Pointer, n int) error {
	return unix.Madvise(unsafe.Slice((*byte)(at), n), unix.MADV_POPULATE_WRITE)
}

// prefault takes all pages of a new region, by hand where the kernel does not know how (before Linux 5.14).
func prefault(at unsafe.Pointer, n int) {
	if populate(at, n) != nil {
		touch(unsafe.Slice((*byte)(at), n))
	}
}

// look brings r.info up to date.
func (r *Region) look() {
	m, ok := lookMapping(r.back.first, uintptr(r.back.span))
	if !ok {
		return
	}
	r.info.Resident, r.info.InHuge = m.resident, m.inHuge
}

func (r *Region) release() error { return unix.MunmapPtr(r.back.whole, r.back.length) }

func log2(n int) int {
	i := 0
	for n > 1 {
		n >>= 1
		i++
	}
	return i
}

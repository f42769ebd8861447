package iwarp

import (
	"os"

	"github.com/softrdma/softrdma/mempool"
	"github.com/softrdma/softrdma/verbs"
)

// buffers is memory that a device holds from open to close.
type buffers struct {
	purpose     string
	count, size int // buffers, and octets of each
	look        func() mempool.Info
}

// Memory describes the memory that a device holds from open to close: how many
// buffers, in what kind of pages, whether they are locked, and why it is not
// better. It asks the kernel, which may take milliseconds.
func Memory(d *verbs.Device) []verbs.Memory {
	if f := d.Provider().Memory; f != nil {
		return f()
	}
	return nil
}

// memory is what verbs.Provider.Memory shows.
func (d *device) memory() []verbs.Memory {
	var list []verbs.Memory
	for _, b := range d.bufs {
		i := b.look()
		m := verbs.Memory{
			Purpose: b.purpose, Count: b.count, Size: b.size, Octets: i.Size,
			Pages: i.Pages.String(), PageSize: i.PageSize, Locked: i.Locked, Resident: i.Resident, InHuge: i.InHuge,
			Why: i.Why,
		}
		i.Why = ""
		m.Text = i.String()
		list = append(list, m)
	}
	return list
}

// poolBuffers describes a pool.
func poolBuffers(purpose string, p *mempool.Pool) buffers {
	c := p.Config()
	return buffers{purpose: purpose, count: c.Count, size: c.Headroom + c.Size, look: p.Memory}
}

// pinnedBuffers describes memory that the kernel shares with a port: all of it
// is there from the start, in plain pages and never swapped out.
func pinnedBuffers(purpose string, count, size, octets int) buffers {
	return buffers{purpose: purpose, count: count, size: size, look: func() mempool.Info {
		return mempool.Info{Pages: mempool.Plain, PageSize: os.Getpagesize(), Locked: true, Size: octets, Resident: octets}
	}}
}

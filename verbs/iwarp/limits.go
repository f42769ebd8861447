package iwarp

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"syscall"

	"github.com/softrdma/softrdma/verbs"
)

// Limits bound what a device's applications can take, and what its peers can
// make it hold. Asking for more of anything is an error that matches
// syscall.ENOMEM; what exists goes on. Zero fields have the defaults below.
type Limits struct {
	QPs  int // queue pairs, and connections of closed ones that still end; DefaultQPs if 0
	CQs  int // completion queues; DefaultCQs if 0
	SRQs int // shared receive queues; DefaultSRQs if 0
	PDs  int // protection domains; DefaultPDs if 0
	MRs  int // memory regions; DefaultMRs if 0
	MWs  int // memory windows; DefaultMWs if 0

	MRBytes    int64 // octets in memory regions; the host's memory if 0
	QueueBytes int64 // octets in work and completion queues; DefaultQueueBytes or a quarter of the host's memory if 0, whichever is less
	ReadSlots  int   // inbound reads and atomics (IRD) of all connections together; DefaultReadSlots if 0
}

const (
	// DefaultQPs is as many as there are TCP ports between two addresses.
	DefaultQPs = 1 << 16
	// DefaultCQs allows each queue pair one of its own, as most have.
	DefaultCQs = DefaultQPs
	// DefaultSRQs is far more than anybody has service classes.
	DefaultSRQs = 1 << 12
	// DefaultPDs allows each connection one of its own.
	DefaultPDs = DefaultQPs
	// DefaultMRs and DefaultMWs are together half of all STags, so that a random
	// one is free in a few tries. More than that is refused.
	DefaultMRs = 1 << 22
	DefaultMWs = 1 << 22
	// DefaultQueueBytes serves DefaultQPs queue pairs of default size and their
	// completion queues.
	DefaultQueueBytes = 4 << 30
	// DefaultReadSlots gives DefaultQPs connections DefaultReadDepth slots each.
	// A slot has about 50 octets.
	DefaultReadSlots = DefaultQPs * DefaultReadDepth
)

// withDefaults returns a checked copy with every zero replaced.
func (l Limits) withDefaults() (Limits, error) {
	for _, v := range []struct {
		name string
		n    *int
		def  int
	}{{"QPs", &l.QPs, DefaultQPs}, {"CQs", &l.CQs, DefaultCQs}, {"SRQs", &l.SRQs, DefaultSRQs}, {"PDs", &l.PDs, DefaultPDs},
		{"MRs", &l.MRs, DefaultMRs}, {"MWs", &l.MWs, DefaultMWs}, {"ReadSlots", &l.ReadSlots, DefaultReadSlots}} {
		if *v.n < 0 {
			return l, fmt.Errorf("a limit is not negative: Limits.%s is %d", v.name, *v.n)
		}
		if *v.n == 0 {
			*v.n = v.def
		}
	}
	if l.MRs+l.MWs > DefaultMRs+DefaultMWs {
		return l, fmt.Errorf("there are keys for %d regions and windows together: Limits.MRs %d, MWs %d", DefaultMRs+DefaultMWs, l.MRs, l.MWs)
	}
	if l.MRBytes < 0 || l.QueueBytes < 0 {
		return l, fmt.Errorf("a limit is not negative: Limits.MRBytes %d, QueueBytes %d", l.MRBytes, l.QueueBytes)
	}
	host := hostMemory()
	if l.MRBytes == 0 {
		l.MRBytes = host
	}
	if l.QueueBytes == 0 {
		l.QueueBytes = min(DefaultQueueBytes, host/4)
	}
	return l, nil
}

// put enters the limits in what package verbs goes by.
func (l *Limits) put(a *verbs.DeviceAttr) {
	a.MaxQP, a.MaxCQ, a.MaxSRQ, a.MaxPD = l.QPs, l.CQs, l.SRQs, l.PDs
	a.MaxMR, a.MaxMW = l.MRs, l.MWs
	a.MaxMRBytes, a.MaxQueueBytes = l.MRBytes, l.QueueBytes
}

// hostMemory returns the octets of memory that this process may hope for: the
// host's, or Go's own limit if that is less; 2^46 where neither is known.
func hostMemory() int64 {
	n := int64(1) << 46
	b, _ := os.ReadFile("/proc/meminfo") // not there: another system than Linux
	for line := range bytes.Lines(b) {
		if f := bytes.Fields(line); len(f) == 3 && string(f[0]) == "MemTotal:" {
			if kb, err := strconv.ParseInt(string(f[1]), 10, 64); err == nil && kb > 0 && kb < math.MaxInt64>>10 {
				n = kb << 10
			}
		}
	}
	return min(n, debug.SetMemoryLimit(-1))
}

// noSlots is the answer where connections hold all the read slots there may be.
func (d *device) noSlots(n int) error {
	return fmt.Errorf("no room for %d inbound reads: the device allows %d in all, %d are taken: %w",
		n, d.limits.ReadSlots, d.slots, syscall.ENOMEM)
}

// takeSlots gives c n read slots in all, more or fewer than it has; receive
// goroutine.
func (c *conn) takeSlots(n int) error {
	d := c.dev
	if more := n - c.slots; more > 0 && more > d.limits.ReadSlots-d.slots {
		d.stats.noSlots.Add(1)
		return d.noSlots(n)
	}
	d.slots += n - c.slots
	c.slots = n
	return nil
}

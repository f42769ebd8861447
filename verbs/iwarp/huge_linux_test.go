package iwarp_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// folded returns n octets of address space that are the same few over and over: octet i
// is octet i%len(period) of the second result. So a message may be larger than memory.
func folded(t *testing.T, n, period int) (all, once []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("folded", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, int64(period)))
	size := (n + period - 1) / period * period
	space, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(space)) })
	for at := 0; at < size; at += period {
		_, err := unix.MmapPtr(fd, 0, unsafe.Pointer(&space[at]), uintptr(period), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
		require.NoError(t, err, "%d of %d octets", at, size)
	}
	return space[:n:n], space[:period]
}

// TestHuge sends messages around the numbers at which 31 and 32 bits end. Source and sink
// repeat themselves after lengths that have little in common, so that what is placed
// wrongly by a multiple of either shows.
func TestHuge(t *testing.T) {
	switch {
	case raceEnabled:
		t.Skip("LEFT OUT: the race detector takes minutes over gigabytes")
	case testing.Short():
		t.Skip("LEFT OUT: gigabytes take seconds")
	}
	const period = 4 << 20
	source, a := folded(t, math.MaxUint32, period)
	sink, b := folded(t, math.MaxUint32, period+64<<10)
	fill(a, 1)
	l := kernel(t, iwarp.Protocol{NoCRC: true}) // closed before the memory goes
	p := l.connect(t, 4096, nil)
	from, err := p.mine.pd.RegMR(source, verbs.AccessLocalWrite|verbs.AccessRemoteRead)
	require.NoError(t, err)
	to, err := p.theirs.pd.RegMR(sink, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	require.NoError(t, err)
	landed := func(t *testing.T, n int) {
		t.Helper()
		// The last octet that went to a place is the one that is there.
		last := n - len(b)
		for i := 0; i < len(b); {
			at := last + i // in the message
			k := min(len(b)-at%len(b), len(a)-at%len(a), len(b)-i)
			require.True(t, bytes.Equal(a[at%len(a):at%len(a)+k], b[at%len(b):at%len(b)+k]), "octets %d to %d", at, at+k)
			i += k
		}
		clear(b)
	}
	patient := func(e *end) verbs.WC {
		var wc [1]verbs.WC
		n, err := e.cq.Wait(within(t, 5*time.Minute), wc[:])
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.NoError(t, wc[0].Err())
		return wc[0]
	}
	began := time.Now()
	for _, n := range []int{1 << 30, math.MaxUint32} {
		t.Run(fmt.Sprintf("DDP-22 DDP-18 DDP-28 RDM-37 a Send of %d octets", n), func(t *testing.T) {
			p.theirs.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{to.SGE(0, n)}})
			p.mine.send(t, verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{from.SGE(0, n)}})
			require.EqualValues(t, n, patient(&p.theirs).ByteLen)
			patient(&p.mine)
			landed(t, n)
		})
	}
	t.Run("DDP-22 DDP-19 VRB-31 a Write of 2147483653 octets", func(t *testing.T) {
		const n = 1<<31 + 5
		p.theirs.recv(t, verbs.RecvWR{ID: 1})
		p.mine.send(t, verbs.SendWR{ID: 2, Op: verbs.OpWrite, SGL: []verbs.SGE{from.SGE(0, n)}, Remote: to.Remote().Slice(0, n)},
			verbs.SendWR{ID: 3, Op: verbs.OpSend, Flags: verbs.SendSignaled})
		require.Zero(t, patient(&p.theirs).ByteLen)
		patient(&p.mine)
		landed(t, n)
	})
	t.Run("DDP-22 RDM-21 VRB-31 a Read of 4294967295 octets", func(t *testing.T) {
		p.theirs.send(t, verbs.SendWR{ID: 4, Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{to.SGE(0, math.MaxUint32)}, Remote: from.Remote()})
		require.EqualValues(t, uint32(math.MaxUint32), patient(&p.theirs).ByteLen)
		landed(t, math.MaxUint32)
	})
	t.Run("DDP-22 VRB-31 one octet more is refused", func(t *testing.T) {
		wr := verbs.SendWR{ID: 5, Op: verbs.OpSend, SGL: []verbs.SGE{from.SGE(0, math.MaxUint32), p.mine.mr.SGE(0, 1)}}
		n, err := p.mine.PostSend([]verbs.SendWR{wr})
		require.Error(t, err)
		require.Zero(t, n)
	})
	t.Logf("11 GiB took %v", time.Since(began).Round(time.Second))
}

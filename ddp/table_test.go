package ddp

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

const allRights = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic

func TestRegister(t *testing.T) {
	tab := NewTable()
	mem := make([]byte, 100)
	s, base, err := tab.Register(mem, 7, RemoteWrite)
	require.NoError(t, err)
	require.NotZero(t, s)
	require.Equal(t, uint64(uintptr(unsafe.Pointer(&mem[0]))), base)
	require.Equal(t, 1, tab.Len())

	g, err := tab.Check(s, in(7), base+10, 20, RemoteWrite)
	require.NoError(t, err)
	require.Len(t, g.Bytes(), 20)
	require.Equal(t, 20, cap(g.Bytes()), "nothing past the range can be reached")
	require.Same(t, &mem[10], &g.Bytes()[0])
	require.Equal(t, base+10, g.TO())
	g.Release()

	g, err = tab.Local(s, 7, 30, 5, 0)
	require.NoError(t, err)
	require.Same(t, &mem[30], &g.Bytes()[0])
	require.Len(t, g.Bytes(), 5)
	require.Equal(t, base+30, g.TO())
	g.Release()

	z, zero, err := tab.Register(mem, 7, RemoteRead|ZeroBased)
	require.NoError(t, err)
	require.Zero(t, zero)
	g, err = tab.Check(z, in(7), 99, 1, RemoteRead)
	require.NoError(t, err)
	require.Same(t, &mem[99], &g.Bytes()[0])
	g.Release()

	require.NoError(t, tab.Deregister(s))
	require.NoError(t, tab.Deregister(z))
	require.Zero(t, tab.Len())
	require.ErrorIs(t, tab.Deregister(s), ErrUnknownSTag)
	require.ErrorIs(t, tab.Deregister(0), ErrUnknownSTag)
	_, _, err = tab.Register(nil, 7, 0)
	require.ErrorIs(t, err, ErrNoMemory)
}

func TestRegisterBase(t *testing.T) {
	tab := NewTable()
	mem := make([]byte, 16)
	require.NoError(t, tab.RegisterBase(mem, 1, 0, 0x1000, 0x12345678))
	require.ErrorIs(t, tab.RegisterBase(mem, 1, 0, 0x1000, 0x12345601), ErrTableFull, "same index, other key")
	require.ErrorIs(t, tab.RegisterBase(mem, 1, 0, 0x1000, 0x00000078), ErrUnknownSTag)
	require.ErrorIs(t, tab.RegisterBase(mem, 1, 0, math.MaxUint64-14, 0x22345678), ErrRange)
	require.NoError(t, tab.RegisterBase(mem, 1, 0, math.MaxUint64-15, 0x22345678), "ends exactly at 2^64")
	require.ErrorIs(t, tab.RegisterBase(nil, 1, 0, 0, 0x32345678), ErrNoMemory)
	require.Equal(t, 2, tab.Len())
}

// TestCheckOrder has several faults at once and sees the first one told.
func TestCheckOrder(t *testing.T) {
	const base, size = 0x7f1200001000, 4096
	tab := NewTable()
	mem := make([]byte, size)
	require.NoError(t, tab.RegisterBase(mem, 1, RemoteRead, base, 0x12345678))
	require.NoError(t, tab.RegisterBase(mem, 1, RemoteRead, math.MaxUint64-size+1, 0x99999901))
	cases := []struct {
		name  string
		s     STag
		pd    PD
		to, n uint64
		need  Access
		want  FaultKind
	}{
		{"DDP-43 unknown index before all else", 0x0badcafe, 2, math.MaxUint64, 9, RemoteWrite, FaultSTag},
		{"DDP-43 wrong key", 0x12345679, 2, base, 1, RemoteRead, FaultSTag},
		{"SEC-12 STag 0", 0, 1, base, 1, RemoteRead, FaultSTag},
		{"SEC-12 index 0 with a key", 0x78, 1, base, 1, RemoteRead, FaultSTag},
		{"DDP-45 other PD before wrap", 0x12345678, 2, math.MaxUint64, 9, RemoteWrite, FaultPD},
		{"DDP-46 wrap before bounds", 0x12345678, 1, math.MaxUint64, 2, RemoteWrite, FaultWrap},
		{"DDP-46 ending at 2^64 is no wrap", 0x12345678, 1, math.MaxUint64, 1, RemoteWrite, FaultBounds},
		{"DDP-46 a region may end at 2^64", 0x99999901, 1, math.MaxUint64, 1, RemoteRead, 0},
		{"DDP-46 but not pass it", 0x99999901, 1, math.MaxUint64, 2, RemoteRead, FaultWrap},
		{"DDP-44 bounds before rights", 0x12345678, 1, base + size, 1, RemoteWrite, FaultBounds},
		{"SEC-04 one octet before", 0x12345678, 1, base - 1, 1, RemoteRead, FaultBounds},
		{"SEC-04 last octet", 0x12345678, 1, base + size - 1, 1, RemoteRead, 0},
		{"SEC-04 last octet and one more", 0x12345678, 1, base + size - 1, 2, RemoteRead, FaultBounds},
		{"SEC-04 the whole", 0x12345678, 1, base, size, RemoteRead, 0},
		{"SEC-05 one too long", 0x12345678, 1, base, size + 1, RemoteRead, FaultBounds},
		{"SEC-05 size 2^32-1", 0x12345678, 1, base, math.MaxUint32, RemoteRead, FaultBounds},
		{"SEC-05 length 2^64-1", 0x12345678, 1, base, math.MaxUint64, RemoteRead, FaultWrap},
		{"SEC-05 TO 2^64-1 length 2", 0x12345678, 1, math.MaxUint64, 2, RemoteRead, FaultWrap},
		{"nothing at the end", 0x12345678, 1, base + size, 0, RemoteRead, 0},
		{"nothing past the end", 0x12345678, 1, base + size + 1, 0, RemoteRead, FaultBounds},
		{"RDM-10 right missing", 0x12345678, 1, base, size, RemoteWrite, FaultAccess},
		{"one right of two missing", 0x12345678, 1, base, size, RemoteRead | RemoteWrite, FaultAccess},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			g, err := tab.Check(c.s, in(c.pd), c.to, c.n, c.need)
			require.Equal(t, c.want, fault(t, err), "%v", err)
			if err == nil {
				require.Len(t, g.Bytes(), int(c.n))
				g.Release()
			} else {
				var f *Fault
				require.ErrorAs(t, err, &f)
				require.Equal(t, c.s, f.STag)
				require.Empty(t, g.Bytes())
			}
		})
	}
	require.NoError(t, tab.Deregister(0x12345678), "a failed check holds nothing")
}

func TestLocalBounds(t *testing.T) {
	tab := NewTable()
	s, _, err := tab.Register(make([]byte, 64), 1, LocalWrite)
	require.NoError(t, err)
	for _, c := range []struct {
		off, n uint64
		want   FaultKind
	}{
		{0, 64, 0}, {63, 1, 0}, {64, 0, 0}, {64, 1, FaultBounds}, {65, 0, FaultBounds},
		{0, 65, FaultBounds}, {math.MaxUint64, 1, FaultBounds}, {1, math.MaxUint64, FaultBounds},
	} {
		g, err := tab.Local(s, 1, c.off, c.n, LocalWrite)
		require.Equal(t, c.want, fault(t, err), "off %d n %d", c.off, c.n)
		g.Release()
	}
	_, err = tab.Local(s, 1, 0, 1, RemoteRead)
	require.Equal(t, FaultAccess, fault(t, err))
	_, err = tab.Local(s, 2, 0, 1, LocalWrite)
	require.Equal(t, FaultPD, fault(t, err))
	_, err = tab.Local(s+1, 1, 0, 1, LocalWrite)
	require.Equal(t, FaultSTag, fault(t, err))
}

func TestRightsMatrix(t *testing.T) {
	t.Run("SEC-06 each right stands alone", func(t *testing.T) {
		tab := NewTable()
		mem := make([]byte, 8)
		rights := []Access{LocalWrite, RemoteWrite, RemoteRead, RemoteAtomic, MWBind}
		for set := Access(0); set < 32; set++ {
			s, base, err := tab.Register(mem, 1, set)
			require.NoError(t, err)
			for _, need := range rights {
				g, err := tab.Check(s, in(1), base, 8, need)
				if set&need != 0 {
					require.NoError(t, err, "set %05b need %05b", set, need)
				} else {
					require.Equal(t, FaultAccess, fault(t, err), "set %05b need %05b", set, need)
				}
				g.Release()
			}
		}
	})
}

func TestSTagsAreHardToGuess(t *testing.T) {
	t.Run("SEC-01 10000 STags: no progression, every bit fair", func(t *testing.T) {
		const n = 10000
		tab := NewTable()
		mem := make([]byte, 1)
		var ones [32]int
		var last, lastStep STag
		steps := 0
		for i := range n {
			s, _, err := tab.Register(mem, 1, 0)
			require.NoError(t, err)
			for b := range ones {
				ones[b] += int(s >> b & 1)
			}
			step := s - last
			if i > 1 && step == lastStep {
				steps++
			}
			last, lastStep = s, step
		}
		require.LessOrEqual(t, steps, 1, "steps of equal size in a row")
		for b, k := range ones {
			// Chi-square with one degree of freedom; 30 is 1 in 2*10^7.
			d := float64(k) - n/2
			require.Less(t, 4*d*d/n, 30.0, "bit %d is set in %d of %d", b, k, n)
		}
	})
}

func TestSTagsRest(t *testing.T) {
	t.Run("SEC-02 a freed index rests and comes back with another key", func(t *testing.T) {
		tab := NewTable()
		mem := make([]byte, 1)
		freed := map[uint32]int{}
		keys := map[uint32]uint8{}
		for i := range 16000 {
			s, _, err := tab.Register(mem, 1, 0)
			require.NoError(t, err)
			if at, ok := freed[s.index()]; ok {
				require.GreaterOrEqual(t, i-at, resting)
				require.NotEqual(t, keys[s.index()], uint8(s), "key of a reused index")
			}
			freed[s.index()], keys[s.index()] = i, uint8(s)
			require.NoError(t, tab.Deregister(s))
		}
		tab.restMu.Lock()
		require.Len(t, tab.rest, resting)
		tab.restMu.Unlock()
		slots := 0
		for i := range tab.shards {
			if p := tab.shards[i].slots.Load(); p != nil {
				slots += len(*p)
			}
		}
		require.Less(t, slots, 16*resting, "removed regions do not pile up")
	})
	t.Run("SEC-02 the key of one index changes with every epoch", func(t *testing.T) {
		tab := NewTable()
		require.NoError(t, tab.RegisterBase(make([]byte, 1), 1, 0, 0, 0x12345600))
		require.NoError(t, tab.Deregister(0x12345600))
		require.ErrorIs(t, tab.RegisterBase(make([]byte, 1), 1, 0, 0, 0x12345601), ErrTableFull)
		for range resting {
			s, _, err := tab.Register(make([]byte, 1), 1, 0)
			require.NoError(t, err)
			require.NoError(t, tab.Deregister(s))
		}
		require.NoError(t, tab.RegisterBase(make([]byte, 1), 1, 0, 0, 0x12345601))
		require.EqualValues(t, 1, tab.epoch.Load())
	})
}

func TestNoOracle(t *testing.T) {
	t.Run("SEC-13 unknown, wrong key and freed look the same", func(t *testing.T) {
		tab := NewTable()
		require.NoError(t, tab.RegisterBase(make([]byte, 8), 1, allRights, 0, 0x12345678))
		require.NoError(t, tab.RegisterBase(make([]byte, 8), 1, allRights, 0, 0x22345678))
		require.NoError(t, tab.Deregister(0x22345678))
		for _, s := range []STag{0x12345679, 0x22345678, 0x32345678} {
			_, err := tab.Check(s, in(1), 0, 8, RemoteWrite)
			require.Equal(t, &Fault{FaultSTag, s}, err)
		}
	})
}

func TestInvalidate(t *testing.T) {
	tab := NewTable()
	mem := make([]byte, 8)
	s, base, err := tab.Register(mem, 1, allRights)
	require.NoError(t, err)
	t.Run("SEC-08 a plain region stays", func(t *testing.T) {
		require.Equal(t, FaultKept, fault(t, tab.Invalidate(s, in(1))))
		require.Equal(t, FaultKept, fault(t, tab.CanInvalidate(s, in(1))))
		g, err := tab.Check(s, in(1), base, 8, RemoteWrite)
		require.NoError(t, err)
		g.Release()
	})
	require.NoError(t, tab.AllowInvalidate(s))
	t.Run("RDM-39 refusals", func(t *testing.T) {
		require.Equal(t, FaultPD, fault(t, tab.Invalidate(s, in(2))))
		require.Equal(t, FaultSTag, fault(t, tab.Invalidate(s+1, in(1))))
		require.Equal(t, FaultSTag, fault(t, tab.Invalidate(0, in(1))))
		require.ErrorIs(t, tab.AllowInvalidate(s+1), ErrUnknownSTag)
	})
	t.Run("RDM-40 RDM-41 an invalidated region", func(t *testing.T) {
		require.NoError(t, tab.CanInvalidate(s, in(1)))
		require.NoError(t, tab.Invalidate(s, in(1)))
		_, err := tab.Check(s, in(1), base, 8, RemoteWrite)
		require.Equal(t, FaultSTag, fault(t, err))
		require.NoError(t, tab.Invalidate(s, in(1)), "again")
		require.Equal(t, 1, tab.Len())
		require.NoError(t, tab.Deregister(s))
		require.Equal(t, FaultSTag, fault(t, tab.Invalidate(s, in(1))))
		require.Zero(t, tab.Len())
	})
}

func TestRegionFillsOneCacheLine(t *testing.T) {
	size := unsafe.Sizeof(region{})
	require.True(t, size > 48 && size <= 64, "a lookup touches one cache line of it: %d octets, which are allocated by the 64", size)
}

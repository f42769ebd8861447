package verbs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestRegMR(t *testing.T) {
	f, d, pd := newDevice(t, DeviceAttr{MaxMR: 2, MaxMRSize: 8192})
	const lw, rw, rr, ra, mw, zb = AccessLocalWrite, AccessRemoteWrite, AccessRemoteRead, AccessRemoteAtomic, AccessMWBind, AccessZeroBased
	for _, c := range []struct {
		a  Access
		ok bool
	}{
		{0, true}, {lw, true}, {rr, true}, {lw | rw, true}, {lw | ra, true}, {lw | rw | rr | ra | mw | zb, true}, {mw, true}, {zb | rr, true},
		{rw, false}, {ra, false}, {rw | rr | zb, false}, {64, false}, {lw | 128, false},
	} {
		t.Run(fmt.Sprintf("VRB-43 access %v", c.a), func(t *testing.T) {
			m, err := pd.RegMR(make([]byte, 8), c.a)
			if !c.ok {
				require.ErrorIs(t, err, syscall.EINVAL)
				_, err = pd.AllocMR(8, c.a)
				require.ErrorIs(t, err, syscall.EINVAL)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.a, m.Access())
			require.NoError(t, m.Close())
		})
	}
	t.Run("VRB-43 length 0 and too long", func(t *testing.T) {
		_, err := pd.RegMR(nil, lw)
		require.ErrorIs(t, err, syscall.EINVAL)
		_, err = pd.AllocMR(0, lw)
		require.ErrorIs(t, err, syscall.EINVAL)
		_, err = pd.AllocMR(-1, lw)
		require.ErrorIs(t, err, syscall.EINVAL)
		_, err = pd.AllocMR(8193, lw)
		require.ErrorIs(t, err, syscall.EINVAL)
		_, err = pd.AllocMR(math.MaxInt, lw)
		require.ErrorIs(t, err, syscall.EINVAL)
	})
	t.Run("the region is the caller's memory", func(t *testing.T) {
		buf := make([]byte, 16, 32)
		m, err := pd.RegMR(buf, lw)
		require.NoError(t, err)
		defer m.Close()
		m.Bytes()[3] = 9
		require.Equal(t, byte(9), buf[3])
		require.Equal(t, 16, cap(m.Bytes()), "and not what lies behind it")
		require.Equal(t, 16, m.Len())
		require.Same(t, pd, m.PD())
		require.Equal(t, RemoteBuf{Addr: f.mrs[m.Key()].addr, RKey: m.Key(), Len: 16}, m.Remote())
		require.Equal(t, SGE{MR: m, Off: 4, Len: 5}, m.SGE(4, 5))
		require.Contains(t, m.String(), "len 16 LOCAL_WRITE")
	})
	t.Run("AllocMR is zeroed and begins on a page", func(t *testing.T) {
		for _, n := range []int{1, 100, 4096, 8192} {
			m, err := pd.AllocMR(n, lw)
			require.NoError(t, err)
			require.Len(t, m.Bytes(), n)
			require.Zero(t, uintptr(unsafe.Pointer(&m.Bytes()[0]))%uintptr(os.Getpagesize()))
			require.Equal(t, make([]byte, n), m.Bytes())
			require.NoError(t, m.Close())
		}
	})
	t.Run("VRB-44 zero based", func(t *testing.T) {
		m, err := pd.AllocMR(8, rr|zb)
		require.NoError(t, err)
		defer m.Close()
		require.Zero(t, m.Remote().Addr)
	})
	t.Run("VRB-03 too many are ENOMEM", func(t *testing.T) {
		a, err := pd.AllocMR(8, 0)
		require.NoError(t, err)
		b, err := pd.AllocMR(8, 0)
		require.NoError(t, err)
		require.Equal(t, int64(16), d.Stats().MRBytes)
		_, err = pd.AllocMR(8, 0)
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.NoError(t, a.Close())
		c, err := pd.AllocMR(8, 0)
		require.NoError(t, err)
		require.NoError(t, b.Close())
		require.NoError(t, c.Close())
		require.Zero(t, d.Stats().MRs)
		require.Zero(t, d.Stats().MRBytes)
	})
	t.Run("a provider that cannot reach the memory", func(t *testing.T) {
		f.regErr = ErrNotShareable
		_, err := pd.RegMR(make([]byte, 8), 0)
		f.regErr = nil
		require.ErrorIs(t, err, ErrNotShareable)
		require.Zero(t, d.Stats().MRs, "it does not count")
	})
	t.Run("VRB-47 a busy region stays open and usable", func(t *testing.T) {
		m, err := pd.AllocMR(8, lw)
		require.NoError(t, err)
		busy := &BusyError{Object: "mr", Users: []string{"mw 1"}}
		f.deregErr = busy
		require.Equal(t, error(busy), m.Close())
		f.deregErr = errors.New("other")
		var op *OpError
		require.ErrorAs(t, m.Close(), &op)
		f.deregErr = nil
		require.False(t, m.m.gone.Load())
		require.Equal(t, 1, d.Stats().MRs)
		require.NoError(t, m.Close())
		require.NoError(t, m.Close(), "the second Close is nil")
	})
}

func TestUint64(t *testing.T) {
	_, _, pd := newDevice(t, DeviceAttr{})
	m, err := pd.AllocMR(20, AccessLocalWrite)
	require.NoError(t, err)
	m.Uint64(8).Store(0x0102030405060708)
	require.Equal(t, uint64(0x0102030405060708), *(*uint64)(unsafe.Pointer(&m.Bytes()[8])))
	for _, off := range []int{-8, 4, 13, 16, 1 << 40} {
		require.Panics(t, func() { m.Uint64(off) }, off)
	}
}

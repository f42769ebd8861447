package verbs

import (
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// VRB-31: a request moves at most 2^32-1 octets. The memory is only reserved.
func TestLargestRequest(t *testing.T) {
	r := newRig(t, QPConfig{})
	mem, err := syscall.Mmap(-1, 0, 1<<32, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	require.NoError(t, err)
	defer func() { require.NoError(t, syscall.Munmap(mem)) }()
	m, err := r.pd.RegMR(mem, AccessLocalWrite)
	require.NoError(t, err)
	require.Equal(t, uint32(math.MaxUint32), m.Remote().Len, "Len stops where its 32 bits do")
	r.f.setHold(true)
	for _, c := range []struct {
		name string
		sgl  []SGE
		ok   bool
	}{
		{"2^32-1 in one SGE", []SGE{m.SGE(0, math.MaxUint32)}, true},
		{"2^32-1 in two", []SGE{m.SGE(0, 1<<31), m.SGE(1<<31, 1<<31-1)}, true},
		{"2^32 in one SGE", []SGE{m.SGE(0, 1<<32)}, false},
		{"2^32 in two", []SGE{m.SGE(0, 1<<31), m.SGE(0, 1<<31)}, false},
		{"2^34 in four", []SGE{m.SGE(0, 1<<32), m.SGE(0, 1<<32), m.SGE(0, 1<<32), m.SGE(0, 1<<32)}, false},
	} {
		t.Run("VRB-31 "+c.name, func(t *testing.T) {
			_, err := r.a.PostSend([]SendWR{{Op: OpSend, SGL: c.sgl}})
			_, rerr := r.a.PostRecv([]RecvWR{{SGL: c.sgl}})
			if c.ok {
				require.NoError(t, err)
				require.NoError(t, rerr)
				return
			}
			require.ErrorIs(t, err, syscall.EINVAL)
			require.ErrorIs(t, rerr, syscall.EINVAL)
		})
	}
	require.NoError(t, r.a.Close())
}

package iwarp_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/mempool"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

func TestMemory(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		transmit := func() verbs.Memory {
			list := iwarp.Memory(l.a)
			require.NotEmpty(t, list)
			return list[0]
		}
		m := transmit()
		require.Equal(t, []any{"transmit buffers", 32, 256 << 10, 8 << 20}, []any{m.Purpose, m.Count, m.Size, m.Octets})
		require.GreaterOrEqual(t, m.PageSize, os.Getpagesize())
		require.Contains(t, m.Text, "8 MiB")
		if m.Pages != mempool.Huge.String() {
			require.NotEmpty(t, m.Why)
			require.LessOrEqual(t, m.Resident, 0, "an idle device takes no memory for what it might send")
		}
		if m.Pages == mempool.Heap.String() { // the race detector's, or no Linux: of which nobody tells
			require.Equal(t, -1, m.Resident)
			return
		}

		p := l.connect(t, arena, nil)
		p.mine.send(t, verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendSignaled,
			SGL: []verbs.SGE{p.mine.mr.SGE(0, arena)}, Remote: p.theirs.remote})
		require.NoError(t, p.mine.wait(t, 1)[0].Err())
		m = transmit()
		if strings.HasSuffix(t.Name(), "/kernel") { // other TCPs may have memory of their own to put FPDUs together in
			require.Positive(t, m.Resident)
		}
		require.LessOrEqual(t, m.InHuge, m.Resident)

		require.NoError(t, l.a.Close())
		require.Zero(t, transmit().Resident, "closed")
	})
}

func TestMemoryOfAnotherProvider(t *testing.T) {
	d := verbs.NewDevice(verbs.Provider{
		RegMR:    func(uint32, []byte, verbs.Access) (verbs.Key, uint64, error) { return 0, 0, nil },
		DeregMR:  func(verbs.Key) error { return nil },
		CreateQP: func(verbs.QPSetup) (verbs.QPOps, error) { return verbs.QPOps{}, nil },
		Close:    func() error { return nil },
	})
	require.Empty(t, iwarp.Memory(d))
	require.NoError(t, d.Close())
}

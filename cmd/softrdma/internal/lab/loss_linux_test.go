package lab

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
)

// The program in the kernel draws what draw does.
func TestLossProgram(t *testing.T) {
	newHost(t, "bpf", nil) // for the rights
	const seed = 0x9876543210fedcba
	frame := make([]byte, 64)
	for _, p := range []float64{0, 0.01, 0.3, 1} {
		prog, counts, err := loadLoss(p, seed)
		require.NoError(t, err)
		lost := uint64(0)
		const n = 2000
		for k := range uint64(n) {
			verdict, _, err := prog.Test(frame)
			require.NoError(t, err)
			if draw(seed, k) < threshold(p) {
				lost++
				require.EqualValues(t, tcxDrop, int32(verdict), "frame %d", k)
			} else {
				require.EqualValues(t, tcxNext, int32(verdict), "frame %d", k)
			}
		}
		var c lossCount
		require.NoError(t, counts.Lookup(uint32(0), &c))
		require.Equal(t, lossCount{Frames: n, Lost: lost}, c)
		require.NoError(t, prog.Close())
		require.NoError(t, counts.Close())
	}
}

func TestLossGoesWithTheLab(t *testing.T) {
	h := newHost(t, "notcx", nil)
	if err := NoLoss(); err != nil {
		t.Skip("LEFT OUT:", err)
	}
	require.NoError(t, h.Up(t.Context(), plans["bridge"]))
	d, err := h.losses()
	require.NoError(t, err)
	require.Len(t, d, 2)
	require.Error(t, inNamespace(h.Lab.A.Namespace, func() error {
		_, err := readLoss(h.Lab.A.Interface)
		return err
	}), "a veth without the program")
	var ids []ebpf.ProgramID
	require.NoError(t, inNamespace(h.Lab.Wire.Namespace, func() error {
		dev, err := net.InterfaceByName(h.Lab.A.Port)
		if err != nil {
			return err
		}
		on, err := link.QueryPrograms(link.QueryOptions{Target: dev.Index, Attach: ebpf.AttachTCXIngress})
		for _, p := range on.Programs {
			ids = append(ids, p.ID)
		}
		return err
	}))
	require.Len(t, ids, 1)

	_, err = h.Down(t.Context())
	require.NoError(t, err)
	_, err = h.losses()
	require.Error(t, err)
	// The kernel takes namespaces apart in its own time.
	require.Eventually(t, func() bool {
		prog, err := ebpf.NewProgramFromID(ids[0])
		if err == nil {
			prog.Close()
		}
		return errors.Is(err, os.ErrNotExist)
	}, 30*time.Second, 10*time.Millisecond, "the program goes with the interface")
}

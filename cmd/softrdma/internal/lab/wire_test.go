package lab

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
)

// newWay returns a way into a pipe and the pipe's far end.
func newWay(t *testing.T, c pktio.PipeConfig, i Impairment) (*way, *pktio.Pipe) {
	t.Helper()
	a, b, err := pktio.NewPipe(c)
	require.NoError(t, err)
	w := &way{out: pktio.NewFaulty(a, i.faults(i.Seed))}
	t.Cleanup(func() { _ = w.out.Close(); _ = b.Close() })
	return w, b
}

func frames(lengths ...int) []pktio.Frame {
	var list []pktio.Frame
	for _, n := range lengths {
		list = append(list, pktio.Frame{Data: [][]byte{make([]byte, n)}})
	}
	return list
}

func TestForwardSkipsWhatDoesNotPass(t *testing.T) {
	w, b := newWay(t, pktio.PipeConfig{Depth: 3}, Impairment{})
	require.NoError(t, w.forward(frames(60, 5000, 61, 5, 62, 63)))
	batch := make([]pktio.Frame, 8)
	n, err := b.Recv(batch, 0)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	for i, want := range []int{60, 61, 62} {
		require.Equal(t, want, batch[i].Len())
	}
	require.EqualValues(t, 3, w.dropped.Load(), "too long, too short, and no room")
	require.NoError(t, w.forward(nil))

	require.NoError(t, w.out.Close())
	require.ErrorIs(t, w.forward(frames(60)), net.ErrClosed)
}

func TestForwardAllocatesNothing(t *testing.T) {
	for name, i := range map[string]Impairment{
		"nothing": {}, "loss": {Loss: 0.1}, "all": {Loss: 0.1, Duplicate: 0.1, Reorder: 0.1},
	} {
		w, b := newWay(t, pktio.PipeConfig{Depth: 256, GSO: true}, i)
		tx, rx := frames(60, 1514, 1514), make([]pktio.Frame, 64)
		turn := func() { _ = w.forward(tx); _, _ = b.Recv(rx, 0) }
		for range 200 {
			turn()
		}
		require.Zero(t, testing.AllocsPerRun(200, turn), name)
	}
}

func TestRunWireRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "wire.json")
	require.ErrorIs(t, RunWire(context.Background(), path), os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	require.ErrorContains(t, RunWire(context.Background(), path), path)
	require.NoError(t, writeJSON(path, &wireConfig{Impair: Impairment{Loss: 2}}))
	require.ErrorContains(t, RunWire(context.Background(), path), "probability of loss")
	require.NoError(t, writeJSON(path, &wireConfig{Ports: [2]string{"sr-none", "sr-none"}, Socket: filepath.Join(dir, "s")}))
	require.Error(t, RunWire(context.Background(), path), "no such interface, or no right to ask")
}

func TestWireSocket(t *testing.T) {
	t.Run("SEC-58 it is its owner's alone, and nothing said to it matters", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		l, err := listenOwner(path)
		require.NoError(t, err)
		want := []Direction{{Frames: 1}, {Lost: 2}}
		done := make(chan struct{})
		go func() { defer close(done); answer(l, func() []Direction { return want }) }()
		t.Cleanup(func() { _ = l.Close(); <-done })

		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

		for _, said := range []string{"", "{", "[[[[[[[[", strings.Repeat("x", 1<<20)} {
			conn, err := net.Dial("unix", path)
			require.NoError(t, err)
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			_, _ = conn.Write([]byte(said)) // it may hang up before all of it is said
			_ = conn.Close()
			got, err := askWire(t.Context(), path)
			require.NoError(t, err, "after %d octets", len(said))
			require.Equal(t, want, got)
		}
	})
}

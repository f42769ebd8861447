package lab

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain lets the test program be the wire process, which is this program
// with the arguments of softrdma.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "lab" && os.Args[2] == "wire" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := RunWire(ctx, os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	m.Run()
}

// newHost returns a host for a lab of the test's own, which is gone after it. The
// test is skipped where no lab can be made.
func newHost(t *testing.T, name string, log io.Writer) *Host {
	t.Helper()
	h := &Host{Lab: Named(fmt.Sprintf("sr-lab-%s-%d", name, os.Getpid()), "srl"), Log: log}
	if runtime.GOOS != "linux" {
		t.Skip("LEFT OUT: the lab is made of Linux network namespaces")
	}
	if err := h.check(); err != nil {
		t.Skip("LEFT OUT:", err)
	}
	t.Cleanup(func() {
		_, err := h.Down(context.Background())
		if !t.Failed() {
			require.ErrorIs(t, err, ErrDown, "the test takes its lab away")
		}
	})
	return h
}

// requireGone checks that nothing is left of the lab.
func requireGone(t *testing.T, h *Host) {
	t.Helper()
	require.ErrorIs(t, h.Ready(), ErrDown)
	require.True(t, h.find(t.Context()).nothing())
}

// requireShare checks that hits out of n, each with probability p, are within
// five standard deviations: one run in a million is not.
func requireShare(t *testing.T, hits, n int, p float64) {
	t.Helper()
	require.InDelta(t, float64(n)*p, float64(hits), 5*math.Sqrt(float64(n)*p*(1-p))+1e-9, "%d of %d", hits, n)
}

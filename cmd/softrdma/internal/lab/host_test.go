package lab

import (
	"bytes"
	"context"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// needRoot skips a test that has to make namespaces where that cannot be done.
func needRoot(t *testing.T, h *Host) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("LEFT OUT: the lab is made of Linux network namespaces")
	}
	if err := h.check(); err != nil {
		t.Skip("LEFT OUT:", err)
	}
}

func TestUpAndDown(t *testing.T) {
	var log bytes.Buffer
	h := &Host{Lab: Named("sr-labtest", "srlt"), Log: &log}
	needRoot(t, h)
	ctx := t.Context()
	t.Cleanup(func() {
		for _, c := range h.Lab.Down(Exists, h.hasLink(context.Background())) {
			_ = exec.Command(c[0], c[1:]...).Run()
		}
	})

	_, err := h.Down(ctx)
	require.ErrorIs(t, err, ErrDown)
	require.ErrorIs(t, h.Ready(), ErrDown)

	require.NoError(t, h.Up(ctx, Plan{MTU: 9000}))
	want, err := h.Lab.Up(Plan{MTU: 9000})
	require.NoError(t, err)
	if bytes.Contains(log.Bytes(), []byte("fd78")) {
		require.Equal(t, lines(want), log.String(), "each command is shown")
	}
	require.ErrorIs(t, h.Up(ctx, Plan{}), ErrUp)
	require.NoError(t, h.Ready())

	for _, peer := range []string{"10.78.0.1", "fd78::1"} {
		if peer == "fd78::1" && !bytes.Contains(log.Bytes(), []byte("fd78")) {
			continue
		}
		c := h.Lab.B.Exec([]string{"ping", "-c", "1", "-W", "2", peer})
		if _, err := exec.LookPath("ping"); err == nil {
			out, err := exec.Command(c[0], c[1:]...).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
	}

	// A process that stays inside is named and does not keep the interface.
	c := h.Lab.A.Exec([]string{"sleep", "60"})
	sleep := exec.Command(c[0], c[1:]...)
	require.NoError(t, sleep.Start())
	t.Cleanup(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() })
	require.Eventually(t, func() bool { return len(pids(ctx, h.Lab.A)) == 1 }, 5*time.Second, 10*time.Millisecond)
	left, err := h.Down(ctx)
	require.NoError(t, err)
	require.Equal(t, []int{sleep.Process.Pid}, left)
	require.False(t, Exists(h.Lab.A))
	require.False(t, Exists(h.Lab.B))
	require.ErrorIs(t, h.Ready(), ErrDown)
}

func TestUpTakesBackWhatItBuilt(t *testing.T) {
	var log bytes.Buffer
	h := &Host{Lab: Named("sr-labfail", "srlf"), Log: &log}
	needRoot(t, h)
	h.Lab.B.Interface = "a-name-that-is-too-long"

	err := h.Up(t.Context(), Plan{})
	require.ErrorContains(t, err, "ip link add")
	require.False(t, Exists(h.Lab.A))
	require.False(t, Exists(h.Lab.B))
}

func TestHalfALab(t *testing.T) {
	h := &Host{Lab: Named("sr-labhalf", "srlh")}
	needRoot(t, h)
	require.NoError(t, h.run(t.Context(), Command{"ip", "netns", "add", h.Lab.B.Namespace}))
	require.ErrorIs(t, h.Up(t.Context(), Plan{}), ErrHalfUp)
	require.ErrorIs(t, h.Ready(), ErrHalfUp)
	_, err := h.Down(t.Context())
	require.NoError(t, err)
	require.False(t, Exists(h.Lab.B))
}

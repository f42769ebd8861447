package lab

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestUpAndDown(t *testing.T) {
	for name, p := range plans {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			h := newHost(t, "up", &log)
			ctx := t.Context()
			_, err := h.Down(ctx)
			require.ErrorIs(t, err, ErrDown)
			_, err = h.Status(ctx)
			require.ErrorIs(t, err, ErrDown)

			p.MTU = 9000
			require.NoError(t, h.Up(ctx, p))
			want, err := h.Lab.Up(p)
			require.NoError(t, err)
			ipv6 := bytes.Contains(log.Bytes(), []byte("fd78"))
			if ipv6 {
				require.Equal(t, "# mkdir -p "+h.Lab.Dir+"\n"+lines(want), log.String(), "each step is shown")
			}
			require.ErrorIs(t, h.Up(ctx, Plan{}), ErrUp)
			require.NoError(t, h.Ready())

			s, err := h.Status(ctx)
			require.NoError(t, err)
			require.Empty(t, s.Problems)
			require.Equal(t, p.WireFrames, s.Plan.WireFrames)
			require.Equal(t, p.Impair, s.Plan.Impair)
			require.Equal(t, p.Impair != nil, s.Wire != nil)
			for i, side := range s.Sides {
				require.Equal(t, 9000, side.MTU)
				require.Contains(t, side.Kernel, h.Lab.sides()[i].Kernel[0].String())
			}

			echo := newEcho(t, h, false)
			require.Len(t, echo.times(t, 3), 3, "frames pass")
			if ipv6 {
				require.Len(t, newEcho(t, h, true).times(t, 3), 3, "IPv6 passes")
			}

			// A process that stays inside is named and does not keep the interfaces.
			c := h.Lab.A.Exec([]string{"sleep", "60"})
			sleep := exec.Command(c[0], c[1:]...)
			require.NoError(t, sleep.Start())
			t.Cleanup(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() })
			inside := func() bool { return len(pids(ctx, h.Lab.A.Namespace, 0)) == 1 }
			require.Eventually(t, inside, 10*time.Second, 10*time.Millisecond)
			left, err := h.Down(ctx)
			require.NoError(t, err)
			require.Equal(t, []int{sleep.Process.Pid}, left)
			requireGone(t, h)
			_, err = os.Stat(h.Lab.Dir)
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}

func TestUpTakesBackWhatItBuilt(t *testing.T) {
	for name, p := range plans {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, "fail", nil)
			h.Lab.B.Interface = "a-name-that-is-too-long"
			err := h.Up(t.Context(), p)
			require.ErrorContains(t, err, "ip link add")
			requireGone(t, h)
		})
	}
}

// A wire process that does not come up.
func TestUpTakesBackTheWire(t *testing.T) {
	h := newHost(t, "nowire", nil)
	h.Self = filepath.Join(t.TempDir(), "wire")
	require.NoError(t, os.WriteFile(h.Self, []byte("#!/bin/sh\necho no wire today >&2\nexit 3\n"), 0o755))
	err := h.Up(t.Context(), plans["process"])
	require.ErrorContains(t, err, "the wire process ended at once")
	require.ErrorContains(t, err, "no wire today")
	requireGone(t, h)

	// One that hangs, and a user who has had enough.
	pid := filepath.Join(t.TempDir(), "pid")
	require.NoError(t, os.WriteFile(h.Self, []byte("#!/bin/sh\necho $$ >"+pid+".new && mv "+pid+".new "+pid+"\nexec sleep 60\n"), 0o755))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Up(ctx, plans["process"]) }()
	require.Eventually(t, func() bool { _, err := os.Stat(pid); return err == nil }, 10*time.Second, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	requireGone(t, h)
	number, err := os.ReadFile(pid)
	require.NoError(t, err)
	ended := func() bool { _, err := os.Stat("/proc/" + strings.TrimSpace(string(number))); return err != nil }
	require.Eventually(t, ended, 10*time.Second, 5*time.Millisecond)
}

func TestHalfALab(t *testing.T) {
	h := newHost(t, "half", nil)
	for _, namespace := range h.Lab.namespaces() {
		require.NoError(t, h.run(t.Context(), Step{Command: Command{"ip", "netns", "add", namespace}}))
		require.ErrorIs(t, h.Up(t.Context(), Plan{}), ErrHalfUp)
		require.ErrorIs(t, h.Ready(), ErrHalfUp)
		_, err := h.Down(t.Context())
		require.NoError(t, err)
		requireGone(t, h)
	}
	// Somebody else is at it, or was and did not come to an end.
	require.NoError(t, h.makeDir(&Plan{}))
	require.ErrorIs(t, h.Up(t.Context(), Plan{}), ErrHalfUp)
	_, err := h.Down(t.Context())
	require.NoError(t, err)
	requireGone(t, h)
}

// The wire process is the lab's weakest part.
func TestWireProcessIsKilled(t *testing.T) {
	h := newHost(t, "killed", nil)
	require.NoError(t, h.Up(t.Context(), plans["process"]))
	s, err := h.Status(t.Context())
	require.NoError(t, err)
	require.Empty(t, s.Problems)
	require.Equal(t, []int{s.Wire.PID}, pids(t.Context(), h.Lab.Wire.Namespace, 0))

	require.NoError(t, syscall.Kill(s.Wire.PID, syscall.SIGKILL))
	wire := process{PID: s.Wire.PID, Start: h.mustState(t).Wire.Start}
	require.Eventually(t, func() bool { return !wire.alive() }, 10*time.Second, 5*time.Millisecond)
	s, err = h.Status(t.Context())
	require.NoError(t, err)
	require.Len(t, s.Problems, 1)
	require.Contains(t, s.Problems[0], "has ended: no frame gets from one side to the other")
	require.Nil(t, s.Wire.FromA)

	_, err = h.Down(t.Context())
	require.NoError(t, err)
	requireGone(t, h)
}

func (h *Host) mustState(t *testing.T) *state {
	t.Helper()
	s, err := h.readState()
	require.NoError(t, err)
	return s
}

// The process ends when a namespace or an interface is taken away by hand, too.
func TestWireProcessEndsWithItsInterface(t *testing.T) {
	h := newHost(t, "gone", nil)
	require.NoError(t, h.Up(t.Context(), plans["process"]))
	wire := h.mustState(t).Wire
	require.True(t, wire.alive())
	require.NoError(t, h.run(t.Context(), Step{Command: Command{"ip", "-n", h.Lab.A.Namespace, "link", "del", h.Lab.A.Interface}}))
	require.Eventually(t, func() bool { return !wire.alive() }, 10*time.Second, 5*time.Millisecond)
	s, err := h.Status(t.Context())
	require.NoError(t, err)
	require.Len(t, s.Problems, 2, "the interface and the process: %v", s.Problems)
	_, err = h.Down(t.Context())
	require.NoError(t, err)
	requireGone(t, h)
}

// Without its process the number may be somebody else's by now.
func TestDownSparesStrangers(t *testing.T) {
	h := newHost(t, "stranger", nil)
	require.NoError(t, h.Up(t.Context(), Plan{}))
	sleep := exec.Command("sleep", "60")
	require.NoError(t, sleep.Start())
	t.Cleanup(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() })
	now, err := identify(sleep.Process.Pid)
	require.NoError(t, err)
	require.True(t, now.alive())
	require.NoError(t, h.writeState(&state{Wire: process{now.PID, now.Start + "0"}}))
	require.Zero(t, h.find(t.Context()).Process)
	_, err = h.Down(t.Context())
	require.NoError(t, err)
	require.True(t, now.alive())
	require.False(t, process{}.alive())
	requireGone(t, h)
}

func TestStatusWithoutItsFile(t *testing.T) {
	h := newHost(t, "file", nil)
	require.NoError(t, h.Up(t.Context(), plans["bridge"]))
	require.NoError(t, os.WriteFile(h.statePath(), []byte("{"), 0o644))
	s, err := h.Status(t.Context())
	require.NoError(t, err)
	require.Len(t, s.Problems, 1)
	require.NoError(t, os.Remove(h.statePath()))
	s, err = h.Status(t.Context())
	require.NoError(t, err)
	require.Len(t, s.Problems, 1)
	require.Contains(t, s.Problems[0], "is missing: what the lab does to frames is not known")
	_, err = h.Down(t.Context())
	require.NoError(t, err)
	requireGone(t, h)
}

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRows(t *testing.T) {
	all := rows("siw", []string{"packet", "kernel"})
	require.Len(t, all, 32, "2 backends, 2 roles, 4 sizes, CRC on and off")
	names := map[string]bool{}
	for _, r := range all {
		names[r.name()] = true
	}
	require.Len(t, names, 32)
}

func TestWantCRC(t *testing.T) {
	for _, row := range []struct {
		kind, role string
		asked      bool
		want       bool
	}{
		{"siw", "client", true, true},
		{"siw", "client", false, false},
		{"siw", "server", true, true},
		{"siw", "server", false, false},
		{"siw-strict", "client", true, true},
		{"siw-strict", "client", false, false}, // no siw turns the CRC on as responder
		{"siw-strict", "server", true, true},
		{"siw-strict", "server", false, true},
	} {
		t.Run(fmt.Sprintf("MPA-22 %s %s %v", row.kind, row.role, row.asked), func(t *testing.T) {
			require.Equal(t, row.want, Row{Kind: row.kind, Role: row.role, CRC: row.asked}.WantCRC())
		})
	}
}

func TestGuestSaid(t *testing.T) {
	require.NoError(t, guestSaid("client DISCONNECT EVENT...\n", nil))
	require.NoError(t, guestSaid("server DISCONNECT EVENT...\nwait for RDMA_READ_ADV state 10\n", nil))
	require.Error(t, guestSaid("cq completion failed status 5\n", nil))
	require.Error(t, guestSaid("", &ExitError{Status: 1}))
	const race = "server DISCONNECT EVENT...\nwait for RDMA_READ_ADV state 10\nrdma_get_cm_event: Bad file descriptor\n"
	require.NoError(t, guestSaid(race, &ExitError{Status: 255}))
	require.Error(t, guestSaid(race, &ExitError{Status: 1}))
	require.Error(t, guestSaid("rdma_get_cm_event: Bad file descriptor\n", &ExitError{Status: 255}), "before the end of the connection")
}

func TestWatched(t *testing.T) {
	w := newWatched()
	go func() {
		_, _ = io.WriteString(w, "packet: own stack\n")
		_, _ = io.WriteString(w, "ping: listening on 10.77.0.1:7174\n")
	}()
	require.NoError(t, w.await("listening", time.Second))
	require.Error(t, w.await("never", time.Millisecond))
	p := program{stderr: w}
	require.Equal(t, "packet", p.backend())
}

func TestRecipe(t *testing.T) {
	require.Len(t, recipeHash(), 16)
	require.Equal(t, recipeHash(), recipeHash())
	t.Setenv("SOFTRDMA_CACHE", "/somewhere")
	dir, err := cacheDir()
	require.NoError(t, err)
	require.Equal(t, "/somewhere/siwvm", dir)
}

func TestColumns(t *testing.T) {
	require.True(t, strings.HasPrefix(header, "guest"))
	var b strings.Builder
	printResult(&b, Row{Kind: "siw"}, Result{Err: errors.New("one\ntwo")})
	require.Equal(t, 3, strings.Count(b.String(), "\n"))
	require.Contains(t, b.String(), "FAILED\n    one\n    two\n")
}

func TestComplaint(t *testing.T) {
	require.True(t, complaint("<4>[    1.0] eth0 speed is unknown"))
	require.True(t, complaint("<2>[   36.3] kernel BUG"))
	require.False(t, complaint("<6>[    4.4] iwpm_register_pid: Unable to send a nlmsg (client = 2)"))
	require.False(t, complaint(""))
}

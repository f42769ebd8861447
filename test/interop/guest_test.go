package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRpingSaid(t *testing.T) {
	require.NoError(t, rpingSaid("client DISCONNECT EVENT...\n", nil))
	require.NoError(t, rpingSaid("server DISCONNECT EVENT...\nwait for RDMA_READ_ADV state 10\n", nil))
	require.Error(t, rpingSaid("cq completion failed status 5\n", nil))
	require.Error(t, rpingSaid("", &ExitError{Status: 1}))
	const race = "server DISCONNECT EVENT...\nwait for RDMA_READ_ADV state 10\nrdma_get_cm_event: Bad file descriptor\n"
	require.NoError(t, rpingSaid(race, &ExitError{Status: 255}))
	require.Error(t, rpingSaid(race, &ExitError{Status: 1}))
	require.Error(t, rpingSaid("rdma_get_cm_event: Bad file descriptor\n", &ExitError{Status: 255}), "before the end of the connection")
}

func TestGuestSaid(t *testing.T) {
	client := Row{Kind: "siw-strict", Program: "ucmatose", Role: "server"}
	good := strings.Join(cmatoseLines["server"], "\n") + "\n"
	require.NoError(t, client.guestSaid(good, nil))
	require.Error(t, client.guestSaid(good, &ExitError{Status: 1}))
	require.Error(t, client.guestSaid(good+"more\n", nil))
	require.Error(t, client.guestSaid("cmatose: starting client\n", nil))

	held := Row{Kind: "siw", Program: "ucmatose", Role: "server"}
	require.True(t, held.Held())
	const cut = "receiving data transfers\nfailed to post sends: 107\ntest complete\nreturn status 107\n"
	require.NoError(t, held.guestSaid(cut, &ExitError{Status: 107}))
	require.Error(t, held.guestSaid("test complete\nreturn status -12\n", &ExitError{Status: 244}), "it did not even connect")
	require.Error(t, held.guestSaid("", errors.New("the guest does not answer")))

	greet := Row{Program: "rdma_client", Role: "client"}
	require.NoError(t, greet.guestSaid("rdma_server: start\nrdma_server: end 0\n", nil))
	require.Error(t, greet.guestSaid("rdma_server: start\nrdma_server: end -1\n", nil))
}

func TestJudgeLog(t *testing.T) {
	require.NoError(t, judgeLog([]string{"<6>[    4.4] iwpm_register_pid: Unable to send a nlmsg (client = 2)"}))
	err := judgeLog([]string{"<4>[    1.0] eth0 speed is unknown"})
	require.Error(t, err)
	require.NotErrorIs(t, err, errGuestBroke)
	require.ErrorIs(t, judgeLog([]string{"<2>[   36.3] kernel BUG at drivers/infiniband/core/iwcm.c:594!"}), errGuestBroke)
	require.ErrorIs(t, broke("[   36.3] RIP: 0010:cm_event_handler+0x1/0x2 [iw_cm]"), errGuestBroke)
	require.NoError(t, broke("[   36.3] RIP: 0010:siw_qp_sq_process+0x1/0x2 [siw]"))
}

func TestComplaint(t *testing.T) {
	require.True(t, complaint("<4>[    1.0] eth0 speed is unknown"))
	require.True(t, complaint("<2>[   36.3] kernel BUG"))
	require.False(t, complaint("<4>[   17.465663] clocksource: Long readout interval, skipping watchdog check: cs_nsec: 1458123849 wd_nsec: 1458123480"))
	require.False(t, complaint("<4>[   75.658342] hrtimer: interrupt took 288203397 ns"))
	require.False(t, complaint("<6>[    4.4] iwpm_register_pid: Unable to send a nlmsg (client = 2)"))
	require.False(t, complaint(""))
}

func TestRecipe(t *testing.T) {
	require.Len(t, recipeHash(), 16)
	require.Equal(t, recipeHash(), recipeHash())
	t.Setenv("SOFTRDMA_CACHE", "/somewhere")
	dir, err := cacheDir()
	require.NoError(t, err)
	require.Equal(t, "/somewhere/siwvm", dir)
}

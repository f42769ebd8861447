package lab

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// killedUpEnv makes TestKilledUp a process that builds the lab it names.
const killedUpEnv = "SOFTRDMA_TEST_KILLED_UP"

// Whoever builds a lab is killed, at any time: Down takes away what is left. A wire
// process that nobody had taken note of yet ends with its interface.
func TestKilledUp(t *testing.T) {
	if name := os.Getenv(killedUpEnv); name != "" {
		h := &Host{Lab: Named(name, "srk")}
		require.NoError(t, h.Up(t.Context(), plans["process"]))
		return
	}
	for i := range 12 {
		h := newHost(t, "kill9", nil)
		name := fmt.Sprintf("sr-lab-kill9-%d", os.Getpid())
		h.Lab = Named(name, "srk")
		exe, err := os.Executable()
		require.NoError(t, err)
		child := exec.Command(exe, "-test.run=^TestKilledUp$")
		child.Env = append(os.Environ(), killedUpEnv+"="+name)
		child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // and so do its children, but for the wire process
		require.NoError(t, child.Start())
		time.Sleep(time.Duration(i) * 20 * time.Millisecond)
		require.NoError(t, child.Process.Kill())
		_ = child.Wait()
		group := func() bool { return syscall.Kill(-child.Process.Pid, 0) == nil }
		require.Eventually(t, func() bool { return !group() }, 10*time.Second, time.Millisecond, "the program it was running")
		left, err := h.Down(t.Context())
		if err != nil {
			require.ErrorIs(t, err, ErrDown)
		}
		var strays []process
		for _, pid := range left {
			if p, err := identify(pid); err == nil {
				strays = append(strays, p)
			}
		}
		requireGone(t, h)
		for _, p := range strays {
			require.Eventually(t, func() bool { return !p.alive() }, 10*time.Second, 5*time.Millisecond, "process %d stays", p.PID)
		}
	}
}

package iwarp_test

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

const oneProcessor = "SOFTRDMA_TEST_ONE_PROCESSOR"

// Where one goroutine of the device receives and the application polls, on threads that share a processor, each lets the
// other have it: a round trip takes microseconds, not ticks of the scheduler.
func TestThreadsShareAProcessor(t *testing.T) {
	if os.Getenv(oneProcessor) == "" {
		// A process of its own, all threads of which are there from the start.
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestThreadsShareAProcessor$", "-test.count=1")
		cmd.Env = append(os.Environ(), oneProcessor+"=1", "GOMAXPROCS=4")
		var was, one unix.CPUSet
		require.NoError(t, unix.SchedGetaffinity(0, &was))
		for i := range 1024 {
			if was.IsSet(i) {
				one.Set(i)
				break
			}
		}
		out, err := underAffinity(t, cmd, &one, &was)
		require.NoError(t, err, "%s", out)
		t.Logf("%s", out)
		return
	}
	for _, m := range []iwarp.Threads{iwarp.ThreadsIO, iwarp.ThreadsSplit} {
		t.Run(m.String(), func(t *testing.T) {
			p := pipe(t, iwarp.PipeConfig{Threads: m}).connect(t, arena, nil)
			const rounds = 200
			done := make(chan struct{})
			go func() {
				defer close(done)
				for n := range uint64(rounds) {
					awaitWord(&p.theirs, n+1)
					writeWord(t, &p.theirs, p.mine.remote, n+1)
				}
			}()
			var took []time.Duration
			for n := range uint64(rounds) {
				start := time.Now()
				writeWord(t, &p.mine, p.theirs.remote, n+1)
				awaitWord(&p.mine, n+1)
				took = append(took, time.Since(start))
			}
			<-done
			slices.Sort(took)
			require.Less(t, took[rounds/2], 4*time.Millisecond, "a tick")
		})
	}
}

// underAffinity runs cmd on the processors of set. What a thread starts is where the thread is.
func underAffinity(t *testing.T, cmd *exec.Cmd, set, back *unix.CPUSet) (out []byte, err error) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		if err = unix.SchedSetaffinity(0, set); err != nil {
			return
		}
		defer func() { _ = unix.SchedSetaffinity(0, back) }()
		out, err = cmd.CombinedOutput()
	}()
	<-ended
	return out, err
}

// writeWord writes n to the start of to, from behind it in e's own region.
func writeWord(t *testing.T, e *end, to verbs.RemoteBuf, n uint64) {
	e.mr.Uint64(64).Store(n)
	if _, err := e.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(64, 8)}, Remote: to.Slice(0, 8)}}); err != nil {
		t.Error(err)
	}
}

// awaitWord polls until n is at the start of e's region.
func awaitWord(e *end, n uint64) {
	var wcs [4]verbs.WC
	for end := time.Now().Add(30 * time.Second); e.mr.Uint64(0).Load() != n && time.Now().Before(end); {
		_, _ = e.cq.Poll(wcs[:])
	}
}

// Package leakcheck makes tests fail on what they leave behind: goroutines,
// buffers of a mempool and its mappings.
package leakcheck

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/softrdma/softrdma/mempool"
)

// grace is how long a count may take to come to zero: what a test has closed
// may still be on its way out.
const grace = time.Second

// registry holds the pools of the tests run so far.
var registry struct {
	mu    sync.Mutex
	pools []pool
}

type pool struct {
	test string
	p    *mempool.Pool
}

// Main is a package's TestMain: it runs the tests and then fails if a goroutine
// is left over, a buffer of a pool named to [Pool] is still out, or a pool or
// region that has memory of its own was not closed.
//
//	func TestMain(m *testing.M) { leakcheck.Main(m) }
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		for _, problem := range leaks() {
			fmt.Fprintln(os.Stderr, "leakcheck:", problem)
			code = 1
		}
	}
	os.Exit(code)
}

func leaks() (problems []string) {
	registry.mu.Lock()
	defer registry.mu.Unlock()
	for _, r := range registry.pools {
		if n := out(r.p); n != 0 {
			problems = append(problems, fmt.Sprintf("%s: %d buffers still out", r.test, n))
		}
	}
	if n := within(mempool.Mapped); n != 0 {
		problems = append(problems, fmt.Sprintf("%d octets in pools or regions that nobody has closed", n))
	}
	if err := goleak.Find(); err != nil {
		problems = append(problems, err.Error())
	}
	return problems
}

// Pool watches p: t fails if a buffer is out when it ends, that is after the
// cleanups registered later than this call. [Main] looks again after all tests.
// It returns p and does not close it.
func Pool(t testing.TB, p *mempool.Pool) *mempool.Pool {
	t.Helper()
	registry.mu.Lock()
	registry.pools = append(registry.pools, pool{t.Name(), p})
	registry.mu.Unlock()
	t.Cleanup(func() {
		if n := out(p); n != 0 {
			t.Errorf("leakcheck: %d buffers of the pool are still out", n)
		}
	})
	return p
}

// out returns how many buffers of p are out, after waiting for zero a while.
func out(p *mempool.Pool) int { return within(p.Out) }

// within returns what count counts, after waiting for zero a while.
func within[N int | int64](count func() N) N {
	for end := time.Now().Add(grace); ; time.Sleep(time.Millisecond) {
		if n := count(); n == 0 || time.Now().After(end) {
			return n
		}
	}
}

package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// host is what a process takes of its host.
type host struct {
	RSS        int64 `json:"rss"`  // octets of memory
	Anon       int64 `json:"anon"` // of them those that are no file's
	Heap       int64 `json:"heap"` // octets of objects on Go's heap, garbage not yet collected included
	Goroutines int   `json:"goroutines"`
}

// readHost reads the process's memory from /proc.
func readHost() (h host) {
	h.Goroutines = runtime.NumGoroutine()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	h.Heap = int64(m.HeapAlloc)
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return h // no Linux
	}
	for line := range strings.Lines(string(b)) {
		var kib int64
		switch {
		case strings.HasPrefix(line, "VmRSS:"):
			_, _ = fmt.Sscanf(line[6:], "%d", &kib) // what cannot be read counts as none
			h.RSS = kib << 10
		case strings.HasPrefix(line, "RssAnon:"):
			_, _ = fmt.Sscanf(line[8:], "%d", &kib)
			h.Anon = kib << 10
		}
	}
	return h
}

// settledHost reads it when what is free was given back.
func settledHost() host {
	// What pools keep survives one collection.
	for range 3 {
		runtime.GC()
	}
	debug.FreeOSMemory()
	return readHost()
}

// heapAllowance is how many octets of objects may stay: what libraries make once.
const heapAllowance = 4 << 20

// back checks that the process is where it began, as far as its memory goes within
// allowance MiB; under the race detector memory is not compared. What was closed may
// still be on its way out for a while.
func (h host) back(allowance int) (now host, wrong []string) {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		now, wrong = settledHost(), nil
		if now.Goroutines != h.Goroutines {
			wrong = append(wrong, fmt.Sprintf("%d goroutines, at the start there were %d", now.Goroutines, h.Goroutines))
		}
		if more := now.Anon - h.Anon; more > int64(allowance)<<20 && !raceDetector {
			wrong = append(wrong, fmt.Sprintf("%d MiB of memory more than at the start, %d are allowed", more>>20, allowance))
		}
		if more := now.Heap - h.Heap; more > heapAllowance {
			wrong = append(wrong, fmt.Sprintf("%d KiB of objects more than at the start, %d are allowed", more>>10, heapAllowance>>10))
		}
		if len(wrong) == 0 || time.Now().After(end) {
			return now, wrong
		}
	}
}

func goroutines() string {
	b := make([]byte, 16<<20)
	return string(b[:runtime.Stack(b, true)])
}

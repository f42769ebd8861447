package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Above these the host is not quiet.
const (
	maxLoad   = 0.5 // processes that ran or waited in the minute before the first round
	maxSteal  = 1.0 // per cent of the host's processor time
	maxOthers = 5.0 // per cent of one processor that other processes took during a round
)

// tick is the unit of /proc/stat that user space sees on all of Linux's processors.
const tick = time.Second / 100

// cpuStat is the first line of /proc/stat: the time of all processors, in ticks.
type cpuStat struct {
	user, nice, system, idle, iowait, irq, softirq, steal uint64
}

func readStat() (cpuStat, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuStat{}, err
	}
	return parseStat(string(b))
}

func parseStat(text string) (c cpuStat, err error) {
	_, err = fmt.Sscanf(text, "cpu %d %d %d %d %d %d %d %d", &c.user, &c.nice, &c.system, &c.idle, &c.iowait, &c.irq, &c.softirq, &c.steal)
	if err != nil {
		err = fmt.Errorf("/proc/stat begins with %.100q: %w", text, err)
	}
	return c, err
}

// busy is the time that processors worked for this host.
func (c cpuStat) busy() time.Duration {
	return time.Duration(c.user+c.nice+c.system+c.irq+c.softirq) * tick
}

func (c cpuStat) all() uint64 {
	return c.user + c.nice + c.system + c.idle + c.iowait + c.irq + c.softirq + c.steal
}

// readLoad returns the mean number of processes that ran or waited in the last minute.
func readLoad() (float64, error) {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(b), " ")
	return strconv.ParseFloat(first, 64)
}

// moment is the state of the host at one time.
type moment struct {
	at   time.Time
	stat cpuStat
	load float64
	list int64         // octets of free pages in the processors' own lists
	ours time.Duration // processor time of this program, of processes that it has waited for, and of ksoftirqd
}

func now() (m moment, err error) {
	m.at = time.Now()
	if m.stat, err = readStat(); err != nil {
		return m, err
	}
	if m.load, err = readLoad(); err != nil {
		return m, err
	}
	if zones, err := os.ReadFile("/proc/zoneinfo"); err == nil {
		m.list = pageLists(string(zones)) * int64(os.Getpagesize())
	}
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			return m, err
		}
		m.ours += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	m.ours += softirqTime()
	return m, nil
}

// pageLists adds up the free pages in the lists that each processor has for itself. While
// such a list grows the others take new pages, which may be far from at hand: in a virtual
// machine the hypervisor may have to find them first.
func pageLists(zoneinfo string) (pages int64) {
	for line := range strings.Lines(zoneinfo) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "count:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			pages += n
		}
	}
	return pages
}

// softirqTime is what the kernel's ksoftirqd threads have run: softirqs that the measured
// traffic left over.
func softirqTime() (sum time.Duration) {
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if err != nil || !strings.HasPrefix(string(comm), "ksoftirqd/") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(filepath.Dir(name), "schedstat"))
		if err != nil {
			continue
		}
		first, _, _ := strings.Cut(string(b), " ")
		ns, _ := strconv.ParseInt(first, 10, 64)
		sum += time.Duration(ns)
	}
	return sum
}

// conditions are those of a round.
type conditions struct {
	Wire       string   `json:"wire"`
	Round      int      `json:"round"`
	Seconds    float64  `json:"seconds"`
	LoadBefore float64  `json:"load_before"`
	LoadAfter  float64  `json:"load_after"`
	Steal      float64  `json:"steal_percent"`            // of the host's processor time
	Others     float64  `json:"others_percent_of_a_core"` // what other processes took
	Lists      float64  `json:"page_lists_mib"`           // free pages in the processors' lists, at its end
	NotQuiet   []string `json:"not_quiet,omitempty"`
}

// between tells what happened in a round. The load before it counts if nothing of ours
// has made it: fresh.
func between(before, after moment, fresh bool) conditions {
	c := conditions{LoadBefore: before.load, LoadAfter: after.load, Seconds: after.at.Sub(before.at).Seconds(), Lists: float64(after.list) / (1 << 20)}
	if all := after.stat.all() - before.stat.all(); all > 0 {
		c.Steal = 100 * float64(after.stat.steal-before.stat.steal) / float64(all)
	}
	others := after.stat.busy() - before.stat.busy() - (after.ours - before.ours)
	c.Others = max(0, 100*others.Seconds()/c.Seconds)
	say := func(format string, args ...any) { c.NotQuiet = append(c.NotQuiet, fmt.Sprintf(format, args...)) }
	if fresh && c.LoadBefore > maxLoad {
		say("a load of %.2f before it began", c.LoadBefore)
	}
	if c.Steal > maxSteal {
		say("%.1f %% of the processors' time stolen", c.Steal)
	}
	if c.Others > maxOthers {
		say("others took %.0f %% of a processor", c.Others)
	}
	return c
}

func (c conditions) String() string {
	s := fmt.Sprintf("%s, round %d: %.0f s, load %.2f before, %.2f after; %.1f %% stolen; others took %.0f %% of a processor; %.0f MiB in lists of free pages",
		c.Wire, c.Round, c.Seconds, c.LoadBefore, c.LoadAfter, c.Steal, c.Others, c.Lists)
	if len(c.NotQuiet) > 0 {
		s += ": NOT QUIET"
	}
	return s
}

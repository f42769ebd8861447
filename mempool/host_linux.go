package mempool

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// host is what a Linux host does about huge pages.
type host struct {
	mm       string // the directory its settings are in
	hugeSize int    // octets of a huge page; 0 if there are none
	def      int    // octets of the one that vm.nr_hugepages counts
	disabled bool   // this process has no transparent huge pages
}

// lookHost asks the kernel.
func lookHost() *host {
	h := readHost("/sys/kernel/mm", "/proc/meminfo")
	n, err := unix.PrctlRetInt(unix.PR_GET_THP_DISABLE, 0, 0, 0, 0)
	h.disabled = err == nil && n != 0
	return h
}

// readHost reads the settings in the directory mm and the file meminfo. The huge pages are those that one entry of
// the page table's second level maps, 2 MiB with pages of 4 KiB: set aside or transparent, the hardware does the same.
func readHost(mm, meminfo string) *host {
	h := &host{mm: mm}
	b, _ := os.ReadFile(meminfo)
	for line := range bytes.Lines(b) {
		if kb, ok := field(line, "Hugepagesize:"); ok {
			h.def = kb << 10
		}
	}
	h.hugeSize = h.number("transparent_hugepage/hpage_pmd_size")
	if h.hugeSize == 0 {
		h.hugeSize = h.def
	}
	return h
}

// number reads a file that holds one; 0 if there is none.
func (h *host) number(name string) int {
	b, _ := os.ReadFile(filepath.Join(h.mm, name))
	n, _ := strconv.Atoi(string(bytes.TrimSpace(b)))
	return n
}

// chosen reads which of the words in a file stands in brackets.
func (h *host) chosen(name string) string {
	b, _ := os.ReadFile(filepath.Join(h.mm, name))
	_, rest, _ := strings.Cut(string(b), "[")
	word, _, _ := strings.Cut(rest, "]")
	return word
}

// noHuge says why n huge pages were not to be had, and how to have them.
func (h *host) noHuge(n int, err error) string {
	if !errors.Is(err, unix.ENOMEM) {
		return fmt.Sprintf("this kernel sets no huge pages of %s aside: %v", octets(h.hugeSize), err)
	}
	dir := fmt.Sprintf("hugepages/hugepages-%dkB/", h.hugeSize>>10)
	total := h.number(dir + "nr_hugepages")
	free := max(h.number(dir+"free_hugepages")-h.number(dir+"resv_hugepages"), 0)
	how := fmt.Sprintf("echo %d > %s", total+n-free, filepath.Join(h.mm, dir, "nr_hugepages"))
	if h.hugeSize == h.def {
		how = fmt.Sprintf("sysctl vm.nr_hugepages=%d", total+n-free)
	}
	if free >= n {
		return fmt.Sprintf("no huge pages of %s for this process: %v", octets(h.hugeSize), err)
	}
	return fmt.Sprintf("%d huge pages of %s are free and it takes %d: \"%s\" sets them aside", free, octets(h.hugeSize), n, how)
}

// noTransparent says why there are no transparent huge pages; empty if there are.
func (h *host) noTransparent() string {
	global, one := "transparent_hugepage/enabled", fmt.Sprintf("transparent_hugepage/hugepages-%dkB/enabled", h.hugeSize>>10)
	setting, file := h.chosen(one), one
	if setting == "" || setting == "inherit" { // there is one for each size since Linux 6.8
		setting, file = h.chosen(global), global
	}
	switch setting {
	case "":
		return "this kernel has no transparent huge pages"
	case "never":
		return fmt.Sprintf("transparent huge pages are off: \"echo madvise > %s\" turns them on", filepath.Join(h.mm, file))
	}
	if h.disabled {
		return "transparent huge pages are off for this process, by prctl(PR_SET_THP_DISABLE)"
	}
	return ""
}

// lock keeps what is in memory there, and what will be as it is touched.
func lock(at unsafe.Pointer, n int) error {
	_, _, errno := unix.Syscall(unix.SYS_MLOCK2, uintptr(at), uintptr(n), unix.MLOCK_ONFAULT)
	if errno != 0 {
		return errno
	}
	return nil
}

// noLock says why n octets were not locked, and what would help.
func noLock(n int, err error) string {
	if !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EAGAIN) {
		return err.Error()
	}
	limit := "RLIMIT_MEMLOCK"
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) == nil && l.Cur <= maxRegion {
		limit += " of " + octets(int(l.Cur))
	}
	return fmt.Sprintf("%s does not allow %s more: raise it (ulimit -l, LimitMEMLOCK=) or give the right CAP_IPC_LOCK", limit, octets(n))
}

// mapping is what the kernel tells of a piece of memory, in octets.
type mapping struct {
	resident int
	inHuge   int
}

// lookMapping adds up what the kernel has mapped from first on. ok is false where it does not tell.
func lookMapping(first, length uintptr) (m mapping, ok bool) {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return m, false
	}
	defer func() { _ = f.Close() }()
	within := false
	for s := bufio.NewScanner(f); s.Scan(); {
		line := s.Bytes()
		if from, to, is := bounds(line); is {
			if from >= first+length {
				break
			}
			within = from >= first && to <= first+length
			ok = ok || within
			continue
		}
		if !within {
			continue
		}
		if kb, is := field(line, "Rss:"); is {
			m.resident += kb << 10
		} else if kb, is := field(line, "AnonHugePages:"); is {
			m.inHuge += kb << 10
		} else if kb, is := field(line, "Private_Hugetlb:"); is { // not in Rss
			m.resident += kb << 10
			m.inHuge += kb << 10
		}
	}
	return m, ok
}

// bounds reads the addresses that the first line of each mapping begins with.
func bounds(line []byte) (from, to uintptr, ok bool) {
	a, rest, ok := strings.Cut(string(line), "-")
	if !ok {
		return 0, 0, false
	}
	b, _, _ := strings.Cut(rest, " ")
	lo, err1 := strconv.ParseUint(a, 16, 64)
	hi, err2 := strconv.ParseUint(b, 16, 64)
	return uintptr(lo), uintptr(hi), err1 == nil && err2 == nil
}

// field reads "NAME   123 kB".
func field(line []byte, name string) (n int, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(name))
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSuffix(string(bytes.TrimSpace(rest)), " kB"))
	return n, err == nil
}

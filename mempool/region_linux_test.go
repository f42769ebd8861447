package mempool

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func init() {
	children["no locking"] = withoutLocking
	children["no transparent huge pages"] = withoutTransparent
	children["no address space"] = withoutAddressSpace
}

// child runs children[name] in a process of its own.
func child(t *testing.T, name string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(os.Environ(), childVariable+"="+name)
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func TestRegionLocksWhatItMay(t *testing.T) { child(t, "no locking") }

// withoutLocking looks at regions when little of them may be locked. Rights are the thread's, limits the process's.
func withoutLocking() error {
	runtime.LockOSThread()
	const capIPCLock = 14
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&h, &caps[0]); err != nil {
		return err
	}
	caps[0].Effective &^= 1 << capIPCLock
	if err := unix.Capset(&h, &caps[0]); err != nil {
		return err
	}
	page := os.Getpagesize()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return err
	}
	// Below what any host allows, and only ever down: what is lowered without the right stays low.
	for _, test := range []struct {
		allowed, size int
		locked        bool
	}{
		{allowed: 4, size: 4, locked: true},
		{allowed: 4, size: 5, locked: false},
		{allowed: 0, size: 1, locked: false},
	} {
		limit.Cur = uint64(test.allowed * page)
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
			return err
		}
		for range 3 { // what Close unlocks counts no more
			r, err := NewRegion(RegionConfig{Size: test.size * page})
			if err != nil {
				return err
			}
			clear(r.Bytes())
			i := r.Info()
			switch {
			case i.Locked != test.locked, i.Resident != test.size*page:
				return fmt.Errorf("%+v: %v", test, i)
			case !test.locked && !strings.Contains(i.Why, "not locked: RLIMIT_MEMLOCK of "+octets(test.allowed*page)+" does not allow "+octets(test.size*page)):
				return fmt.Errorf("%+v: %v", test, i)
			case test.locked && strings.Contains(i.Why, "lock"):
				return fmt.Errorf("%+v: %v", test, i)
			}
			if err := r.Close(); err != nil {
				return err
			}
		}
	}
	// Larger ones, of any kind, for want of it are no worse.
	r, err := NewRegion(RegionConfig{Size: 8 << 20, Pages: Transparent, Prefault: true})
	if err != nil {
		return err
	}
	if i := r.Info(); i.Locked || i.Resident < 8<<20 {
		return errors.New(i.String())
	}
	return r.Close()
}

func TestRegionWithoutTransparentHugePages(t *testing.T) { child(t, "no transparent huge pages") }

func withoutTransparent() error {
	before := lookHost().noTransparent()
	if err := unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0); err != nil {
		return err
	}
	r, err := NewRegion(RegionConfig{Size: 4 << 20, Pages: Transparent})
	if err != nil {
		return err
	}
	clear(r.Bytes())
	i := r.Info()
	if i.Pages != Plain || i.PageSize != os.Getpagesize() || i.InHuge != 0 || i.Resident != 4<<20 {
		return errors.New(i.String())
	}
	switch hugeSize := lookHost().hugeSize; {
	case hugeSize > 8<<20: // nothing lost
	case before != "" && !strings.Contains(i.Why, before), before == "" && !strings.Contains(i.Why, "PR_SET_THP_DISABLE"):
		return errors.New(i.String())
	}
	return r.Close()
}

func TestRegionWithoutAddressSpace(t *testing.T) { child(t, "no address space") }

func withoutAddressSpace() error {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[0])
	if err != nil {
		return err
	}
	used := uint64(pages) * uint64(os.Getpagesize())
	const more = 1 << 30
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: used + more, Max: used + more}); err != nil {
		return err
	}
	for range 100 {
		for _, pages := range []Pages{Plain, Transparent, Huge} {
			r, err := NewRegion(RegionConfig{Size: 2 * more, Pages: pages})
			if !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "ulimit -v") {
				return fmt.Errorf("%v, %v", r, err)
			}
			if !raceEnabled { // then it were the heap that is too small, which is the end
				if _, err = New(Config{Count: 2, Size: more, Pages: pages}); !errors.Is(err, unix.ENOMEM) {
					return fmt.Errorf("pool: %v", err)
				}
			}
			if r, err = NewRegion(RegionConfig{Size: more / 64, Pages: pages}); err != nil {
				return fmt.Errorf("what fits is refused: %w", err)
			}
			if err := r.Close(); err != nil {
				return err
			}
		}
	}
	if Mapped() != 0 {
		return fmt.Errorf("%d octets are left over", Mapped())
	}
	return nil
}

func TestTransparent(t *testing.T) {
	h := lookHost()
	if h.hugeSize == 0 || h.hugeSize > 64<<20 {
		t.Skipf("LEFT OUT: huge pages of %s are too large for a test", octets(h.hugeSize))
	}
	r, err := NewRegion(RegionConfig{Size: 4 * h.hugeSize, Pages: Transparent})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	i := r.Info()
	require.Zero(t, i.Resident, "what nobody has touched takes no memory")
	why := h.noTransparent()
	if why != "" {
		require.Equal(t, Plain, i.Pages)
		require.Contains(t, i.Why, why)
		return
	}
	require.Equal(t, Info{Pages: Transparent, PageSize: h.hugeSize, Locked: i.Locked, Size: 4 * h.hugeSize, Why: i.Why}, i)
	r.Bytes()[h.hugeSize] = 1
	i = r.Info()
	switch i.Pages {
	case Transparent:
		require.Equal(t, []int{h.hugeSize, h.hugeSize}, []int{i.Resident, i.InHuge})
	case Plain: // the kernel had none, and that is what Info says
		require.Equal(t, []int{os.Getpagesize(), 0}, []int{i.PageSize, i.InHuge})
		require.Positive(t, i.Resident)
		require.Contains(t, i.Why, "no huge page was at hand")
	default:
		require.Fail(t, i.String())
	}
}

// hugePages sees to it that the host has huge pages set aside while the test runs, as long as enough reports false.
func hugePages(t *testing.T, enough func() bool) {
	const setting = "/proc/sys/vm/nr_hugepages"
	f, err := os.OpenFile(setting, os.O_RDWR, 0)
	if err != nil {
		t.Skip("LEFT OUT: huge pages are the host's to set aside, which takes root: " + err.Error())
	}
	t.Cleanup(func() { f.Close() })
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX), "another such test")
	b, err := os.ReadFile(setting)
	require.NoError(t, err)
	before := strings.TrimSpace(string(b))
	n, err := strconv.Atoi(before)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.WriteFile(setting, []byte(before), 0)) })
	for range 16 { // other programs may take them first
		n += 8
		if err := os.WriteFile(setting, []byte(strconv.Itoa(n)), 0); err != nil {
			t.Skip("LEFT OUT: this host sets no huge pages aside: " + err.Error())
		}
		if enough() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Skip("LEFT OUT: this host does not get huge pages together")
}

func TestHuge(t *testing.T) {
	h := lookHost()
	if h.hugeSize == 0 || h.hugeSize > 8<<20 || h.hugeSize != h.def {
		t.Skipf("LEFT OUT: vm.nr_hugepages counts pages of %s, which is not what a test can have", octets(h.def))
	}
	var r *Region
	hugePages(t, func() (got bool) {
		var err error
		r, err = NewRegion(RegionConfig{Size: h.hugeSize + 1})
		require.NoError(t, err)
		if got = r.Info().Pages == Huge; !got {
			require.Contains(t, r.Info().Why, "sets them aside")
			require.NoError(t, r.Close())
		}
		return got
	})
	size := 2 * h.hugeSize
	require.Equal(t, Info{Pages: Huge, PageSize: h.hugeSize, Locked: true, Size: h.hugeSize + 1, Resident: size, InHuge: size}, r.Info(),
		"all there from the start, never swapped, nothing to be bettered")
	require.Zero(t, addressOf(r.Bytes())%uintptr(h.hugeSize))
	clear(r.Bytes())
	require.NoError(t, r.Close())

	// Asked for what huge pages cannot give.
	for _, c := range []RegionConfig{
		{Size: 2 * h.hugeSize, Guard: true},
		{Size: 2 * h.hugeSize, Align: 2 * h.hugeSize},
		{Size: 2 * h.hugeSize, Pages: Transparent},
		{Size: h.hugeSize/2 - 1},
	} {
		r, err := NewRegion(c)
		require.NoError(t, err)
		require.Less(t, r.Info().Pages, Huge, "%+v: %v", c, r.Info())
		require.NoError(t, r.Close())
	}

	// A pool gives its pages back.
	if raceEnabled {
		return
	}
	for range 100 {
		p, err := New(Config{Count: 4, Size: h.hugeSize / 4, Pages: Huge})
		require.NoError(t, err)
		b := p.Get()
		b.SetLen(b.Cap())
		require.Error(t, p.Close())
		b.Release()
		require.NoError(t, p.Close())
	}
}

// faults reports whether touching b[i], past its end or before its beginning, is caught by the hardware.
func faults(b []byte, i int) (caught bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if err, ok := recover().(error); ok {
			var fault interface{ Addr() uintptr }
			caught = errors.As(err, &fault) && fault.Addr() == addressOf(b)+uintptr(i)
		}
	}()
	put(b, i)
	return false
}

// put writes b[i] without asking whether there is one. It is no part of its caller, whose compiler would not expect
// it to panic.
//
//go:noinline
func put(b []byte, i int) { *(*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), i)) = 1 }

func TestGuardPages(t *testing.T) {
	page := os.Getpagesize()
	for _, c := range []RegionConfig{
		{Size: page, Guard: true},
		{Size: 3 * page, Guard: true, Align: 16 * page},
		{Size: 5<<20 + page, Guard: true},
		{Size: 8 << 20, Guard: true, Prefault: true},
	} {
		c.Size = roundUp(c.Size, page)
		r, err := NewRegion(c)
		require.NoError(t, err)
		b := r.Bytes()
		require.False(t, faults(b, 0))
		require.False(t, faults(b, c.Size-1))
		for _, i := range []int{-1, -page, c.Size, c.Size + page - 1} {
			require.True(t, faults(b, i), "%+v: nothing happens at %d", c, i)
		}
		require.NoError(t, r.Close())
		require.True(t, faults(b, 0), "closed")
	}
}

// flags returns what the kernel says of the mapping of b.
func flags(t *testing.T, b []byte) []string {
	smaps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	_, rest, ok := strings.Cut("\n"+string(smaps), fmt.Sprintf("\n%08x-", addressOf(b)))
	require.True(t, ok)
	_, rest, ok = strings.Cut(rest, "\nVmFlags:")
	require.True(t, ok)
	line, _, _ := strings.Cut(rest, "\n")
	return strings.Fields(line)
}

// What Info says is what the kernel does.
func TestFlags(t *testing.T) {
	for _, c := range []RegionConfig{
		{Size: 8 << 20}, {Size: 8 << 20, Pages: Transparent}, {Size: 8 << 20, Pages: Plain}, {Size: 1000},
		{Size: 8 << 20, Pages: Plain, NoLock: true},
	} {
		r, err := NewRegion(c)
		require.NoError(t, err)
		i, f := r.Info(), flags(t, r.Bytes())
		require.Contains(t, f, "dc", "not copied into a child")
		require.Equal(t, i.Pages == Huge, slices.Contains(f, "ht"), "%v %v", i, f)
		require.Equal(t, i.Pages == Transparent, slices.Contains(f, "hg"), "%v %v", i, f)
		if i.Pages != Huge { // which need no lock
			require.Equal(t, i.Locked, slices.Contains(f, "lo"), "%v %v", i, f)
		}
		require.NoError(t, r.Close())
	}
}

// mappings counts those of the process.
func mappings(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Count(string(b), "\n")
}

func TestRegionsLeaveNothingBehind(t *testing.T) {
	open := func(n int) {
		for i := range n {
			r, err := NewRegion(RegionConfig{Size: 1 + i*5000%(5<<20), Align: 1 << (i % 24), Guard: i%2 == 0, Pages: Pages(i % 4)})
			require.NoError(t, err)
			r.Bytes()[0] = 1
			require.NoError(t, r.Close())
			p, err := New(Config{Count: 10, Size: 1 + i, Pages: Pages(i % 4)})
			require.NoError(t, err)
			p.Get().Release()
			require.NoError(t, p.Close())
		}
	}
	open(10)
	before := mappings(t)
	open(1000)
	require.Less(t, mappings(t), before+100, "Go's own may come and go")
}

package mempool

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// hostOf reads what a host would look like with these files.
func hostOf(t *testing.T, meminfo string, files map[string]string) *host {
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, "mm", name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o777))
		require.NoError(t, os.WriteFile(name, []byte(text+"\n"), 0o666))
	}
	name := filepath.Join(dir, "meminfo")
	require.NoError(t, os.WriteFile(name, []byte(meminfo), 0o666))
	h := readHost(filepath.Join(dir, "mm"), name)
	return h
}

func TestHosts(t *testing.T) {
	const (
		ordinary = "MemTotal:       24684404 kB\nHugePages_Free:        0\nHugepagesize:       2048 kB\nHugetlb: 0 kB\n"
		global   = "transparent_hugepage/enabled"
		two      = "transparent_hugepage/hugepages-2048kB/enabled"
		pmd      = "transparent_hugepage/hpage_pmd_size"
		none     = "echo madvise > "
	)
	for name, test := range map[string]struct {
		meminfo       string
		files         map[string]string
		size, def     int
		noTransparent string // ends so; "" means there are some
	}{
		"an ordinary one": {ordinary, map[string]string{global: "always [madvise] never", two: "always [inherit] madvise never", pmd: "2097152"},
			2 << 20, 2 << 20, ""},
		"always": {ordinary, map[string]string{global: "[always] madvise never", pmd: "2097152"}, 2 << 20, 2 << 20, ""},
		"never":  {ordinary, map[string]string{global: "always madvise [never]", pmd: "2097152"}, 2 << 20, 2 << 20, "/enabled\" turns them on"},
		"never of this size": {ordinary, map[string]string{global: "[always] madvise never", two: "always inherit madvise [never]", pmd: "2097152"},
			2 << 20, 2 << 20, "hugepages-2048kB/enabled\" turns them on"},
		"only of this size": {ordinary, map[string]string{global: "always madvise [never]", two: "always inherit [madvise] never", pmd: "2097152"},
			2 << 20, 2 << 20, ""},
		"set aside only":  {ordinary, nil, 2 << 20, 2 << 20, "this kernel has no transparent huge pages"},
		"of 1 GiB first":  {"Hugepagesize:    1048576 kB\n", map[string]string{global: "[always] madvise never", pmd: "2097152"}, 2 << 20, 1 << 30, ""},
		"pages of 64 KiB": {"Hugepagesize:     524288 kB\n", map[string]string{global: "[always] madvise never", pmd: "536870912"}, 512 << 20, 512 << 20, ""},
		"none at all":     {"MemTotal: 1 kB\n", nil, 0, 0, "this kernel has no transparent huge pages"},
	} {
		t.Run(name, func(t *testing.T) {
			h := hostOf(t, test.meminfo, test.files)
			require.Equal(t, []int{test.size, test.def}, []int{h.hugeSize, h.def})
			why := h.noTransparent()
			require.True(t, strings.HasSuffix(why, test.noTransparent) && (why == "") == (test.noTransparent == ""), "%q", why)
			if why == "" {
				h.disabled = true
				require.Contains(t, h.noTransparent(), "prctl")
			}
		})
	}
}

func TestWhyNotHuge(t *testing.T) {
	const dir = "hugepages/hugepages-2048kB/"
	files := func(total, free, reserved string) map[string]string {
		return map[string]string{
			dir + "nr_hugepages": total, dir + "free_hugepages": free, dir + "resv_hugepages": reserved,
			"transparent_hugepage/hpage_pmd_size": "2097152",
		}
	}
	h := hostOf(t, "Hugepagesize: 2048 kB\n", files("10", "3", "2"))
	require.Equal(t, "1 huge pages of 2 MiB are free and it takes 4: \"sysctl vm.nr_hugepages=13\" sets them aside", h.noHuge(4, unix.ENOMEM))
	h = hostOf(t, "Hugepagesize: 2048 kB\n", nil)
	require.Contains(t, h.noHuge(4, unix.ENOMEM), "vm.nr_hugepages=4\"")
	h = hostOf(t, "Hugepagesize: 1048576 kB\n", files("0", "0", "0"))
	require.Contains(t, h.noHuge(4, unix.ENOMEM), "\"echo 4 > "+filepath.Join(h.mm, dir, "nr_hugepages"))
	h = hostOf(t, "Hugepagesize: 2048 kB\n", files("8", "8", "0"))
	require.Equal(t, "no huge pages of 2 MiB for this process: cannot allocate memory", h.noHuge(4, unix.ENOMEM))
	require.Equal(t, "this kernel sets no huge pages of 2 MiB aside: invalid argument", h.noHuge(4, unix.EINVAL))
}

// What this host says is what its own files say.
func TestThisHost(t *testing.T) {
	h := lookHost()
	require.Zero(t, h.hugeSize&(h.hugeSize-1))
	require.True(t, h.hugeSize == 0 || h.hugeSize > os.Getpagesize(), "%d", h.hugeSize)
}

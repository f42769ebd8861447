package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const list = "# a comment\n\n" +
	"MPA-01\tMUST\tRFC 5044 7.1.1\ta startup frame has 20 octets | more\n" +
	"MPA-02\tMUST NOT\tRFC 5044 7.1.1\tanswer a wrong key\n" +
	"MPA-03\tMAY\tRFC 5044 8\tdrop <bad> segments\tTCP is in order\n" +
	"VRB-01\tSHOULD p\tverbs\tbe kind\n"

// words is what go test -json says of some tests: actions and names.
func words(events ...[2]string) string {
	var b strings.Builder
	for _, e := range events {
		b.WriteString(`{"Action":"` + e[0] + `","Package":"` + module + `/p","Test":"` + e[1] + `"}` + "\n")
	}
	return b.String()
}

// verdict runs the program over words that were recorded.
func verdict(t *testing.T, list, said string, flags ...string) (code int, out, report string) {
	t.Helper()
	dir := t.TempDir()
	file := func(name, content string) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, []byte(content), 0o644))
		return name
	}
	var b bytes.Buffer
	to := filepath.Join(dir, "report.md")
	code = run(append([]string{"-requirements", file("list", list), "-results", file("words", said), "-report", to}, flags...), &b)
	octets, err := os.ReadFile(to)
	if err == nil {
		report = string(octets)
	}
	return code, b.String(), report
}

func TestVerdicts(t *testing.T) {
	good := [][2]string{{"pass", "TestA/MPA-01_one"}, {"pass", "TestA"}, {"pass", "TestB/MPA-02_two_and_MPA-01"}, {"pass", "TestB"}}
	for _, c := range []struct {
		name   string
		events [][2]string
		flags  []string
		code   int
		last   string
		say    string
	}{
		{name: "all that must is there", events: good, last: "2 passed, 0 failed, 1 not applicable, 1 open of 4"},
		{name: "one is open", events: good[:2], code: 1, last: "1 passed, 0 failed, 1 not applicable, 2 open of 4", say: "open   MPA-02 MUST NOT: answer"},
		{name: "one is open and may be", events: good[:2], flags: []string{"-allow-open"}, last: "1 passed, 0 failed, 1 not applicable, 2 open of 4"},
		{name: "one test of two fails", events: append(good[:3:3], [2]string{"fail", "TestC/MPA-01_again"}, [2]string{"fail", "TestC"}), flags: []string{"-allow-open"},
			code: 1, last: "1 passed, 1 failed, 1 not applicable, 1 open of 4", say: "p.TestC/MPA-01_again: failed"},
		{name: "a skipped test is no pass", events: append(good[:2:2], [2]string{"skip", "TestB/MPA-02_two"}, [2]string{"pass", "TestB"}),
			code: 1, last: "1 passed, 0 failed, 1 not applicable, 2 open of 4", say: "p.TestB/MPA-02_two: left out"},
		{name: "a test whose subtests are all skipped is no pass", code: 1, last: "1 passed, 0 failed, 1 not applicable, 2 open of 4",
			events: append(good[:2:2], [2]string{"skip", "TestB/MPA-02_two/x"}, [2]string{"skip", "TestB/MPA-02_two/y"}, [2]string{"pass", "TestB/MPA-02_two"}, [2]string{"pass", "TestB"})},
		{name: "one of its subtests is enough", last: "2 passed, 0 failed, 1 not applicable, 1 open of 4",
			events: append(good[:2:2], [2]string{"skip", "TestB/MPA-02_two/x"}, [2]string{"pass", "TestB/MPA-02_two/y"}, [2]string{"pass", "TestB/MPA-02_two"}, [2]string{"pass", "TestB"})},
		{name: "a skipped test beside one that passed", events: append(good[:4:4], [2]string{"skip", "TestC/MPA-02_two"}),
			last: "2 passed, 0 failed, 1 not applicable, 1 open of 4"},
		{name: "a test that never ended", events: append(good[:2:2], [2]string{"run", "TestB/MPA-02_two"}), code: 1, last: "1 passed, 0 failed, 1 not applicable, 2 open of 4"},
		{name: "an unknown number", events: append(good[:4:4], [2]string{"pass", "TestC/MPA-99_ninety"}), code: 1, say: "p.TestC/MPA-99_ninety names MPA-99"},
		{name: "a number in another form", events: append(good[:4:4], [2]string{"pass", "TestC/MPA-1_one"}), code: 1, say: "names MPA-1,"},
		{name: "a waived one that has a test", events: append(good[:4:4], [2]string{"pass", "TestC/MPA-03_three"}), code: 1, say: "MPA-03 is said not to apply"},
		{name: "a package that dies", events: append(good[:4:4], [2]string{"fail", ""}), code: 1, say: "the package failed outside of its tests"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, report := verdict(t, list, words(c.events...), c.flags...)
			require.Equal(t, c.code, code, out)
			require.Contains(t, out, c.say)
			require.True(t, strings.HasSuffix(out, " of 4\n"), out)
			lines := strings.Split(strings.TrimSpace(report), "\n")
			require.Equal(t, strings.TrimSpace(out[strings.LastIndex(out, "conformance: "):]), lines[len(lines)-1], "the report ends as the program does")
			if c.last != "" {
				require.Equal(t, "conformance: "+c.last, lines[len(lines)-1])
			}
		})
	}
}

func TestReport(t *testing.T) {
	said := words([2]string{"pass", "TestB/MPA-01_a|b"}, [2]string{"skip", "TestA/MPA-01"}, [2]string{"pass", "TestB/MPA-01_a|b/MPA-01_sub"})
	_, _, report := verdict(t, list, said)
	for _, row := range []string{
		"| **MPA-01** a startup frame has 20 octets \\| more | MUST | RFC 5044 7.1.1 | `p.TestA/MPA-01` (left out)<br>`p.TestB/MPA-01_a\\|b` | passed |\n",
		"| **MPA-02** answer a wrong key | MUST NOT | RFC 5044 7.1.1 |  | open |\n",
		"| **MPA-03** drop &lt;bad> segments | MAY | RFC 5044 8 | TCP is in order | not applicable |\n",
		"| MPA Framing over TCP (RFC 5044, RFC 6581) | 1 | 0 | 1 | 1 | 3 |\n",
		"| **all** | **1** | **0** | **1** | **2** | **4** |\n",
	} {
		require.Contains(t, report, row)
	}
	_, _, again := verdict(t, list, said)
	require.Equal(t, report, again)
}

func TestList(t *testing.T) {
	for name, bad := range map[string]string{
		"no requirements":    "# nothing\n",
		"stands here twice":  list + "MPA-01\tMUST\tx\ty\n",
		"is no level":        list + "MPA-04\tSHALL\tx\ty\n",
		"is no ID":           list + "MPA04\tMUST\tx\ty\n",
		"with tabs between":  list + "MPA-04 MUST x y\n",
		"26 requirements":    waivedList(26),
		"an ID, a level, a ": list + "MPA-04\tMUST\tx\t\n",
	} {
		t.Run(name, func(t *testing.T) {
			code, out, _ := verdict(t, bad, words([2]string{"pass", "TestA"}))
			require.NotZero(t, code)
			require.Contains(t, out, name)
		})
	}
	code, out, _ := verdict(t, waivedList(25), words([2]string{"pass", "TestA"}))
	require.Zero(t, code, out)
}

func waivedList(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("MPA-" + string(rune('0'+i/10)) + string(rune('0'+i%10)) + "\tMAY\tx\ty\twhy\n")
	}
	return b.String()
}

// TestOwnList reads the list of this project.
func TestOwnList(t *testing.T) {
	f, err := os.Open("../../testdata/conformance/requirements.tsv")
	require.NoError(t, err)
	defer f.Close()
	own, err := readRequirements(f)
	require.NoError(t, err)
	require.Len(t, own, 425)
	n := map[string]int{}
	for _, q := range own {
		n[q.family()]++
		if q.waived != "" {
			require.Contains(t, q.level, "MAY", "%s: only what may be left can be put aside", q.id)
		}
	}
	require.Equal(t, map[string]int{"MPA": 84, "DDP": 61, "RDM": 90, "SEC": 60, "IOP": 38, "VRB": 92}, n)
}

// TestRunsTests lets the program run tests itself.
func TestRunsTests(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	file("go.mod", "module lame\n")
	file("list", list)
	file("lame_test.go", `package lame

import "testing"

func TestLame(t *testing.T) {
	t.Run("MPA-01 twenty octets", func(t *testing.T) {})
	t.Run("MPA-02 a wrong key", func(t *testing.T) {})
}
`)
	t.Chdir(dir)
	var out bytes.Buffer
	args := []string{"-requirements", "list", "-report", ""}
	require.Zero(t, run(append(args, "."), &out), out.String())
	require.Contains(t, out.String(), "2 passed, 0 failed, 1 not applicable, 1 open of 4")
	out.Reset()
	require.Equal(t, 1, run(append(args, "-run", "/MPA-01", "."), &out))
	require.Contains(t, out.String(), "open   MPA-02")
	out.Reset()
	require.Equal(t, 1, run(append(args, "-run", "TestNone", "."), &out))
	require.Contains(t, out.String(), "no test ran")
	out.Reset()
	require.Equal(t, 1, run(append(args, "./nowhere"), &out))
	require.Zero(t, run([]string{"-h"}, &out))
	require.Equal(t, 1, run([]string{"-nonsense"}, &out))
	require.Equal(t, 1, run([]string{"-requirements", "none"}, &out))
	require.Equal(t, 1, run([]string{"-requirements", "list", "-results", "none"}, &out))
}

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSummary(t *testing.T) {
	var out bytes.Buffer
	s := newSummary(&out)
	require.NoError(t, s.read(strings.NewReader(`
{"Action":"run","Package":"p","Test":"TestGood"}
{"Action":"output","Package":"p","Test":"TestGood","Output":"    good_test.go:1: LEFT OUT: a part of it: no root\n"}
{"Action":"output","Package":"p","Test":"TestGood","Output":"        > [!lab] skip 'LEFT OUT: words of a script'\n"}
{"Action":"pass","Package":"p","Test":"TestGood","Elapsed":0.1}
{"Action":"output","Package":"p","Test":"TestSkip","Output":"    x_test.go:1: LEFT OUT: tshark is not installed\n"}
{"Action":"output","Package":"p","Test":"TestSkip","Output":"--- SKIP: TestSkip (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestSkip"}
{"Action":"output","Package":"p","Test":"TestQuiet","Output":"    x_test.go:2: not today\n"}
{"Action":"output","Package":"p","Test":"TestQuiet","Output":"--- SKIP: TestQuiet (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestQuiet"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"    bad_test.go:7: 1 is not 2\n"}
{"Action":"fail","Package":"p","Test":"TestBad"}
{"Action":"fail","Package":"p","Elapsed":0.2}
{"ImportPath":"q [q.test]","Action":"build-output","Output":"q.go:3:1: syntax error\n"}
{"ImportPath":"q [q.test]","Action":"build-fail"}
{"Action":"fail","Package":"q","Elapsed":0,"FailedBuild":"q [q.test]"}
{"Action":"skip","Package":"no/tests","Elapsed":0}
`)))
	s.print()
	require.Equal(t, 1, s.passed)
	require.Equal(t, 2, s.failed, "a failed test and a failed build")
	require.Equal(t, []string{"p TestGood: a part of it: no root", "p TestSkip: tshark is not installed", "p TestQuiet: x_test.go:2: not today"}, s.leftOut)
	for _, part := range []string{"FAIL  p TestBad\n    bad_test.go:7: 1 is not 2\n", "q.go:3:1: syntax error", "1 passed, 2 failed, 3 left out\n"} {
		require.Contains(t, out.String(), part)
	}
}

func TestSummaryOfAPanic(t *testing.T) {
	var out bytes.Buffer
	s := newSummary(&out)
	require.NoError(t, s.read(strings.NewReader(`
{"Action":"pass","Package":"p","Test":"TestOther"}
{"Action":"output","Package":"p","Test":"TestDies","Output":"panic: index out of range\n"}
{"Action":"fail","Package":"p"}
{"Action":"output","Package":"q","Output":"goleak: found unexpected goroutines\n"}
{"Action":"fail","Package":"q"}
`)))
	require.Positive(t, s.failed)
	require.Contains(t, out.String(), "panic: index out of range")
	require.Contains(t, out.String(), "goleak: found unexpected goroutines")
}

func TestRunIsStrict(t *testing.T) {
	var out bytes.Buffer
	// Only what a nested go test says matters here; this package has nothing left out.
	require.Zero(t, run([]string{"-plain", "-strict", "-run", "^TestSummary$", "."}, &out), out.String())
	require.Contains(t, out.String(), "1 passed, 0 failed, 0 left out")
	require.NotZero(t, run([]string{"-plain", "-run", "^TestSummary$", "./nowhere"}, &out))

	// The same words go to a file.
	words := filepath.Join(t.TempDir(), "words.json")
	require.Zero(t, run([]string{"-json", words, "-plain", "-run", "^TestSummary$", "."}, &out), out.String())
	f, err := os.Open(words)
	require.NoError(t, err)
	defer f.Close()
	again := newSummary(&out)
	require.NoError(t, again.read(f))
	require.Equal(t, 1, again.passed)
	require.Equal(t, 2, run([]string{"-json"}, &out))
	require.NotZero(t, run([]string{"-json", "/nowhere/words", "-plain", "."}, &out))

	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("go.mod", []byte("module lame\n"), 0o644))
	require.NoError(t, os.WriteFile("lame_test.go", []byte(`package lame

import "testing"

func TestLame(t *testing.T) { t.Skip("LEFT OUT: no legs") }
`), 0o644))
	require.Zero(t, run([]string{"-plain", "."}, &out))
	out.Reset()
	require.NotZero(t, run([]string{"-plain", "-strict", "."}, &out))
	require.Contains(t, out.String(), "lame TestLame: no legs")
}

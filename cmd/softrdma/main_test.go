package main

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/lab"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"softrdma": main})
}

// TestScripts runs the scripts in testdata/script. Beside the commands of
// testscript they have
//
//	exits N CMD...       runs CMD, which must end with exit code N
//	retry CMD...         runs CMD again and again until it succeeds
//	lab-alone            no other script uses the lab until this one ends, when it is taken away
//	json FILE SCHEMA     FILE, or stdout, must be one JSON document of that schema
//
// and the conditions [lab], that network namespaces can be made and there is no
// lab yet, and [race], that the race detector runs.
func TestScripts(t *testing.T) {
	why := labMissing()
	if why != "" {
		t.Log("LEFT OUT: scripts in the lab:", why)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":     exits,
			"retry":     retry,
			"lab-alone": labAlone,
			"json":      isJSON,
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "lab":
				return why == "", nil
			case "race":
				return readBuild().Race, nil
			}
			return false, errors.New("unknown condition")
		},
		Setup: func(e *testscript.Env) error {
			// What is set outside must not reach the scripts.
			for _, v := range []string{"BACKEND", "DEV", "IP", "GW", "MTU", "THREADS"} {
				e.Setenv("SOFTRDMA_"+v, "")
			}
			return nil
		},
	})
}

// labMissing tells why scripts cannot make a lab.
func labMissing() string {
	if runtime.GOOS != "linux" {
		return "it needs Linux"
	}
	l := lab.Default()
	h := lab.Host{Lab: l}
	switch err := h.Ready(); {
	case errors.Is(err, lab.ErrDown):
		return ""
	case err != nil:
		return err.Error()
	}
	return "there is one already"
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits N CMD...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	code := 0
	var e *exec.ExitError
	switch {
	case errors.As(err, &e):
		code = e.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if code != want {
		ts.Fatalf("exit code %d, want %d", code, want)
	}
}

// retry is for what a server that has just been started answers.
func retry(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: retry CMD...")
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := ts.Exec(args[0], args[1:]...)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%v", err)
		}
	}
}

var oneLab sync.Mutex

// labAlone keeps scripts that use the lab, of which there is one, from running at
// once.
func labAlone(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: lab-alone")
	}
	oneLab.Lock()
	ts.Defer(func() {
		defer oneLab.Unlock()
		h := lab.Host{Lab: lab.Default()}
		_, _ = h.Down(context.Background()) // after a failure in the middle; else there is none
	})
}

func isJSON(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: json FILE SCHEMA")
	}
	d := json.NewDecoder(strings.NewReader(ts.ReadFile(args[0])))
	var doc struct {
		Schema string `json:"schema"`
	}
	if err := d.Decode(&doc); err != nil {
		ts.Fatalf("not JSON: %v", err)
	}
	if doc.Schema != args[1] {
		ts.Fatalf("schema %q, want %q", doc.Schema, args[1])
	}
	if d.More() {
		ts.Fatalf("more than one document")
	}
}

func env(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

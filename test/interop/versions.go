package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// Versions say what was tested against what.
type Versions struct {
	Guest    map[string]string // package or "kernel": version
	Host     string            // kernel
	Machine  string            // qemu
	Revision string            // softrdma's
}

// versions asks the guest what it consists of.
func (h *host) versions() (map[string]string, error) {
	out, err := h.vm.Run("cat /versions", 10*time.Second)
	if err != nil {
		return nil, err
	}
	v := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		name, version, ok := strings.Cut(line, " ")
		if !ok {
			return nil, fmt.Errorf("the guest's /versions has the line %q", line)
		}
		v[name] = version
	}
	return v, nil
}

// hostVersions asks this machine and the program under test.
func hostVersions(softrdma string) (v Versions, err error) {
	if v.Host, err = output("uname", "-sr"); err != nil {
		return v, err
	}
	if v.Machine, err = output("qemu-system-x86_64", "--version"); err != nil {
		return v, err
	}
	v.Machine, _, _ = strings.Cut(v.Machine, "\n")
	text, err := output(softrdma, "version", "--json")
	if err != nil {
		return v, err
	}
	var b struct {
		Revision string
		Modified bool
	}
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		return v, fmt.Errorf("%s version: %w", softrdma, err)
	}
	if b.Revision == "" { // built with -buildvcs=false
		b.Revision, b.Modified, err = sourceRevision()
	}
	v.Revision = b.Revision[:min(12, len(b.Revision))]
	if b.Modified {
		v.Revision += ", with changes that are not committed"
	}
	return v, err
}

// sourceRevision asks git about the tree that we run in.
func sourceRevision() (revision string, modified bool, err error) {
	if revision, err = output("git", "rev-parse", "HEAD"); err != nil {
		return "", false, err
	}
	changes, err := output("git", "status", "--porcelain")
	return revision, changes != "", err
}

func output(name string, args ...string) (string, error) {
	b, err := exec.Command(name, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(b)), nil
}

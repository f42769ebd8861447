package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// facts are what the figures depend on, apart from the stack.
type facts struct {
	Time     time.Time `json:"time"`
	CPU      string    `json:"cpu"`
	CPUs     int       `json:"cpus"`
	Kernel   string    `json:"kernel"`
	Go       string    `json:"go"`
	Softrdma string    `json:"softrdma"`
	UCX      string    `json:"ucx,omitempty"`    // Debian's package
	Fabric   string    `json:"fabric,omitempty"` // likewise
}

func readFacts(s *stage) facts {
	f := facts{Time: time.Now().UTC().Truncate(time.Second), CPU: "unknown processor", CPUs: runtime.NumCPU(), Go: runtime.Version()}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		f.Kernel = strings.TrimSpace(string(b))
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				f.CPU = strings.TrimSpace(v)
				break
			}
		}
	}
	if out, err := s.command(s.binary, "version"); err == nil {
		f.Softrdma = strings.Join(strings.Fields(out), " ")
	}
	f.UCX, f.Fabric = s.packageVersion(packages[ucxProgram]), s.packageVersion(packages[fabricProgram])
	return f
}

// packageVersion is empty where there is no such package.
func (s *stage) packageVersion(name string) string {
	if !found("dpkg-query") {
		return ""
	}
	out, err := s.command("dpkg-query", "-W", "-f", "${Version}", name)
	if err != nil {
		return ""
	}
	return name + " " + out
}

func (f facts) String() string {
	s := fmt.Sprintf("%s, %d processors, Linux %s, %s, %s", f.CPU, f.CPUs, f.Kernel, f.Go, f.Softrdma)
	for _, p := range []string{f.UCX, f.Fabric} {
		if p != "" {
			s += ", " + p
		}
	}
	return s
}

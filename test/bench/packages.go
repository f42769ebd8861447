package main

import (
	"fmt"
	"os"
	"os/exec"
)

// packages of Debian that have the programs of the baselines.
var packages = map[string]string{ucxProgram: "ucx-utils", fabricProgram: "libfabric-bin"}

// leftOut tells why a program cannot be run.
type leftOut map[string]string

// findPrograms looks for what the cells need and installs on Debian what is missing.
func findPrograms(s *stage, cells []cell) leftOut {
	out := make(leftOut)
	updated := false
	for _, c := range cells {
		name := c.run.program()
		if _, known := out[name]; known || name == "" || found(name) {
			continue
		}
		if _, err := os.Stat("/etc/debian_version"); err != nil || !found("apt-get") {
			out[name] = fmt.Sprintf("%s is not installed, and there is no apt-get of Debian to install it with", name)
			continue
		}
		fmt.Fprintf(s.log, "%s is missing: apt-get install %s\n", name, packages[name])
		if !updated {
			// If it fails, the lists that are there may do.
			if _, err := apt(s, "update"); err != nil {
				fmt.Fprintln(s.log, err)
			}
			updated = true
		}
		if _, err := apt(s, "install", "-y", "--no-install-recommends", packages[name]); err != nil {
			out[name] = fmt.Sprintf("%s is not installed and cannot be: %v", name, err)
		} else if !found(name) {
			out[name] = fmt.Sprintf("%s is not in Debian's package %s here", name, packages[name])
		}
	}
	return out
}

func found(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

func apt(s *stage, args ...string) (string, error) {
	return s.command(append([]string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"}, args...)...)
}

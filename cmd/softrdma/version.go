package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build is what this program is.
type build struct {
	Schema   string `json:"schema"`
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a tree with changes that were not committed
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	Race     bool   `json:"race,omitempty"`
}

func readBuild() build {
	b := build{
		Schema: "softrdma.version/v1", Version: "unknown",
		Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		case "-race":
			b.Race = s.Value == "true"
		}
	}
	return b
}

func (b build) String() string {
	s := fmt.Sprintf("softrdma %s", b.Version)
	if b.Revision != "" {
		s += " (" + b.Revision[:min(12, len(b.Revision))]
		if b.Modified {
			s += ", modified"
		}
		s += ")"
	}
	s += fmt.Sprintf(" %s %s/%s", b.Go, b.OS, b.Arch)
	if b.Race {
		s += " race"
	}
	return s
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Print what this program is",
		Args:  wantArgs(),
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return a.writeJSON(readBuild())
			}
			_, err := fmt.Fprintln(a.stdout, readBuild())
			return err
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func jsonFlag(c *cobra.Command, v *bool) {
	c.Flags().BoolVar(v, "json", false, "print one JSON document")
}

// writeJSON prints v as the one document of a command.
func (a *app) writeJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

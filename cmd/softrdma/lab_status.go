package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/lab"
)

func (a *app) labStatusCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Tell what is up, what the link does to frames and to how many it did",
		Args:  wantArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			h := lab.Host{Lab: lab.Default()}
			s, err := h.Status(c.Context())
			if err != nil {
				return labError(err)
			}
			if asJSON {
				err = writeLabJSON(a.stdout, s)
			} else {
				err = writeLab(a.stdout, s)
			}
			if err == nil && len(s.Problems) > 0 {
				return failed(errors.New(strings.Join(s.Problems, "\n  ")), "`softrdma lab down`, then `softrdma lab up`")
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return c
}

func writeLabJSON(w io.Writer, s *lab.Status) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Schema string `json:"schema"`
		*lab.Status
	}{"softrdma.lab/v1", s})
}

func writeLab(w io.Writer, s *lab.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "side\tnamespace\tinterface\tMTU\tour own stack\tthe kernel")
	for _, side := range s.Sides {
		mtu := "gone"
		if side.MTU > 0 {
			mtu = fmt.Sprint(side.MTU)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", side.Name, side.Namespace, side.Interface, mtu,
			prefixes(side.Own), strings.Join(side.Kernel, " "))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, line := range s.Plan.Describe() {
		fmt.Fprintln(w, line)
	}
	if s.Wire == nil {
		return nil
	}
	if s.Wire.PID != 0 {
		fmt.Fprintf(w, "in between: process %d in namespace %s\n", s.Wire.PID, s.Wire.Namespace)
	} else {
		fmt.Fprintf(w, "in between: bridge %s in namespace %s, with a BPF program on its ports\n", s.Wire.Bridge, s.Wire.Namespace)
	}
	if s.Wire.FromA == nil {
		return nil
	}
	// All that a bridge does is to lose frames.
	heads := []string{"frames", "came in", "lost", "doubled", "reordered", "delayed", "no room"}
	row := func(name string, d *lab.Direction) {
		fmt.Fprint(t, name)
		for _, n := range []uint64{d.Frames, d.Lost, d.Duplicated, d.Reordered, d.Delayed, d.Dropped}[:len(heads)-1] {
			fmt.Fprintf(t, "\t%d", n)
		}
		fmt.Fprintln(t)
	}
	if s.Wire.PID == 0 {
		heads = heads[:3]
	}
	fmt.Fprintln(t, strings.Join(heads, "\t"))
	row("a to b", s.Wire.FromA)
	row("b to a", s.Wire.FromB)
	return t.Flush()
}

func prefixes(list []netip.Prefix) string {
	words := make([]string, len(list))
	for i, p := range list {
		words[i] = p.String()
	}
	return strings.Join(words, " ")
}

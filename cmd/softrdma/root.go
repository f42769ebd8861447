package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// app is one run of the program: what it reads, writes and was told. Results
// go to stdout, everything else to stderr.
type app struct {
	env    func(string) string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	device deviceFlags
	cpus   *processors // nil: they are not this command's
}

// run executes the command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	return a.report(root.ExecuteContext(ctx))
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "softrdma",
		Short: "RDMA verbs for plain Ethernet hosts in pure Go",
		Long: `RDMA verbs for plain Ethernet hosts in pure Go: no RDMA NIC, no kernel module.

  softrdma demo                                  the whole stack in memory; needs nothing
  softrdma lab up                                two hosts on one (root)
  softrdma lab exec a -- softrdma serve
  softrdma lab exec b -- softrdma ping 10.77.0.1

Results go to stdout, everything else to stderr.
Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 a threshold was missed.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noSubcommand,
		RunE: func(*cobra.Command, []string) error {
			return usagef("`softrdma demo` needs nothing, `softrdma --help` lists all commands", "no command given")
		},
	}
	root.Version = readBuild().String()
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetIn(a.stdin)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef(fmt.Sprintf("`%s --help` lists the flags", c.CommandPath()), "%w", err)
	})
	a.device.register(root.PersistentFlags())
	root.AddCommand(
		a.demoCommand(),
		a.labCommand(),
		a.devinfoCommand(),
		a.serveCommand(),
		a.pingCommand(),
		a.perfCommand(),
		a.versionCommand(),
	)
	return root
}

// group makes a command that only holds others.
func group(use, short, long string, sub ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use:   use,
		Short: short,
		Long:  long,
		Args:  noSubcommand,
		RunE: func(c *cobra.Command, _ []string) error {
			return usagef(helpHint(c), "%s needs a subcommand", c.CommandPath())
		},
	}
	c.AddCommand(sub...)
	return c
}

// noSubcommand refuses the arguments of a command that only holds others.
func noSubcommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	next := helpHint(c)
	c.SuggestionsMinimumDistance = 2
	if s := c.SuggestionsFor(args[0]); len(s) > 0 {
		next = fmt.Sprintf("did you mean `%s %s`?", c.CommandPath(), s[0])
	}
	return usagef(next, "%s has no subcommand %q", c.CommandPath(), args[0])
}

// wantArgs refuses any other number of arguments than the named ones.
func wantArgs(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usagef("usage: "+c.UseLine(), "%s needs %s", c.CommandPath(), names[len(args)])
		case len(args) > len(names):
			return usagef("usage: "+c.UseLine(), "%s does not take %q", c.CommandPath(), args[len(names)])
		}
		return nil
	}
}

func helpHint(c *cobra.Command) string { return fmt.Sprintf("`%s --help` lists them", c.CommandPath()) }

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/lab"
)

func (a *app) labCommand() *cobra.Command {
	return group("lab", "Two hosts on one, to try the stack on (root)",
		`Builds two network namespaces, softrdma-a and softrdma-b, joined by the veth
pair sr-a and sr-b, and runs commands in them.

                        a                      b
  our own stack         10.77.0.1  fd77::1     10.77.0.2  fd77::2
  the kernel            10.78.0.1  fd78::1     10.78.0.2  fd78::2

The link between them can be made a bad one:

  softrdma lab up --loss 1%                    loses frames
  softrdma lab up --delay 1ms --jitter 0.5ms   a round trip takes 2 to 3 ms longer
  softrdma lab up --reorder 1% --duplicate 0.1%

Then a third namespace, softrdma-w, is between the two and impairs what passes
in either direction, whatever backend sent it.`,
		a.labUpCommand(), a.labExecCommand(), a.labStatusCommand(), a.labDownCommand(), a.labWireCommand())
}

func (a *app) labDownCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Take the lab away",
		Args:  wantArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			h := lab.Host{Lab: lab.Default(), Log: a.stdout}
			left, err := h.Down(c.Context())
			if errors.Is(err, lab.ErrDown) {
				fmt.Fprintln(a.stderr, "there is no lab: nothing to do")
				return nil
			}
			if len(left) > 0 {
				fmt.Fprintf(a.stderr, "these processes were still inside and are cut off now: %v\n", left)
			}
			return labError(err)
		},
	}
}

func (a *app) labExecCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "exec a|b -- CMD [ARG...]",
		Short: "Run a command on one of the two hosts",
		Long: `Runs a command on one of the two hosts of the lab. SOFTRDMA_BACKEND, SOFTRDMA_DEV
and SOFTRDMA_IP are set for it, so that softrdma opens the host's device. The
command takes the place of this process: its signals, input, output and exit
code are its own. The word softrdma as the command means this program.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("usage: "+c.UseLine(), "%s needs a side, a or b", c.CommandPath())
			}
			side, err := lab.Default().Side(args[0])
			if err != nil {
				return usagef("usage: "+c.UseLine(), "%w", err)
			}
			argv := args[1:]
			if len(argv) > 0 && argv[0] == "--" {
				argv = argv[1:]
			}
			if len(argv) == 0 {
				return usagef("usage: "+c.UseLine(), "%s needs a command to run", c.CommandPath())
			}
			return a.labExec(side, argv)
		},
	}
	c.Flags().SetInterspersed(false)
	return c
}

func (a *app) labExec(side lab.Side, argv []string) error {
	h := lab.Host{Lab: lab.Default()}
	if err := h.Ready(); err != nil {
		return labError(err)
	}
	prog, err := exec.LookPath(argv[0])
	if argv[0] == "softrdma" {
		prog, err = os.Executable()
	}
	if err != nil {
		return failed(err, "give its path")
	}
	cmd := side.Exec(append([]string{prog}, argv[1:]...))
	ip, err := exec.LookPath(cmd[0])
	if err != nil {
		return labError(lab.ErrNoIP)
	}
	fmt.Fprintln(a.stderr, cmd)
	// Later entries win where the same name comes twice.
	env := (&exec.Cmd{Env: append(os.Environ(), side.Environ()...)}).Environ()
	return failed(syscall.Exec(ip, cmd, env), "run the command by hand: "+cmd.String())
}

// labWireCommand is what `lab up` starts between the two hosts.
func (a *app) labWireCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "wire FILE",
		Short:  "Carry frames between two interfaces and impair them, as the file says that `lab up` wrote",
		Hidden: true,
		Args:   wantArgs("FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			return failed(lab.RunWire(c.Context(), args[0]), "`softrdma lab down` and `softrdma lab up` build it anew")
		},
	}
}

// labError adds the next step to what the lab can find.
func labError(err error) error {
	return labErrorOr(err, "`softrdma lab down` takes away what may be left")
}

// labErrorOr does so too; next is for what nobody foresaw.
func labErrorOr(err error, next string) error {
	switch {
	case errors.Is(err, lab.ErrRights):
		return failed(err, "run it with sudo; `softrdma demo` needs no rights")
	case errors.Is(err, lab.ErrUp):
		return failed(err, "use it with `softrdma lab exec`, or take it away with `softrdma lab down`")
	case errors.Is(err, lab.ErrHalfUp):
		return failed(err, "`softrdma lab down` takes away what is left, then `softrdma lab up`")
	case errors.Is(err, lab.ErrDown):
		return failed(err, "`softrdma lab up` builds it")
	case errors.Is(err, lab.ErrNoIP):
		return failed(err, "install iproute2")
	}
	return failed(err, next)
}

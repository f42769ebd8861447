// Command interop runs softrdma against Linux siw, the kernel's own software iWARP,
// in a virtual machine that it builds from Debian's packages.
//
//	go run ./test/interop            a part of the matrix in which any three values meet
//	go run ./test/interop -meet 0    the whole matrix
//	go run ./test/interop image      build the guest and stop
//	go run ./test/interop record DIR record what two guests say to each other
//	go run ./test/interop shell KIND boot a guest and run lines of input in it
//	go run ./test/interop peer ...   play ucmatose or rdma_client over verbs
//
// It needs root (network namespaces, tap devices) and Debian's package mirror. It
// touches no network but those in namespaces of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
)

func main() {
	// Guests and namespaces must not outlive the program, however it ends.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	verb := "matrix"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		verb, args = args[0], args[1:]
	}
	if verb == "peer" { // the matrix starts it
		return playPeer(ctx, args, os.Stderr)
	}
	if os.Geteuid() != 0 {
		return errors.New("root is needed for network namespaces and tap devices")
	}
	if err := tools(out); err != nil {
		return err
	}
	img, err := buildImage(out)
	if err != nil {
		return err
	}
	switch verb {
	case "image":
		fmt.Fprintln(out, img.Kernel, img.Initrd)
		return nil
	case "record":
		if len(args) != 1 {
			return errors.New("usage: interop record DIR")
		}
		return record(ctx, img, args[0], out)
	case "shell":
		if len(args) != 1 {
			return errors.New("usage: interop shell siw|siw-strict")
		}
		return shell(ctx, img, args[0], os.Stdin, out)
	case "matrix":
		o, err := options(args)
		if err != nil {
			return err
		}
		return matrix(ctx, img, o, out)
	}
	return fmt.Errorf("%q is none of image, record, shell, peer, matrix", verb)
}

// options reads the flags of the matrix.
func options(args []string) (Options, error) {
	var o Options
	var only string
	f := flag.NewFlagSet("interop", flag.ContinueOnError)
	f.StringVar(&o.Binary, "softrdma", "", "the softrdma program to test; built from this tree if empty")
	f.IntVar(&o.Meet, "meet", 3, "run as few as let any so many values of different axes meet; 0 for the whole matrix")
	f.StringVar(&only, "only", "", "run those whose name matches this expression; names are like siw-rping-1x20x4096-packet-client-ipv4-mtu1500-crc")
	f.StringVar(&o.Keep, "keep", "", "folder to keep captures and logs of all runs in")
	f.IntVar(&o.Pings, "pings", 20, "pings of rping a run")
	f.StringVar(&o.Accel, "accel", "tcg", "accelerator of qemu; kvm where nested virtualization works")
	f.StringVar(&o.Report, "report", "", "write a report to this file (Markdown)")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 || o.Meet < 0 || o.Meet > 7 || o.Pings < 1 {
		return o, fmt.Errorf("arguments %q, -meet %d, -pings %d: see -help", f.Args(), o.Meet, o.Pings)
	}
	if only != "" {
		var err error
		if o.Only, err = regexp.Compile(only); err != nil {
			return o, fmt.Errorf("-only: %w", err)
		}
	}
	return o, nil
}

// tools installs the programs that are missing on the host. The image's own needs are
// the recipe's matter.
func tools(log io.Writer) error {
	missing := map[string]string{}
	for program, pkg := range map[string]string{"ip": "iproute2", "tcpdump": "tcpdump", "tshark": "tshark", "qemu-system-x86_64": "qemu-system-x86"} {
		if _, err := exec.LookPath(program); err != nil {
			missing[program] = pkg
		}
	}
	if len(missing) == 0 {
		return nil
	}
	args := []string{"-qq", "install", "-y", "--no-install-recommends"}
	for _, pkg := range missing {
		args = append(args, pkg)
	}
	fmt.Fprintf(log, "installing %s\n", strings.Join(args[4:], " "))
	if err := os.Setenv("DEBIAN_FRONTEND", "noninteractive"); err != nil {
		return err
	}
	if err := sh("apt-get", "-qq", "update"); err != nil {
		return err
	}
	return sh("apt-get", args...)
}

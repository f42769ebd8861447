package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/vishvananda/netlink"
)

// runInside runs this program again as root of a user namespace with a network
// namespace of its own. The error says that the host does not allow it.
func runInside(args []string, o options, out io.Writer) (int, error) {
	own := []string{insideFlag}
	if o.strict {
		own = append(own, "-strict")
	}
	if o.json != "" {
		own = append(own, "-json", o.json)
	}
	// No network in there: what go still has to download comes first.
	fetch := exec.Command("go", "list", "-test", "-deps", "./...")
	fetch.Stderr = os.Stderr
	if err := fetch.Run(); err != nil {
		return 1, nil // go list has said why
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, append(own, args...)...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	err = cmd.Start()
	if err != nil {
		return 0, err
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); errors.As(err, &exit) {
		return exit.ExitCode(), nil
	} else if err != nil {
		return 1, nil
	}
	return 0, nil
}

// prepareInside brings up the loopback interface of the new network namespace.
func prepareInside() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

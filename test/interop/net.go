package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Namespace is a network namespace of our own. Nothing in it reaches the host's networks.
type Namespace struct{ Name string }

func newNamespace(purpose string) (*Namespace, error) {
	ns := &Namespace{Name: fmt.Sprintf("sr-interop-%s-%d", purpose, os.Getpid())}
	if err := sh("ip", "netns", "add", ns.Name); err != nil {
		return nil, fmt.Errorf("a network namespace is needed (root): %w", err)
	}
	if err := ns.IP("link", "set", "lo", "up"); err != nil {
		ns.Delete()
		return nil, err
	}
	return ns, nil
}

// IP runs ip(8) on the namespace.
func (n *Namespace) IP(args ...string) error {
	return sh("ip", append([]string{"-n", n.Name}, args...)...)
}

// Command prepares a program that runs inside the namespace.
func (n *Namespace) Command(name string, args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", n.Name, name}, args...)...)
}

// AddTap makes a tap device that carries virtio headers, so that super-frames and
// unfinished checksums cross it as they would cross a real virtio card.
func (n *Namespace) AddTap(name string) error {
	if err := n.IP("tuntap", "add", name, "mode", "tap", "vnet_hdr"); err != nil {
		return err
	}
	return n.IP("link", "set", name, "up")
}

// Delete removes the namespace and every device in it.
func (n *Namespace) Delete() { _ = sh("ip", "netns", "del", n.Name) }

func sh(name string, args ...string) error {
	var out bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(out.String()))
	}
	return nil
}

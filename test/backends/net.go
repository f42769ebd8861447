package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// side is one of the two hosts of a cell.
type side struct {
	namespace string
	iface     string
	addrs     []netip.Prefix // the kernel's, then our own stack's, which the kernel must not have
}

// link is two hosts joined by a veth pair.
type link [2]*side

// newLink builds the network of a cell.
func newLink(c cell) (*link, error) {
	l := &link{}
	for i := range l {
		n := i + 1
		l[i] = &side{namespace: fmt.Sprintf("backends-%d-%d", os.Getpid(), n), iface: fmt.Sprintf("bk-%d", n)}
		for _, format := range map[bool][]string{false: {"10.78.0.%d/24", "10.77.0.%d/24"}, true: {"fd78::%d/64", "fd77::%d/64"}}[c.v6] {
			l[i].addrs = append(l[i].addrs, netip.MustParsePrefix(fmt.Sprintf(format, n)))
		}
	}
	if err := l.build(c); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *link) build(c cell) error {
	for _, s := range l {
		if err := ip("netns", "add", s.namespace); err != nil {
			return err
		}
	}
	if err := ip("link", "add", l[0].iface, "netns", l[0].namespace, "type", "veth",
		"peer", "name", l[1].iface, "netns", l[1].namespace); err != nil {
		return err
	}
	for _, s := range l {
		addr := []string{"addr", "add", s.addrs[0].String(), "dev", s.iface}
		if c.v6 {
			addr = append(addr, "nodad")
		}
		for _, args := range [][]string{
			{"link", "set", s.iface, "mtu", strconv.Itoa(c.mtu)},
			{"link", "set", s.iface, "addrgenmode", "none"},
			addr,
			{"link", "set", "lo", "up"},
			{"link", "set", s.iface, "up"},
		} {
			if err := ip(append([]string{"-n", s.namespace}, args...)...); err != nil {
				return err
			}
		}
	}
	return nil
}

// close removes the namespaces, and with them all that is inside.
func (l *link) close() (err error) {
	for _, s := range l {
		if _, missing := os.Stat("/run/netns/" + s.namespace); missing == nil {
			err = errors.Join(err, ip("netns", "del", s.namespace))
		}
	}
	return err
}

func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// command prepares a program that runs on the host.
func (s *side) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", s.namespace, name}, args...)...)
	// What is set outside must not say which device to open.
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "SOFTRDMA_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	return cmd
}

// xdpMode asks the kernel which kind of XDP program is on the interface: native,
// generic, or none.
func (s *side) xdpMode() (string, error) {
	out, err := exec.Command("ip", "-j", "-n", s.namespace, "link", "show", "dev", s.iface).Output()
	if err != nil {
		return "", fmt.Errorf("ip link show: %w", err)
	}
	return parseXDPMode(out)
}

// parseXDPMode reads what ip -j link says.
func parseXDPMode(text []byte) (string, error) {
	var links []struct {
		XDP *struct {
			Mode int `json:"mode"`
		} `json:"xdp"`
	}
	if err := json.Unmarshal(text, &links); err != nil || len(links) != 1 {
		return "", fmt.Errorf("ip -j link says %q: %w", text, err)
	}
	if links[0].XDP == nil {
		return "none", nil
	}
	// XDP_ATTACHED_* of linux/if_link.h
	switch links[0].XDP.Mode {
	case 1:
		return "native", nil
	case 2:
		return "generic", nil
	}
	return fmt.Sprintf("mode %d", links[0].XDP.Mode), nil
}

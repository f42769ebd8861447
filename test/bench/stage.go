package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
)

// host is one end of the wire, as `softrdma lab` builds it.
type host struct {
	namespace string
	iface     string
	own       string // address of our own stack
	kernel    string // address of the kernel's
}

var (
	sideA = host{"softrdma-a", "sr-a", "10.77.0.1", "10.78.0.1"}
	sideB = host{"softrdma-b", "sr-b", "10.77.0.2", "10.78.0.2"}
)

// stage is the network and the programs that measurements run with.
type stage struct {
	binary  string // softrdma
	self    string // this program
	log     io.Writer
	verbose bool
	up      bool
	buffers map[string]string // the kernel's own sizes of TCP's socket buffers, by the name of the sysctl
	bigger  bool              // they are changed
}

func (s *stage) say(format string, args ...any) {
	if s.verbose {
		fmt.Fprintf(s.log, "+ "+format+"\n", args...)
	}
}

// command runs a program on this host to its end, whatever signals come: half a network
// or half a package would stay behind.
func (s *stage) command(argv ...string) (string, error) {
	s.say("%s", strings.Join(argv, " "))
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the terminal's Ctrl-C is for us
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, bytes.ReplaceAll(bytes.TrimSpace(out), []byte("\n"), []byte("; ")))
	}
	return string(out), nil
}

// lossSeed makes the bridge lose the same frames in every run of this program, as long
// as the same frames come.
const lossSeed = "1"

// raise builds the network. What is there already belongs to somebody else.
func (s *stage) raise(w wire) error {
	argv := []string{s.binary, "lab", "up"}
	if w == lossy {
		argv = append(argv, "--loss", "1%", "--seed", lossSeed)
	}
	if _, err := s.command(argv...); err != nil {
		return err
	}
	s.up, s.bigger, s.buffers = true, false, make(map[string]string)
	for _, name := range bufferNames {
		out, err := s.command("ip", "netns", "exec", sideA.namespace, "cat", bufferDir+name)
		if err != nil {
			return err
		}
		s.buffers[name] = strings.TrimSpace(out)
	}
	return nil
}

// lower takes the network away, if this stage has built it.
func (s *stage) lower() error {
	if !s.up {
		return nil
	}
	s.up = false
	_, err := s.command(s.binary, "lab", "down")
	return err
}

// losses tells what the bad wire has done so far.
func (s *stage) losses() ([]direction, error) {
	out, err := s.command(s.binary, "lab", "status")
	if err != nil {
		return nil, err
	}
	return parseLosses(out)
}

// direction counts frames that came to the wire from one side.
type direction struct {
	Name   string `json:"direction"`
	Frames uint64 `json:"frames"`
	Lost   uint64 `json:"lost"`
}

// parseLosses reads the end of what `lab status` prints.
func parseLosses(status string) (list []direction, err error) {
	for line := range strings.Lines(status) {
		var from, to string
		var d direction
		if n, _ := fmt.Sscanf(line, "%s to %s %d %d", &from, &to, &d.Frames, &d.Lost); n == 4 {
			d.Name = from + " to " + to
			list = append(list, d)
		}
	}
	if len(list) != 2 {
		return nil, fmt.Errorf("lab status counts in %d directions, not in two: %s", len(list), status)
	}
	return list, nil
}

// Each network namespace has its own.
const bufferDir = "/proc/sys/net/ipv4/"

var bufferNames = []string{"tcp_rmem", "tcp_wmem"}

// setBuffers sets the size of the buffers that TCP sockets begin with in both
// namespaces, in octets; the kernel's own way if 0.
func (s *stage) setBuffers(size int) error {
	if size == 0 && !s.bigger {
		return nil
	}
	s.bigger = true // in part at least, if what follows fails
	for _, h := range []host{sideA, sideB} {
		for _, name := range bufferNames {
			value := s.buffers[name]
			if size != 0 {
				value = fmt.Sprintf("4096 %d %d", size, size)
			}
			if value == "" {
				return errors.New("the sizes of TCP's buffers are not known")
			}
			if _, err := s.command("ip", "netns", "exec", h.namespace, "sh", "-c", "echo "+value+" >"+bufferDir+name); err != nil {
				return err
			}
		}
	}
	s.bigger = size != 0
	return nil
}

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Sniffer is a running tcpdump.
type Sniffer struct {
	cmd    *exec.Cmd
	file   string
	stderr chan string // all it said, once it has ended
}

// sniff captures the TCP traffic of one interface until Stop. It returns when the
// capture is on.
func sniff(ns *Namespace, dev, file string) (*Sniffer, error) {
	// Immediate mode and -U: what is on the wire is in the file a moment later. The
	// snap length holds a super-frame, the buffer a thousand of them.
	s := &Sniffer{file: file, stderr: make(chan string, 1),
		cmd: ns.Command("tcpdump", "-n", "-U", "--immediate-mode", "-Z", "root", "-s", "70000", "-B", "65536", "-i", dev, "-w", file, "tcp")}
	pipe, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("tcpdump: %w", err)
	}
	r := bufio.NewReader(pipe)
	line, err := r.ReadString('\n')
	for err == nil && !strings.Contains(line, "listening on") {
		line, err = r.ReadString('\n')
	}
	if err != nil {
		_ = s.cmd.Wait()
		return nil, fmt.Errorf("tcpdump on %s ended: %s", dev, line)
	}
	go func() {
		b, _ := io.ReadAll(r)
		s.stderr <- string(b)
	}()
	return s, nil
}

// Stop waits until the file has stopped growing, then ends the capture. Packets that
// tcpdump had to drop are an error: the capture would prove nothing.
func (s *Sniffer) Stop() error {
	for last, quiet := int64(-1), 0; quiet < 4; time.Sleep(50 * time.Millisecond) {
		st, err := os.Stat(s.file)
		if err != nil {
			break
		}
		if st.Size() == last {
			quiet++
		} else {
			last, quiet = st.Size(), 0
		}
	}
	_ = s.cmd.Process.Signal(syscall.SIGINT)
	said := <-s.stderr
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("tcpdump: %w: %s", err, said)
	}
	for _, line := range strings.Split(said, "\n") {
		if strings.HasSuffix(line, "dropped by kernel") && !strings.HasPrefix(line, "0 ") {
			return fmt.Errorf("tcpdump: %s", line)
		}
	}
	return nil
}

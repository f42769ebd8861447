package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"
)

// pair is a measurement by two programs: the server in namespace a, the client in b.
type pair struct {
	env       [2][]string // of server and client
	server    []string
	ready     string // what the server says when a client may come
	readyPort int    // or the kernel's TCP port on which it listens by then
	client    []string
	stays     bool          // the server does not end by itself
	limit     time.Duration // for the client
}

// outcome is what became of a pair.
type outcome struct {
	out      string        // of the client
	client   time.Duration // processor time
	server   time.Duration
	hostBusy time.Duration // of all processors, from start to end
}

func (s *stage) pair(ctx context.Context, p pair) (o outcome, err error) {
	before, err := readStat()
	if err != nil {
		return o, err
	}
	server, err := s.start(ctx, sideA.namespace, p.env[0], p.server...)
	if err != nil {
		return o, err
	}
	client, err := s.clientOf(ctx, server, p)
	if err == nil && !p.stays {
		err = server.wait(ctx, stopTime)
	}
	if stopErr := server.stop(); err == nil {
		err = stopErr
	}
	if err != nil {
		return o, err
	}
	after, err := readStat()
	return outcome{client.out.String(), client.cpu(), server.cpu(), after.busy() - before.busy()}, err
}

func (s *stage) clientOf(ctx context.Context, server *process, p pair) (*process, error) {
	what, ready := "it says "+strconv.Quote(p.ready), server.says(p.ready)
	if p.readyPort != 0 {
		what = "it listens on port " + strconv.Itoa(p.readyPort)
		ready = func() bool { return listens(server.cmd.Process.Pid, p.readyPort) }
	}
	if err := server.until(ctx, what, ready); err != nil {
		return nil, err
	}
	argv := p.client
	for i, a := range argv { // a word of the server's, such as its address
		if a == serverWord {
			argv[i] = lastWord(server.out.String())
		}
	}
	client, err := s.start(ctx, sideB.namespace, p.env[1], argv...)
	if err != nil {
		return nil, err
	}
	return client, client.wait(ctx, p.limit)
}

// serverWord stands in a client's arguments for the last word of the server's output.
const serverWord = "@SERVER"

func lastWord(s string) string {
	f := strings.Fields(s)
	if len(f) == 0 {
		return ""
	}
	return f[len(f)-1]
}

// listens tells whether somebody in the network namespace of a process listens on a port
// of the kernel's TCP.
func listens(pid, port int) bool {
	for _, file := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/net/" + file)
		if err == nil && listensIn(string(b), port) {
			return true
		}
	}
	return false
}

// listensIn looks for the port in a table of /proc/net/tcp.
func listensIn(table string, port int) bool {
	const stateListen = "0A"
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 4 || f[3] != stateListen {
			continue
		}
		_, hex, _ := strings.Cut(f[1], ":")
		if n, err := strconv.ParseUint(hex, 16, 16); err == nil && int(n) == port {
			return true
		}
	}
	return false
}

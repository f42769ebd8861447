package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Options say what the matrix covers.
type Options struct {
	Binary   string // softrdma to test
	Kinds    string // comma-separated
	Backends string // comma-separated
	Keep     string // folder for the captures; thrown away if empty
	Count    int    // pings a run
	Accel    string // of qemu
}

// sizes in octets: the smallest rping takes, one segment, three, many.
var sizes = []int{26, 100, 4096, 65535}

// Row is one run of the matrix.
type Row struct {
	Kind    string // of the guest
	Backend string // of softrdma
	Role    string // softrdma's: client or server
	Size    int
	CRC     bool // softrdma asks for the CRC
}

// WantCRC tells whether the CRC must be in use (RFC 5044: when either side asks for it).
// The strict guest asks for it as initiator; as responder every siw repeats what it was
// asked for.
func (r Row) WantCRC() bool { return r.CRC || r.Role == "server" && r.Kind == "siw-strict" }

func (r Row) name() string {
	crc := "crc"
	if !r.CRC {
		crc = "nocrc"
	}
	return fmt.Sprintf("%s-%s-%s-%d-%s", r.Kind, r.Backend, r.Role, r.Size, crc)
}

// rows lists the runs against one kind of guest.
func rows(kind string, backends []string) []Row {
	var out []Row
	for _, backend := range backends {
		for _, role := range []string{"client", "server"} {
			for _, size := range sizes {
				for _, crc := range []bool{true, false} {
					out = append(out, Row{kind, backend, role, size, crc})
				}
			}
		}
	}
	return out
}

// The addresses on the one link between guest and host. Our own stack and the kernel
// have one each; what carried a run can so be told from the wire.
const (
	guestAddr  = "10.77.0.2"
	packetAddr = "10.77.0.1"
	kernelAddr = "10.77.0.3"
	tapName    = "tap0"
	port       = 7174
)

// ourAddr is the address that a backend uses.
func ourAddr(backend string) string {
	if backend == "kernel" {
		return kernelAddr
	}
	return packetAddr
}

// matrix runs all rows and prints one line each. Any run that is not as it should be
// makes it fail at the end.
func matrix(ctx context.Context, img Image, o Options, out io.Writer) error {
	dir := o.Keep
	if dir == "" {
		tmp, err := os.MkdirTemp("", "sr-interop-runs-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		dir = tmp
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if o.Binary == "" {
		o.Binary = filepath.Join(dir, "softrdma")
		cmd := exec.Command("go", "build", "-o", o.Binary, "github.com/softrdma/softrdma/cmd/softrdma")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build softrdma: %w", err)
		}
	}
	bin, err := filepath.Abs(o.Binary)
	if err != nil {
		return err
	}
	passed, failed := 0, 0
	fmt.Fprintln(out, header)
	for _, kind := range strings.Split(o.Kinds, ",") {
		p, f, err := matrixKind(ctx, img, kind, bin, dir, o, out)
		passed, failed = passed+p, failed+f
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%d runs: %d passed, %d failed\n", passed+failed, passed, failed)
	if failed > 0 {
		return fmt.Errorf("%d runs failed", failed)
	}
	if passed == 0 {
		return errors.New("nothing was run")
	}
	return nil
}

// matrixKind runs the rows of one kind of guest. A guest serves all runs up to one that
// fails: what it is worth after that nobody knows, so the next run gets a fresh one.
func matrixKind(ctx context.Context, img Image, kind, bin, dir string, o Options, out io.Writer) (passed, failed int, err error) {
	var h *host
	defer func() {
		if h != nil {
			h.Close()
		}
	}()
	for _, row := range rows(kind, strings.Split(o.Backends, ",")) {
		if h == nil {
			start := time.Now()
			if h, err = newHost(ctx, img, kind, o.Accel); err != nil {
				return passed, failed, err
			}
			fmt.Fprintf(out, "# %s guest up after %.1f s\n", kind, time.Since(start).Seconds())
		}
		r := runner{vm: h.vm, ns: h.ns, bin: bin, dir: dir, count: o.Count}
		res := r.run(row)
		if ctx.Err() != nil {
			return passed, failed, context.Cause(ctx)
		}
		printResult(out, row, res)
		if res.Err == nil {
			passed++
			continue
		}
		failed++
		h.Close()
		h = nil
	}
	return passed, failed, nil
}

var header = columns("guest", "backend", "seen", "role", "size", "asked", "C req/rep", "FPDUs", "tshark", "counters", "seconds", "result")

func printResult(out io.Writer, row Row, res Result) {
	crc := "crc"
	if !row.CRC {
		crc = "no crc"
	}
	verdict := "ok"
	if res.Err != nil {
		verdict = "FAILED"
	}
	fmt.Fprintln(out, columns(row.Kind, row.Backend, res.Backend, row.Role, fmt.Sprint(row.Size), crc, res.CRCBits,
		fmt.Sprint(res.FPDUs), fmt.Sprint(res.Tshark), fmt.Sprint(res.Counters), fmt.Sprintf("%.1f", res.Time.Seconds()), verdict))
	if res.Err != nil {
		for _, line := range strings.Split(res.Err.Error(), "\n") {
			fmt.Fprintln(out, "    "+line)
		}
	}
}

// columns lays out one line; every line alike, so that they can be printed one by one.
func columns(cells ...string) string {
	widths := []int{11, 8, 8, 7, 6, 7, 10, 6, 7, 9, 8, 0}
	var b strings.Builder
	for i, c := range cells {
		fmt.Fprintf(&b, "%-*s ", widths[i], c)
	}
	return strings.TrimRight(b.String(), " ")
}

package wiretest

import (
	"bufio"
	"bytes"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Report is what tshark's iWARP dissectors found in a capture file.
type Report struct {
	Requests, Replies int
	FPDUs             int
	ULPDU             []int // ULPDU_Length of every FPDU, in the order of completion
	ByOpcode          [16]int
	GoodCRC, BadCRC   int // FPDUs whose CRC is in use
	Malformed         int // "Malformed Packet" marks, of any protocol
}

// Tshark runs tshark over a capture file. Without tshark on this host the test is
// skipped with "LEFT OUT:".
func Tshark(t testing.TB, file string) Report {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("LEFT OUT: tshark is not installed (Debian: apt-get install tshark)")
	}
	r, err := RunTshark(file)
	require.NoError(t, err)
	return r
}

// RunTshark is Tshark for programs that are no test.
func RunTshark(file string) (Report, error) {
	// The heuristic of rpcordma takes payloads for its own and hides the rest. MPA is
	// found by heuristics, too, and a client's port may happen to be another protocol's.
	// Frames may be out of order or repeated; the dissectors need the stream in order.
	cmd := exec.Command("tshark", "-n", "-r", file, "--disable-protocol", "rpcordma",
		"-o", "tcp.try_heuristic_first:TRUE", "-o", "tcp.reassemble_out_of_order:TRUE", "-o", "tcp.desegment_tcp_streams:TRUE",
		"-V", "-O", "iwarp_mpa,iwarp_ddp_rdmap")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return Report{}, fmt.Errorf("tshark %s: %w: %s", file, err, strings.TrimSpace(stderr.String()))
	}
	return parseTshark(out)
}

var (
	lineLength = regexp.MustCompile(`^\s+ULPDU length: (\d+) bytes`)
	lineOpcode = regexp.MustCompile(`^\s+\.\.\.\. [01]{4} = OpCode: .*\(0x([0-9a-f]+)\)`)
	lineCRC    = regexp.MustCompile(`^\s+CRC check: 0x[0-9a-f]+ \((\w+)`)
)

// parseTshark reads the verbose text. There is no field for "bad CRC": the dissector
// says it only in words.
func parseTshark(out []byte) (Report, error) {
	var r Report
	sc := bufio.NewScanner(bytes.NewReader(out))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := sc.Text()
		switch {
		case strings.HasPrefix(line, "    Request frame header"):
			r.Requests++
		case strings.HasPrefix(line, "    Reply frame header"):
			r.Replies++
		case strings.Contains(line, "Malformed Packet"):
			r.Malformed++
		case lineLength.MatchString(line):
			n, err := strconv.Atoi(lineLength.FindStringSubmatch(line)[1])
			if err != nil {
				return r, err
			}
			r.FPDUs++
			r.ULPDU = append(r.ULPDU, n)
		case lineOpcode.MatchString(line):
			n, err := strconv.ParseUint(lineOpcode.FindStringSubmatch(line)[1], 16, 4)
			if err != nil {
				return r, err
			}
			r.ByOpcode[n]++
		case lineCRC.MatchString(line):
			if lineCRC.FindStringSubmatch(line)[1] == "Good" {
				r.GoodCRC++
			} else {
				r.BadCRC++
			}
		}
	}
	return r, sc.Err()
}

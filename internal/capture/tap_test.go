package capture_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softrdma/softrdma/internal/capture"
	"github.com/softrdma/softrdma/pktio"
)

// tapPipe makes a pipe with a tap on its first end.
func tapPipe(t *testing.T, w io.Writer) (*capture.Tap, *pktio.Pipe) {
	t.Helper()
	a, b, err := pktio.NewPipe(pktio.PipeConfig{GSO: true, Depth: 512})
	require.NoError(t, err)
	tap, err := capture.NewTap(a, w)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = tap.Close()
		require.NoError(t, b.Close())
	})
	return tap, b
}

// tapFrame makes a TCP segment whose checksum is whole or, with partial, left to the link.
func tapFrame(t *testing.T, n int, v6, partial bool) pktio.Frame {
	t.Helper()
	eth := &layers.Ethernet{DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 0xb}, SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 0xa}, EthernetType: layers.EthernetTypeIPv4}
	tcp := &layers.TCP{SrcPort: 40000, DstPort: 7174, ACK: true, Window: 512}
	v4 := &layers.IPv4{Version: 4, Protocol: layers.IPProtocolTCP, TTL: 64, SrcIP: net.IP{10, 77, 0, 1}, DstIP: net.IP{10, 77, 0, 2}}
	ip, hdr := gopacket.SerializableLayer(v4), 54
	require.NoError(t, tcp.SetNetworkLayerForChecksum(v4))
	if v6 {
		v6 := &layers.IPv6{Version: 6, NextHeader: layers.IPProtocolTCP, HopLimit: 64, SrcIP: net.ParseIP("fd77::1"), DstIP: net.ParseIP("fd77::2")}
		eth.EthernetType = layers.EthernetTypeIPv6
		require.NoError(t, tcp.SetNetworkLayerForChecksum(v6))
		ip, hdr = v6, 74
	}
	payload := make([]byte, n)
	for i := range payload {
		payload[i] = byte(i)
	}
	buf := gopacket.NewSerializeBuffer()
	require.NoError(t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, tcp, gopacket.Payload(payload)))
	b := buf.Bytes()
	f := pktio.Frame{Data: [][]byte{b[:hdr], b[hdr:]}}
	if partial {
		// The field's sum over the pseudo header alone is what is left when the sum over the segment is taken off.
		field := b[hdr-4:]
		sum := ^uint32(binary.BigEndian.Uint16(field)) & 0xffff
		binary.BigEndian.PutUint16(field, 0)
		seg := append([]byte(nil), b[hdr-20:]...)
		for i := 0; i < len(seg); i += 2 {
			word := uint32(seg[i]) << 8
			if i+1 < len(seg) {
				word |= uint32(seg[i+1])
			}
			sum += ^word & 0xffff
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(field, uint16(sum))
		f.Offload = pktio.Offload{NeedsCsum: true, CsumStart: uint16(hdr - 20), CsumOffset: 16}
		if len(b) > 1514 {
			f.GSO, f.GSOSize, f.HdrLen = pktio.GSOTCPv4, 1448, uint16(hdr)
			if v6 {
				f.GSO = pktio.GSOTCPv6
			}
		}
	}
	return f
}

func flat(f pktio.Frame) []byte {
	b := make([]byte, f.Len())
	f.CopyTo(b)
	return b
}

type packet struct {
	at   time.Time
	data []byte
}

// readTap reads a capture file to its end.
func readTap(t *testing.T, file []byte) (*pcapgo.NgReader, []packet) {
	t.Helper()
	r, err := pcapgo.NewNgReader(bytes.NewReader(file), pcapgo.DefaultNgReaderOptions)
	require.NoError(t, err)
	var got []packet
	for {
		data, ci, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return r, got
		}
		require.NoError(t, err)
		require.Equal(t, ci.CaptureLength, ci.Length)
		got = append(got, packet{ci.Timestamp, data})
	}
}

func TestTapRecordsBothDirections(t *testing.T) {
	defer goleak.VerifyNone(t)
	var file bytes.Buffer
	tap, b := tapPipe(t, &file)
	require.Equal(t, "pipe-a", tap.Link().Name)
	start := time.Now()
	var want [][]byte
	batch := make([]pktio.Frame, 8)
	for i, c := range []struct {
		n           int
		v6, partial bool
	}{{0, false, false}, {1, true, true}, {1448, false, true}, {1428, true, false}, {65495, false, true}, {65475, true, true}, {7, false, true}} {
		want = append(want, flat(tapFrame(t, c.n, c.v6, false))) // in the file the checksum is whole
		f := tapFrame(t, c.n, c.v6, c.partial)
		from, to := pktio.Port(tap), pktio.Port(b)
		if i%2 == 1 {
			from, to = to, from
		}
		n, err := from.Send([]pktio.Frame{f})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		n, err = to.Recv(batch, -1)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, flat(f), flat(batch[0]), "the frame itself passes as it was")
		require.Equal(t, f.Offload, batch[0].Offload)
	}
	n, err := tap.Recv(batch, 0)
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = tap.Send(nil)
	require.NoError(t, err)
	require.NoError(t, tap.Close())
	require.NoError(t, tap.Close(), "idempotent")
	_, err = tap.Send([]pktio.Frame{tapFrame(t, 1, false, false)})
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = tap.Recv(batch, -1)
	require.ErrorIs(t, err, net.ErrClosed)

	r, got := readTap(t, file.Bytes())
	require.Len(t, got, len(want))
	last := start
	for i, p := range got {
		require.Equal(t, want[i], p.data, "packet %d", i)
		require.False(t, p.at.Before(last), "time goes on")
		require.WithinDuration(t, start, p.at, time.Minute)
		last = p.at
	}
	intf, err := r.Interface(0)
	require.NoError(t, err)
	require.Equal(t, "pipe-a", intf.Name)
	require.Equal(t, layers.LinkTypeEthernet, intf.LinkType)
	require.EqualValues(t, len(want), intf.Statistics.PacketsReceived)
	require.Zero(t, intf.Statistics.PacketsDropped)
	require.EqualValues(t, len(want), tap.Stats().Recorded)
}

func TestTapAgainstTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("LEFT OUT: tshark is not installed")
	}
	name := filepath.Join(t.TempDir(), "tap.pcapng")
	file, err := os.Create(name)
	require.NoError(t, err)
	tap, b := tapPipe(t, file)
	sent := 0
	for _, v6 := range []bool{false, true} {
		for _, partial := range []bool{false, true} {
			for _, n := range []int{0, 1, 1447, 1448, 30001, 65475} {
				f := tapFrame(t, n, v6, partial)
				if f.Len() > 1514 && !partial {
					continue
				}
				_, err := tap.Send([]pktio.Frame{f})
				require.NoError(t, err)
				_, err = b.Recv(make([]pktio.Frame, 1), 0)
				require.NoError(t, err)
				sent++
			}
		}
	}
	require.NoError(t, tap.Close())
	require.NoError(t, file.Close())
	out, err := exec.Command(tshark, "-n", "-r", name, "-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE",
		"-T", "fields", "-e", "tcp.checksum.status", "-e", "_ws.malformed").CombinedOutput()
	require.NoError(t, err, "%s", out)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	good := 0
	for _, l := range lines {
		switch strings.TrimRight(l, "\t") {
		case "1", "Good":
			good++
		}
	}
	require.Equal(t, sent, good, "%s", out)
}

func TestTapConcurrently(t *testing.T) {
	defer goleak.VerifyNone(t)
	var file bytes.Buffer
	tap, b := tapPipe(t, &file)
	var wg sync.WaitGroup
	const each = 2000
	for _, p := range []pktio.Port{tap, b} {
		wg.Go(func() {
			f := tapFrame(t, 100, false, true)
			for n := 0; n < each; {
				k, err := p.Send([]pktio.Frame{f})
				if err != nil {
					t.Error(err)
					return
				}
				n += k
			}
		})
		wg.Go(func() {
			batch := make([]pktio.Frame, 16)
			for n := 0; n < each; {
				k, err := p.Recv(batch, -1)
				if err != nil {
					t.Error(err)
					return
				}
				n += k
			}
		})
	}
	wg.Wait()
	require.NoError(t, tap.Close())
	_, got := readTap(t, file.Bytes())
	require.GreaterOrEqual(t, len(got), 2*each, "and what the port had no room for")
	whole := flat(tapFrame(t, 100, false, false))
	for _, p := range got {
		require.Equal(t, whole, p.data)
	}
}

func TestTapDoesNotAllocate(t *testing.T) {
	tap, b := tapPipe(t, io.Discard)
	tx := []pktio.Frame{tapFrame(t, 1448, false, true)}
	rx := make([]pktio.Frame, 1)
	run := func() {
		_, _ = tap.Send(tx)
		_, _ = b.Recv(rx, 0)
		_, _ = b.Send(tx)
		_, _ = tap.Recv(rx, 0)
	}
	for range 1000 {
		run()
	}
	require.Less(t, testing.AllocsPerRun(1000, run), 1.0)
	require.NoError(t, tap.Close())
}

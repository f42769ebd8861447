package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/softrdma/softrdma/pktio"
)

// rawRun plays ping-pong with frames of 64 octets over two ports of the packet backend,
// without any protocol above it. Both sides spin.
type rawRun struct{}

func (rawRun) program() string { return "" }

func (rawRun) measure(ctx context.Context, s *stage, each time.Duration) (sample, error) {
	o, err := s.pair(ctx, pair{
		server: []string{s.self, "end", "echo-frames", sideA.iface}, ready: "ready", stays: true,
		client: []string{s.self, "end", "ping-frames", sideB.iface, serverWord, each.String()},
		limit:  patience(each),
	})
	if err != nil {
		return nil, err
	}
	return parseTimes(o.out)
}

const (
	frameLen = 64
	// etherType is one for experiments, which nothing else here speaks.
	etherType = 0x88b5
	// frameTime is how long a frame may be on its way.
	frameTime = time.Second
	// looks is how many looks at the ring there are between two at the clock.
	looks = 4096
	// maxTimes bounds the memory for measured times, 64 MiB.
	maxTimes = 8 << 20
)

// framePort exchanges numbered frames with another one.
type framePort struct {
	port pktio.Port
	tx   []pktio.Frame // the one frame to send
	rx   []pktio.Frame
}

func newFramePort(p pktio.Port, peer net.HardwareAddr) *framePort {
	b := make([]byte, frameLen)
	own := p.Link().Addr
	copy(b, peer)
	copy(b[6:], own[:])
	binary.BigEndian.PutUint16(b[12:], etherType)
	return &framePort{port: p, tx: []pktio.Frame{{Data: [][]byte{b}}}, rx: make([]pktio.Frame, 1)}
}

// send sends the frame with a number in it.
func (f *framePort) send(number uint64) error {
	binary.BigEndian.PutUint64(f.tx[0].Data[0][pktio.EthernetHeader:], number)
	n, err := f.port.Send(f.tx)
	if err == nil && n != 1 {
		err = errors.New("the interface has no room for one frame")
	}
	return err
}

// recv spins until a frame of ours comes and returns its number, and its sender.
func (f *framePort) recv(over func() error) (number uint64, from []byte, err error) {
	for i := 1; ; i++ {
		n, err := f.port.Recv(f.rx, 0)
		if err != nil {
			return 0, nil, err
		}
		if n == 1 {
			if b := f.rx[0].Data[0]; len(b) == frameLen && binary.BigEndian.Uint16(b[12:]) == etherType {
				return binary.BigEndian.Uint64(b[pktio.EthernetHeader:]), b[6:12], nil
			}
		}
		if i%looks == 0 {
			if err := over(); err != nil {
				return 0, nil, err
			}
		}
	}
}

// echoFrames answers each frame until it is told to end.
func echoFrames(iface string, out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p, err := pktio.OpenPacket(pktio.PacketConfig{Interface: iface})
	if err != nil {
		return err
	}
	defer p.Close()
	own := p.Link().Addr
	fmt.Fprintln(out, "ready", net.HardwareAddr(own[:]))
	return newFramePort(p, make(net.HardwareAddr, 6)).echo(ctx)
}

func (f *framePort) echo(ctx context.Context) error {
	for {
		number, from, err := f.recv(ctx.Err)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err == nil {
			copy(f.tx[0].Data[0], from)
			err = f.send(number)
		}
		if err != nil {
			return err
		}
	}
}

// pingFrames measures round trips for a while and prints their distribution.
func pingFrames(iface, peer string, each time.Duration, out io.Writer) error {
	addr, err := net.ParseMAC(peer)
	if err != nil {
		return err
	}
	p, err := pktio.OpenPacket(pktio.PacketConfig{Interface: iface})
	if err != nil {
		return err
	}
	defer p.Close()
	times, err := newFramePort(p, addr).ping(each)
	if err != nil {
		return err
	}
	slices.Sort(times)
	_, err = fmt.Fprintf(out, "%d rounds, p50 %d p99 %d p99.9 %d ns\n",
		len(times), percentile(times, 50), percentile(times, 99), percentile(times, 99.9))
	return err
}

// ping returns the round trips in nanoseconds.
func (f *framePort) ping(each time.Duration) ([]int64, error) {
	times := make([]int64, 0, maxTimes)
	start := time.Now()
	last := start
	tooLong := func() error {
		if time.Since(last) > frameTime {
			return errors.New("a frame was lost")
		}
		return nil
	}
	for number := uint64(1); last.Sub(start) < each && len(times) < maxTimes; number++ {
		if err := f.send(number); err != nil {
			return nil, err
		}
		got, _, err := f.recv(tooLong)
		if err == nil && got != number {
			err = fmt.Errorf("frame %d came where %d was due", got, number)
		}
		if err != nil {
			return nil, err
		}
		now := time.Now()
		times = append(times, now.Sub(last).Nanoseconds())
		last = now
	}
	return times, nil
}

// parseTimes reads what pingFrames prints.
func parseTimes(s string) (sample, error) {
	var n, a, b, c int64
	if _, err := fmt.Sscanf(strings.TrimSpace(s), "%d rounds, p50 %d p99 %d p99.9 %d ns", &n, &a, &b, &c); err != nil || n < 1 || a < 1 {
		return nil, fmt.Errorf("%.200q is no distribution: %w", s, err)
	}
	return sample{p50: float64(a) / 1e3, p99: float64(b) / 1e3, p999: float64(c) / 1e3}, nil
}

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/softrdma/softrdma/pktio"
)

const (
	// wireQueue is how many frames wait for their time in each direction: what
	// a window of 16 MiB is in wire frames of 1500 octets, or 80 ms of 100,000
	// frames a second. Memory is used for what really waits.
	wireQueue = 8192
	// wireRing is how much memory, in octets, the kernel gets for frames that
	// the wire process has not seen yet, at each port.
	wireRing  = 64 << 20
	wireBatch = 64
)

// wireConfig describes the wire process.
type wireConfig struct {
	Ports      [2]string  `json:"ports"` // interfaces to a and to b, in the namespace of the process
	Impair     Impairment `json:"impairment"`
	WireFrames bool       `json:"wire_frames"` // no super-frames come
	Socket     string     `json:"socket"`      // a Unix socket to answer on with the counters
}

// Direction counts what came into the wire from one side, in frames.
type Direction struct {
	Frames     uint64 `json:"frames"`
	Lost       uint64 `json:"lost"` // as the user wished; so are the next three
	Duplicated uint64 `json:"duplicated"`
	Reordered  uint64 `json:"reordered"`
	Delayed    uint64 `json:"delayed"`
	Dropped    uint64 `json:"dropped"` // as nobody wished: there was no room, or the other side was down
}

// way carries frames in one direction.
type way struct {
	in      *pktio.Packet
	out     *pktio.Faulty
	beat    *metronome // both ways'
	dropped atomic.Uint64
}

// RunWire carries frames between two interfaces, as a bridge of two ports
// does, and impairs them in both directions. The file at path, written by
// `lab up`, says which and how. It ends without an error when ctx does or when
// an interface is deleted, as `lab down` does with both.
//
// Super-frames pass whole. Frames with a VLAN tag do not pass, nor do
// super-frames other than TCP's; both count as dropped.
func RunWire(ctx context.Context, path string) error {
	var c wireConfig
	if err := readJSON(path, &c); err != nil {
		return err
	}
	if err := c.Impair.check(); err != nil {
		return err
	}
	hurry()
	ways, err := openWays(&c)
	if err != nil {
		return err
	}
	m, err := newMetronome(c.Impair.Delay + c.Impair.Jitter)
	closeAll := func() {
		for _, w := range ways {
			_ = w.out.Close()
		}
		m.close()
	}
	if err != nil {
		closeAll()
		return err
	}
	l, err := listenOwner(c.Socket)
	if err != nil {
		closeAll()
		return err
	}
	var all sync.WaitGroup
	ended := make(chan error, len(ways))
	for _, w := range ways {
		w.beat = m
		all.Go(func() { ended <- w.carry() })
	}
	all.Go(func() {
		answer(l, func() []Direction { return []Direction{ways[0].direction(), ways[1].direction()} })
	})
	select {
	case <-ctx.Done():
	case err = <-ended:
	}
	closeAll()
	_ = l.Close()
	all.Wait()
	if errors.Is(err, syscall.ENETDOWN) {
		return nil // the port is set to report nothing but that the interface is gone
	}
	return err
}

// openWays opens both ports.
func openWays(c *wireConfig) ([]*way, error) {
	var ports [2]*pktio.Packet
	for i, name := range c.Ports {
		p, err := pktio.OpenPacket(c.port(name))
		if err != nil {
			for _, p := range ports[:i] {
				_ = p.Close()
			}
			return nil, err
		}
		ports[i] = p
	}
	var ways []*way
	for i, seed := range c.Impair.seeds() {
		ways = append(ways, &way{in: ports[i], out: pktio.NewFaulty(ports[1-i], c.Impair.faults(seed))})
	}
	return ways, nil
}

// port describes one port of the wire.
func (c *wireConfig) port(name string) pktio.PacketConfig {
	longest := pktio.MaxSuperFrame
	if dev, err := net.InterfaceByName(name); err == nil && c.WireFrames {
		longest = min(longest, dev.MTU+pktio.EthernetHeader)
	}
	return pktio.PacketConfig{
		Interface: name, Promiscuous: true,
		MaxFrame: longest, RingFrames: min(max(wireRing/(longest+256), 256), wireQueue),
		DownGrace: time.Duration(math.MaxInt64), // the lab may take its interfaces down for as long as it likes
	}
}

// carry forwards frames until a port fails.
func (w *way) carry() error {
	batch := make([]pktio.Frame, wireBatch)
	for {
		n, err := w.in.Recv(batch, -1)
		if err != nil {
			return err
		}
		w.beat.frame()
		if err := w.forward(batch[:n]); err != nil {
			return err
		}
	}
}

// forward sends frames on. Like a wire it does not wait: what finds no room is
// gone.
func (w *way) forward(batch []pktio.Frame) error {
	for {
		n, err := w.out.Send(batch)
		if batch = batch[n:]; len(batch) == 0 {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		// The others may still pass. Whether the interface is gone, receiving
		// from it tells.
		w.dropped.Add(1)
		batch = batch[1:]
	}
}

func (w *way) direction() Direction {
	rx, f := w.in.Stats(), w.out.Stats()
	early := rx.RxRingFull + rx.RxTooLong + rx.RxTagged
	return Direction{
		Frames: rx.RxFrames + early,
		Lost:   f.Lost, Duplicated: f.Duplicated, Reordered: f.Reordered, Delayed: f.Delayed,
		Dropped: early + w.dropped.Load() + f.NoQueue + f.NoRoom,
	}
}

// listenOwner listens on a Unix socket that its owner alone may connect to.
func listenOwner(path string) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// answer tells whoever connects the counters, until l is closed. It reads nothing
// of what they say.
func answer(l net.Listener, count func() []Direction) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil {
			time.Sleep(100 * time.Millisecond) // no descriptors left, say
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_ = json.NewEncoder(conn).Encode(count())
		_ = conn.Close()
	}
}

// askWire reads the counters of the wire process at a socket.
func askWire(ctx context.Context, socket string) ([]Direction, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	var d []Direction
	if err := json.NewDecoder(conn).Decode(&d); err != nil {
		return nil, fmt.Errorf("the wire process does not tell its counters: %w", err)
	}
	if len(d) != 2 {
		return nil, fmt.Errorf("the wire process tells of %d directions", len(d))
	}
	return d, nil
}

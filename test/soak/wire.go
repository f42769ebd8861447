package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netns"

	"github.com/softrdma/softrdma/pktio"
)

// wire carries frames between two interfaces and does the faults to them, in both
// directions.
type wire struct {
	ports   [2]*pktio.Packet
	ways    [2]*pktio.Faulty // to port 0 and to port 1
	dropped atomic.Uint64    // for want of room
	gone    sync.WaitGroup
}

// wireQueue is how many frames may wait for their time: a full window of each of a
// few connections.
const wireQueue = 4096

// openWire begins to carry frames between two interfaces of a network namespace.
// Its sockets stay there; this process does not.
func openWire(o *options, namespace string, names [2]string) (*wire, error) {
	w := &wire{}
	err := within(namespace, func() error {
		for i, name := range names {
			c := pktio.PacketConfig{Interface: name, Promiscuous: true, DownGrace: time.Duration(math.MaxInt64)}
			if !o.Super { // then none come
				c.MaxFrame, c.RingFrames = o.MTU+pktio.EthernetHeader, 8192
			}
			p, err := pktio.OpenPacket(c)
			if err != nil {
				return err
			}
			w.ports[i] = p
		}
		return nil
	})
	if err != nil {
		for _, p := range w.ports {
			if p != nil {
				_ = p.Close() // the first error is the one to tell
			}
		}
		return nil, err
	}
	for i, p := range w.ports {
		f := o.Faults
		f.Seed, f.Queue = o.Seed+uint64(i), wireQueue
		w.ways[i] = pktio.NewFaulty(p, f)
	}
	for i := range w.ways {
		w.gone.Go(func() { w.carry(w.ports[i], w.ways[1-i]) })
	}
	return w, nil
}

func (w *wire) carry(in *pktio.Packet, out *pktio.Faulty) {
	batch := make([]pktio.Frame, 64)
	for {
		n, err := in.Recv(batch, -1)
		if err != nil {
			return // closed, or the namespace is
		}
		for b := batch[:n]; len(b) > 0; {
			k, err := out.Send(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if b = b[k:]; len(b) > 0 { // like a wire it does not wait
				w.dropped.Add(1)
				b = b[1:]
			}
		}
	}
}

func (w *wire) close() {
	for _, f := range w.ways {
		_ = f.Close() // nothing depends on the wire any more
	}
	w.gone.Wait()
}

// count adds what the wire did to s.
func (w *wire) count(s *snapshot) {
	for i, f := range w.ways {
		s.addFaults(f.Stats())
		p := w.ports[i].Stats()
		s.Faults.NoRoom += p.RxRingFull + p.RxTooLong
	}
	s.Faults.NoRoom += w.dropped.Load()
}

// within runs f on a thread in a network namespace.
func within(namespace string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
		ns, err := netns.GetFromName(namespace)
		if err == nil {
			defer ns.Close()
			err = netns.Set(ns)
		}
		if err != nil {
			done <- fmt.Errorf("entering the namespace %s: %w", namespace, err)
			return
		}
		done <- f()
	}()
	return <-done
}

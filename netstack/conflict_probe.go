package netstack

import (
	"fmt"
	"net"
	"time"

	"github.com/softrdma/softrdma/pktio"
)

const (
	// questions is how often New asks for each address. RFC 5227 wants as many, but seconds apart, having slow
	// media in mind; RFC 4862 wants one.
	questions = 3
	// announceAgain is after how long addresses are announced a second time, as RFC 5227 wants it.
	announceAgain = 2 * time.Second
)

// probe asks for wait whether another host has one of our addresses. The error is a *Conflict if one has, or the
// port's. Nobody else receives yet, and what else arrives is for nobody.
func (l *link) probe(wait time.Duration) error {
	if wait <= 0 {
		return nil
	}
	frames := make([]pktio.Frame, rxBatch)
	for range questions {
		for _, a := range l.others.addrs {
			l.sendFrame(question(a, l.info.Addr))
		}
		asked := time.Now()
		for left := wait / questions; left > 0; left = wait/questions - time.Since(asked) {
			n, err := l.port.Recv(frames, left)
			if err != nil {
				return fmt.Errorf("netstack: interface %s: %w", l.info.Name, err)
			}
			for i := range frames[:n] {
				if c, ok := claimOf(l.front(&frames[i])); ok {
					if met := l.others.lookAtOpen(c); met != nil {
						return &takenError{met}
					}
				}
			}
		}
	}
	return nil
}

// takenError is a Conflict found before the address was used.
type takenError struct{ met *Conflict }

func (e *takenError) Error() string {
	return fmt.Sprintf("netstack: address %s is used by another host, %s on %s: take an address that nobody has, or take it away from that host first",
		e.met.Addr, net.HardwareAddr(e.met.MAC[:]), e.met.Link)
}

func (e *takenError) Unwrap() error { return e.met }

// announce tells all neighbours that we have our addresses, and once more after a while.
func (l *link) announce() {
	l.say()
	l.others.again = time.AfterFunc(announceAgain, l.say)
}

// say announces our addresses. On a port that was closed meanwhile it does nothing.
func (l *link) say() {
	for _, a := range l.others.addrs {
		l.sendFrame(announcement(a, l.info.Addr))
	}
}

// sendFrame sends a frame of our own making. It borrows b.
func (l *link) sendFrame(b []byte) {
	l.tx.mu.Lock()
	defer l.tx.mu.Unlock()
	f := l.nextFrame()
	f.Data = append(f.Data, b)
	l.flush()
}

// overhear looks whether an arrived frame, from its Ethernet header on, is of a host that uses one of our addresses, or
// of a neighbour that has moved. It returns true in the first case: gVisor would answer the ARP requests that the other
// announces itself with, all of them, where we are to say so once in a while, and to everyone. Caller holds rx.mu.
func (l *link) overhear(head []byte) (conflict bool) {
	c, ok := claimOf(head)
	if !ok {
		return false
	}
	// What follows locks the Stack, whose locks are held by some who wait for a connection.
	l.rx.inline.process(l.rx.polled.Load())
	if met := l.others.look(c); met != nil {
		if l.others.met(met, time.Now()) {
			l.sendFrame(announcement(met.Addr, l.info.Addr))
		}
		return true
	}
	if c.question || c.mac == l.info.Addr {
		return false
	}
	now := time.Now()
	if c.addr.Is4() {
		l.neighbours.heard(c.addr, c.mac, now)
	}
	if c.announce {
		l.neighbours.began(c.addr, now)
	}
	return false
}

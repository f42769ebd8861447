package netstack

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/pktio"
)

// Two hosts with the same address take turns in their neighbours' tables, and each answers the other's segments with
// resets: connections break for no visible reason. So the link is asked before an address is used, and watched while it
// is (RFC 5227; RFC 4862, Section 5.4).

// ErrConflict is matched by a [Conflict].
var ErrConflict = errors.New("netstack: another host uses the address")

// Conflict is another host's use of one of our addresses.
type Conflict struct {
	Addr  netip.Addr
	MAC   [6]byte // hardware address of the other
	Link  string  // our interface
	Count uint64  // frames of others that use our addresses, so far
}

// Error says what to do about it.
func (c *Conflict) Error() string {
	return fmt.Sprintf("netstack: address %s is also used by %s on %s: give one of the two hosts another address", c.Addr, net.HardwareAddr(c.MAC[:]), c.Link)
}

// Is makes ErrConflict of it.
func (c *Conflict) Is(target error) bool { return target == ErrConflict }

const (
	// defendEvery is how long we let others claim an address of ours between two announcements (DEFEND_INTERVAL of
	// RFC 5227). We go on using it whatever they say, as Section 2.4 (c) of that document allows hosts whose address
	// was given to them by a person: to give it up would end connections that may well be undisturbed.
	defendEvery = 10 * time.Second
	// tellEvery is how often a conflict that goes on is told of.
	tellEvery = 5 * time.Second
)

// conflicts watches arriving frames for other hosts that use our addresses.
type conflicts struct {
	addrs []netip.Addr // ours, without zones
	mac   [6]byte      // ours
	link  string
	wake  func()      // makes Poll return; set before receiving starts
	again *time.Timer // announces a second time; nil if nothing was announced
	count atomic.Uint64

	mu       sync.Mutex               // guards what follows
	news     *Conflict                // not yet told of
	told     time.Time                // when there were news last
	defended map[netip.Addr]time.Time // when
}

// init takes note of our addresses.
func (w *conflicts) init(addrs []netip.Prefix, link *pktio.Link) {
	for _, p := range addrs {
		w.addrs = append(w.addrs, p.Addr().WithZone(""))
	}
	w.mac, w.link = link.Addr, link.Name
	w.defended = make(map[netip.Addr]time.Time)
}

// look returns the conflict that c, which an arrived frame says, means for us, or nil.
func (w *conflicts) look(c claim) *Conflict {
	if c.mac == w.mac || c.question {
		return nil
	}
	return w.of(c)
}

// lookAtOpen does the same before we use our addresses: then those who ask for one, because they are about to use it,
// conflict as well.
func (w *conflicts) lookAtOpen(c claim) *Conflict {
	if c.mac == w.mac {
		return nil
	}
	return w.of(c)
}

func (w *conflicts) of(c claim) *Conflict {
	for _, a := range w.addrs {
		if a == c.addr {
			return &Conflict{Addr: a, MAC: c.mac, Link: w.link, Count: w.count.Add(1)}
		}
	}
	return nil
}

// met takes note of c and reports whether the address is to be defended now.
func (w *conflicts) met(c *Conflict, now time.Time) (defend bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told.IsZero() || now.Sub(w.told) >= tellEvery {
		w.told = now
		w.news = c
		w.wake()
	}
	if last, ok := w.defended[c.Addr]; ok && now.Sub(last) < defendEvery {
		return false
	}
	w.defended[c.Addr] = now
	return true
}

// Conflict returns another host's use of one of our addresses, met since the last call, or nil. Poll returns when there
// is something new. While a conflict goes on it is told of again after some seconds, and all its frames are counted in
// Stats. User-space carrier; any goroutine.
func (s *Stack) Conflict() *Conflict {
	if s.user == nil || s.user.link.others.count.Load() == 0 {
		return nil
	}
	w := &s.user.link.others
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.news
	w.news = nil
	return c
}

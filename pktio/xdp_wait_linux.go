package pktio

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A receiver that waits is woken by an epoll instance of our own inside of Go's poller. It holds the AF_XDP sockets,
// for arriving frames alone: Go's poller would also wake for every frame that has left. And it holds a netlink socket,
// because an AF_XDP socket says nothing when its interface goes down or away.
//
// To a receiver that keeps polling each wake-up of the poller is a waste, of a microsecond and more for a thread that
// wakes up somewhere for nothing. So after some time the sockets are made deaf, until the receiver waits.

const (
	// kickWait is how long a waiting receiver gives the kernel to make room for frames on their way out.
	kickWait = time.Millisecond
	// zeroCopyWait is how long it gives a device that takes buffers itself, which may have run out of them just as
	// we looked, and says nothing then.
	zeroCopyWait = 100 * time.Millisecond
	// deafAfter is after how many polls without a wait the sockets are made deaf: more than whoever polls for some
	// microseconds before he waits will make.
	deafAfter = 1 << 13
)

// openNews returns a netlink socket that becomes readable when an interface of the network namespace changes.
func openNews() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, fmt.Errorf("pktio: no netlink socket to be had from this kernel: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK}); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("pktio: the kernel does not tell of changed interfaces: %w", err)
	}
	return fd, nil
}

// openPoller makes p.file and p.raw, for the queues and p.news.
func (p *XDP) openPoller() error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("pktio: no epoll instance for interface %s: %w", p.dev.name, err)
	}
	add := func(what int) {
		if err == nil {
			err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, what, &unix.EpollEvent{Events: unix.EPOLLIN})
		}
	}
	add(p.news)
	for _, q := range p.queues {
		add(q.fd)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true) // or Go does not put it into its poller
	}
	p.file = os.NewFile(uintptr(fd), "xdp:"+p.dev.name)
	if err == nil {
		p.raw, err = p.file.SyscallConn()
	}
	if err == nil {
		err = p.file.SetDeadline(time.Time{}) // fails where the poller has not taken it
	}
	if err != nil {
		return fmt.Errorf("pktio: the AF_XDP sockets on %s cannot be waited for: %w", p.dev.name, err)
	}
	p.rx.try, p.rx.ears = p.tryRecv, p.listen
	return nil
}

// setDeaf says whether arriving frames wake the poller.
func (p *XDP) setDeaf(deaf bool) {
	p.rx.deaf, p.rx.polls = deaf, 0
	_ = p.raw.Control(p.rx.ears) // fails only when the port is being closed
}

// listen puts rx.deaf into effect at the epoll instance fd.
func (p *XDP) listen(fd uintptr) {
	r := &p.rx
	r.event.Events = unix.EPOLLIN
	if r.deaf {
		r.event.Events = 0
	}
	for _, q := range p.queues {
		_ = unix.EpollCtl(int(fd), unix.EPOLL_CTL_MOD, q.fd, &r.event)
	}
}

// park waits for frames in Go's poller.
func (p *XDP) park(batch []Frame, wait time.Duration) (int, error) {
	r := &p.rx
	r.batch, r.n, r.err = batch, 0, nil
	defer func() { r.batch = nil }()
	var until time.Time
	if wait > 0 {
		until = time.Now().Add(wait)
	}
	r.polls = 0
	if r.deaf {
		p.setDeaf(false)
	}
	for {
		deadline := p.nextLook()
		if r.armed = !deadline.IsZero(); r.armed && !time.Now().Before(deadline) {
			// The poller does not ask us once a deadline has passed.
			if n, err := p.glance(batch); n > 0 || err != nil {
				return n, err
			}
			continue
		}
		if deadline.IsZero() || !until.IsZero() && until.Before(deadline) {
			deadline = until
		}
		p.alarm.arm(p.file, deadline)
		err := p.raw.Read(r.try)
		switch {
		case r.n > 0 || r.err != nil:
			return r.n, r.err
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			p.alarm.rang()
		case p.state.Load()&stateClosed != 0:
			return 0, nil
		default:
			return 0, fmt.Errorf("pktio: waiting for interface %s: %w", p.dev.name, err)
		}
		if !until.IsZero() && !time.Now().Before(until) {
			return 0, nil
		}
	}
}

// nextLook returns when a waiting receiver has to look for itself, zero if it need not.
func (p *XDP) nextLook() (t time.Time) {
	soonest := func(other time.Time) {
		if t.IsZero() || other.Before(t) {
			t = other
		}
	}
	if !p.dev.downSince.IsZero() {
		soonest(p.dev.downSince.Add(p.dev.grace))
	}
	if p.kickDue.Load() {
		soonest(time.Now().Add(kickWait))
	}
	if p.zero {
		soonest(time.Now().Add(zeroCopyWait))
	}
	return t
}

// tryRecv is asked by the poller, before it waits and at each event. It returns true to end the wait.
func (p *XDP) tryRecv(uintptr) bool {
	r := &p.rx
	if r.n = p.take(r.batch); r.n > 0 {
		return true
	}
	p.wakeRx()
	if p.kickDue.Load() {
		p.kickAgain()
	}
	if p.heard() || !p.dev.downSince.IsZero() {
		r.err = p.dev.look(p.news)
	}
	return r.err != nil || !r.armed && (!p.dev.downSince.IsZero() || p.kickDue.Load())
}

// heard tells whether an interface has changed since it was asked last, ours or another.
func (p *XDP) heard() (news bool) {
	for {
		// A message goes away whole, though we take none of its octets. That the socket had no room for one is news too.
		_, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(p.news), 0, 0, unix.MSG_DONTWAIT, 0, 0)
		if errno != 0 && errno != unix.ENOBUFS && errno != unix.EINTR {
			return news
		}
		news = news || errno != unix.EINTR
	}
}

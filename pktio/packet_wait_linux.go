package pktio

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A receiver that waits is woken by an epoll instance of our own inside of Go's poller, as in xdp_wait_linux.go. It asks
// for arriving frames alone: Go's poller would wake for every frame that has left, too. And it can be made deaf while
// the receiver polls. Where processors are few each wake-up for nothing takes one from somebody, which may be the peer.

// openPoller makes p.file and p.wait, for the sockets.
func (p *Packet) openPoller() error {
	r := &p.rx
	r.ears, r.tell = p.listen, p.listenTo
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		if err = unix.SetNonblock(fd, true); err != nil { // or Go does not put it into its poller
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		return fmt.Errorf("pktio: no epoll instance for interface %s: %w", p.link.Name, err)
	}
	p.file = os.NewFile(uintptr(fd), "packet:"+p.link.Name)
	if p.wait, err = p.file.SyscallConn(); err == nil {
		err = p.file.SetDeadline(time.Time{}) // fails where the poller has not taken it
	}
	if err == nil {
		err = p.hear(unix.EPOLL_CTL_ADD)
	}
	if err != nil {
		return fmt.Errorf("pktio: the packet socket on %s cannot be waited for: %w", p.link.Name, err)
	}
	return nil
}

// setDeaf says whether arriving frames wake the poller.
func (p *Packet) setDeaf(deaf bool) {
	p.rx.deaf, p.rx.polls = deaf, 0
	_ = p.hear(unix.EPOLL_CTL_MOD) // fails only when the port is being closed
}

// hear puts rx.deaf into effect by way of op.
func (p *Packet) hear(op int) error {
	r := &p.rx
	r.op, r.event.Events = op, unix.EPOLLIN
	if r.deaf {
		r.event.Events = 0
	}
	if err := p.wait.Control(r.ears); err != nil {
		return err
	}
	return r.heard
}

// listen has the sockets listened to by the epoll instance fd.
func (p *Packet) listen(fd uintptr) {
	r := &p.rx
	r.epoll, r.heard = int(fd), nil
	if err := p.raw.Control(r.tell); err != nil {
		r.heard = err
	}
	if err := r.long.control(r.tell); err != nil {
		r.heard = err
	}
}

// listenTo has the socket fd listened to.
func (p *Packet) listenTo(fd uintptr) {
	r := &p.rx
	if err := unix.EpollCtl(r.epoll, r.op, int(fd), &r.event); err != nil {
		r.heard = err
	}
}

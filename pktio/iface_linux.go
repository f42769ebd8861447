package pktio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Bits of the state of a port on an interface. What it shares with the kernel is unmapped once the port is closed,
// nobody is in a call that touches it and nothing is lent.
const (
	stateReceiving = 1 << iota
	stateSending   // of XDP alone: Packet sends without touching shared memory
	stateLent
	stateClosed
)

// iface is the interface a port is on, and how it fares. Whoever is in Recv may touch it, but for outages.
type iface struct {
	name  string
	index int
	grace time.Duration // how long it may be down before that is an error

	ifr       *unix.Ifreq
	downSince time.Time     // zero: up
	outages   atomic.Uint64 // times it was found down
}

// find fills in i for the interface called name and describes it as a link without offloads. fd is an AF_PACKET
// socket that was made without protocol; it is bound to the interface afterwards and receives nothing.
func (i *iface) find(fd int, name string) (Link, error) {
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr)
	}
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		return Link{}, fmt.Errorf("pktio: there is no interface %q in this network namespace: \"ip link\" lists those there are: %w", name, unix.ENODEV)
	} else if err != nil {
		return Link{}, fmt.Errorf("pktio: interface %s: %w", name, err)
	}
	i.name, i.index, i.ifr = name, int(ifr.Uint32()), ifr
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr); err != nil {
		return Link{}, fmt.Errorf("pktio: flags of interface %s: %w", name, err)
	}
	if ifr.Uint16()&unix.IFF_UP == 0 {
		return Link{}, i.downError()
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFMTU, ifr); err != nil {
		return Link{}, fmt.Errorf("pktio: MTU of interface %s: %w", name, err)
	}
	link := Link{Name: name, MTU: min(int(ifr.Uint32()), maxMTU)}
	link.MaxFrame = link.MTU + EthernetHeader
	// The address: bound without a protocol, the socket receives nothing but knows its interface.
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: i.index}); err != nil {
		return Link{}, fmt.Errorf("pktio: interface %s does not let itself be bound: %w", name, err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return Link{}, fmt.Errorf("pktio: address of interface %s: %w", name, err)
	}
	ll, ok := sa.(*unix.SockaddrLinklayer)
	if !ok || ll.Hatype != unix.ARPHRD_ETHER || ll.Halen != 6 {
		return Link{}, fmt.Errorf("pktio: interface %s is no Ethernet device: take a network card, a veth or a tap, or use the kernel backend: %w", name, unix.EAFNOSUPPORT)
	}
	copy(link.Addr[:], ll.Addr[:])
	return link, nil
}

// look looks how the interface fares, through any socket that knows interfaces. It returns what Recv is to report, if
// anything, and keeps downSince.
func (i *iface) look(fd int) error {
	i.ifr.SetUint32(uint32(i.index))
	if unix.IoctlIfreq(fd, unix.SIOCGIFNAME, i.ifr) == unix.ENODEV {
		return i.goneError()
	}
	if unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, i.ifr) != nil {
		return nil // renamed this moment
	}
	if i.ifr.Uint16()&unix.IFF_UP != 0 {
		i.downSince = time.Time{}
		return nil
	}
	if i.downSince.IsZero() {
		i.downSince = time.Now()
		i.outages.Add(1)
	}
	if time.Since(i.downSince) >= i.grace {
		return i.downError()
	}
	return nil
}

// gone tells whether the interface is no longer there, through any socket that knows interfaces. Anybody may ask.
func (i *iface) gone(fd int) bool {
	ifr, err := unix.NewIfreq(i.name)
	if err != nil {
		return false
	}
	ifr.SetUint32(uint32(i.index))
	return unix.IoctlIfreq(fd, unix.SIOCGIFNAME, ifr) == unix.ENODEV
}

func (i *iface) downError() error {
	return fmt.Errorf("pktio: interface %s is down: \"ip link set %s up\" brings it up: %w", i.name, i.name, unix.ENETDOWN)
}

func (i *iface) goneError() error {
	return fmt.Errorf("pktio: interface %s is gone, deleted or moved to another network namespace: open the device anew when it is back: %w", i.name, unix.ENETDOWN)
}

func htons(v uint16) uint16 {
	return binary.NativeEndian.Uint16([]byte{byte(v >> 8), byte(v)})
}

package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/softrdma/softrdma/verbs"
)

// Dialer makes connections. It may be used by several goroutines at once if
// its fields stay as they are.
type Dialer struct {
	Device *verbs.Device
	PD     *verbs.PD      // of the queue pair; one of the connection's own if nil
	QP     verbs.QPConfig // without completion queues: the easy path
	Easy   Easy           // of the easy path

	PrivateData []byte                // carried by the MPA Request: up to 508 octets; 251 reach any known peer
	Prepare     func(*verbs.QP) error // runs before the Request leaves: post receives here

	IRD, ORD int        // inbound and outbound reads in flight; the device's default if 0, none if negative
	Local    netip.Addr // address to dial from; the device chooses if zero
}

// Dial connects to addr, "host:port"; an IPv6 address is in brackets, with its
// interface if it is link-local: "[fe80::1%eth0]:7174". A name may have several
// addresses: they are tried in turn while there is no way to them, or nobody
// listens. Dial returns when the connection may carry messages both ways.
//
// Errors are a *verbs.OpError that matches syscall.ECONNREFUSED,
// syscall.EHOSTUNREACH or ENETUNREACH, os.ErrDeadlineExceeded (no answer) or
// the context's error, or that holds a *verbs.RejectError with the peer's
// private data.
func (d *Dialer) Dial(ctx context.Context, addr string) (*Conn, error) {
	if d.Device == nil {
		return nil, &verbs.OpError{Op: "dial", Object: addr, Err: fmt.Errorf("Dialer.Device is nil: open one with iwarp.Open")}
	}
	remotes, err := resolve(ctx, addr)
	if err != nil {
		return nil, &verbs.OpError{Op: "dial", Object: addr, Err: err}
	}
	c, err := newConn(d.Device, d.PD, d.QP, d.Easy, d.Prepare)
	if err != nil {
		return nil, err
	}
	var failure error
	for _, remote := range remotes {
		c.info, err = d.Device.Provider().Dial(ctx, c.Num(), verbs.ConnParams{
			Local: d.Local, Remote: remote, PrivateData: d.PrivateData, IRD: depth(d.IRD), ORD: depth(d.ORD),
		})
		if err == nil {
			return c, nil
		}
		if failure == nil || errors.Is(failure, syscall.EAFNOSUPPORT) {
			failure = err // the first that the device could have reached
		}
		if !elsewhere(err) {
			break
		}
	}
	c.free()
	return nil, failure
}

// elsewhere reports whether another address of the same name may be better than
// the one that failed with err.
func elsewhere(err error) bool {
	for _, e := range []error{syscall.EAFNOSUPPORT, syscall.EADDRNOTAVAIL, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ECONNREFUSED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// resolve turns host:port into addresses, several only if the host is a name.
func resolve(ctx context.Context, addr string) ([]netip.AddrPort, error) {
	if ap, err := netip.ParseAddrPort(addr); err == nil {
		return []netip.AddrPort{ap}, nil
	}
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	ips := make([]netip.Addr, 1)
	if ips[0], err = netip.ParseAddr(host); err != nil {
		if ips, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
			return nil, err
		}
	}
	addrs := make([]netip.AddrPort, len(ips))
	for i, ip := range ips {
		addrs[i] = netip.AddrPortFrom(ip.Unmap(), uint16(port))
	}
	return addrs, nil
}

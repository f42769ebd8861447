package rdmacm

import (
	"context"
	"fmt"
	"net"
	"net/netip"

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

// Dial connects to addr, "host:port". It returns when the connection may
// carry messages both ways.
//
// Errors are a *verbs.OpError that matches syscall.ECONNREFUSED,
// syscall.EHOSTUNREACH or ENETUNREACH, os.ErrDeadlineExceeded (no answer) or
// the context's error, or that holds a *verbs.RejectError with the peer's
// private data.
func (d *Dialer) Dial(ctx context.Context, addr string) (*Conn, error) {
	if d.Device == nil {
		return nil, &verbs.OpError{Op: "dial", Object: addr, Err: fmt.Errorf("Dialer.Device is nil: open one with iwarp.Open")}
	}
	remote, err := resolve(ctx, addr)
	if err != nil {
		return nil, &verbs.OpError{Op: "dial", Object: addr, Err: err}
	}
	c, err := newConn(d.Device, d.PD, d.QP, d.Easy, d.Prepare)
	if err != nil {
		return nil, err
	}
	info, err := d.Device.Provider().Dial(ctx, c.Num(), verbs.ConnParams{
		Local: d.Local, Remote: remote, PrivateData: d.PrivateData, IRD: depth(d.IRD), ORD: depth(d.ORD),
	})
	if err != nil {
		c.free()
		return nil, err
	}
	c.info = info
	return c, nil
}

// resolve turns host:port into an address; a name is looked up, and its first
// address taken.
func resolve(ctx context.Context, addr string) (netip.AddrPort, error) {
	if ap, err := netip.ParseAddrPort(addr); err == nil {
		return ap, nil
	}
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return netip.AddrPort{}, err
		}
		ip = ips[0].Unmap()
	}
	return netip.AddrPortFrom(ip, uint16(port)), nil
}

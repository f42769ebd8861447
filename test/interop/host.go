package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// host is the namespace of one guest: a tap on which the kernel has addresses of its
// own, beside those that softrdma takes.
type host struct {
	ns  *Namespace
	vm  *VM
	mtu int // of the link
}

// newHost boots a guest on a link of its own.
func newHost(ctx context.Context, img Image, kind, accel string, mtu int) (*host, error) {
	ns, err := newNamespace(kind)
	if err != nil {
		return nil, err
	}
	h := &host{ns: ns, mtu: mtu}
	err = ns.AddTap(tapName)
	if err == nil {
		err = errors.Join(
			ns.IP("link", "set", tapName, "mtu", fmt.Sprint(mtu)),
			ns.IP("addr", "add", kernelAddrs[4].String(), "dev", tapName),
			ns.IP("addr", "add", kernelAddrs[6].String(), "dev", tapName, "nodad"))
	}
	if err == nil {
		h.vm, err = boot(ctx, VMConfig{Image: img, Kind: kind, NS: ns, Tap: tapName, MAC: guestMAC, MTU: mtu, Accel: accel,
			Addr: guestAddrs[4].String(), Addr6: guestAddrs[6].String()})
	}
	if err != nil {
		ns.Delete()
		return nil, err
	}
	return h, nil
}

// setMTU makes both ends of the link take packets of another size.
func (h *host) setMTU(mtu int) error {
	if mtu == h.mtu {
		return nil
	}
	_, err := h.vm.Run(fmt.Sprintf("ip link set dev $(cat /run/card) mtu %d", mtu), 10*time.Second)
	if err = errors.Join(err, h.ns.IP("link", "set", tapName, "mtu", fmt.Sprint(mtu))); err == nil {
		h.mtu = mtu
	}
	return err
}

// Close stops the guest and removes the namespace.
func (h *host) Close() {
	h.vm.Stop()
	h.ns.Delete()
}

// booting is a guest on its way up.
type booting struct {
	kind string
	done chan struct{}
	host *host
	err  error
	took time.Duration
}

// bootHost begins to boot a guest and returns at once.
func bootHost(ctx context.Context, img Image, kind, accel string, mtu int) *booting {
	b := &booting{kind: kind, done: make(chan struct{})}
	go func() {
		defer close(b.done)
		start := time.Now()
		b.host, b.err = newHost(ctx, img, kind, accel, mtu)
		b.took = time.Since(start)
	}()
	return b
}

// wait returns the guest when it is up. The caller closes it.
func (b *booting) wait() (*host, error) {
	<-b.done
	return b.host, b.err
}

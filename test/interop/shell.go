package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"
)

// shell boots a guest as the matrix does and runs lines of input in it, for trying
// things by hand. softrdma is started in the namespace with ip netns exec meanwhile.
func shell(ctx context.Context, img Image, kind string, in io.Reader, out io.Writer) error {
	h, err := newHost(ctx, img, kind, "")
	if err != nil {
		return err
	}
	defer h.Close()
	fmt.Fprintf(out, "namespace %s: guest %s; tap %s with the kernel's %s; %s is free for softrdma\n", h.ns.Name, guestAddr, tapName, kernelAddr, packetAddr)
	lines := make(chan string)
	go func() {
		defer close(lines)
		for sc := bufio.NewScanner(in); sc.Scan(); {
			lines <- sc.Text()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case line, ok := <-lines:
			if !ok {
				return nil
			}
			text, err := h.vm.Run(line, 5*time.Minute)
			fmt.Fprint(out, text)
			if err != nil {
				fmt.Fprintln(out, err)
			}
		}
	}
}

// host is the namespace of one guest: a tap on which the kernel has an address of its
// own, beside the one that softrdma takes.
type host struct {
	ns *Namespace
	vm *VM
}

func newHost(ctx context.Context, img Image, kind, accel string) (*host, error) {
	ns, err := newNamespace(kind)
	if err != nil {
		return nil, err
	}
	h := &host{ns: ns}
	if err = ns.AddTap(tapName); err == nil {
		err = ns.IP("addr", "add", kernelAddr+"/24", "dev", tapName)
	}
	if err == nil {
		h.vm, err = boot(ctx, VMConfig{Image: img, Kind: kind, NS: ns, Tap: tapName, Addr: guestAddr + "/24", Addr6: "fd77::2/64",
			MAC: "52:54:00:77:00:02", Accel: accel})
	}
	if err != nil {
		ns.Delete()
		return nil, err
	}
	return h, nil
}

// Close stops the guest and removes the namespace.
func (h *host) Close() {
	h.vm.Stop()
	h.ns.Delete()
}

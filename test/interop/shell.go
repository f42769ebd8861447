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
	h, err := newHost(ctx, img, kind, "", 1500)
	if err != nil {
		return err
	}
	defer h.Close()
	fmt.Fprintf(out, "namespace %s: guest %v, %v; tap %s with the kernel's %v, %v; %v and %v are free for softrdma\n", h.ns.Name,
		guestAddrs[4], guestAddrs[6], tapName, kernelAddrs[4], kernelAddrs[6], ownAddrs[4], ownAddrs[6])
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

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/softrdma/softrdma/netstack"
	"github.com/softrdma/softrdma/verbs"
)

// nextStep is what a user can do about an error that came up from the stack.
func nextStep(err error) string {
	var (
		t *verbs.TerminateError
		r *verbs.RejectError
	)
	switch {
	case errors.As(err, &r) && len(r.PrivateData) > 0:
		return fmt.Sprintf("the peer says why: %q", r.PrivateData)
	case errors.Is(err, os.ErrPermission):
		return "run it with sudo, or take --backend kernel, which needs no rights"
	case errors.Is(err, netstack.ErrInUse):
		return "end the other process or take another --ip"
	case errors.As(err, &t) && t.Remote && t.Layer == 1 && t.Type == 1:
		return "the peer grants less memory than was used; `rping -s` needs at least the same -S as its client"
	case errors.Is(err, syscall.EADDRINUSE):
		return "end the program that listens there or take another --port"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "`ip addr` lists the addresses of this host"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "is `softrdma serve` running there, on this port?"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "is the address on the link of --ip, or else --gw given?"
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "is the host up, and does a firewall drop the port?"
	case errors.Is(err, syscall.ECONNRESET):
		return "the peer's own messages may tell why it closed"
	case errors.Is(err, errors.ErrUnsupported):
		return "`softrdma devinfo` shows what a --backend and an --ip give"
	case strings.Contains(err.Error(), "--ip"), strings.Contains(err.Error(), "--dev"):
		return "`softrdma lab up` makes a network to try it on"
	}
	return "--debug shows the life of the connections; `softrdma demo` tells whether the stack itself works"
}

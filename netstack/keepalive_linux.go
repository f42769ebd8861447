//go:build !netstack_portable

package netstack

import (
	"time"

	"golang.org/x/sys/unix"
)

// tcpRTOMaxMS is TCP_RTO_MAX_MS of linux/tcp.h, known to the kernel since Linux 6.15.
const tcpRTOMaxMS = 44

// set asks the kernel for signs of life on fd, an established connection. It counts whole seconds, two at least in all.
// None of the options is worth failing for.
func (k Keepalive) set(fd int) {
	if k.Idle < 0 {
		return
	}
	idle, interval := seconds(k.Idle), seconds(k.Interval)
	// Rounded up, fewer questions are enough.
	count := min(max((seconds(k.Total())-idle+interval-1)/interval, 1), k.Count)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, idle)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, interval)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, count)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	// The same limit for octets that wait for their acknowledgement, where the kernel would ask for a quarter of an
	// hour. It is also the longest that a peer may keep its window shut.
	if unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 1000*(idle+interval*count)) == nil {
		// How often they are sent again no longer decides how long: so it may be often, for a link that comes
		// back to be in use soon.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, tcpRTOMaxMS, int(maxRTO/time.Millisecond))
	}
}

// seconds rounds d up.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

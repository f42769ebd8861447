//go:build !linux || netstack_portable

package netstack

import "net"

// set asks the system for signs of life on conn. How long octets wait for their acknowledgement is left to it.
func (k Keepalive) set(conn *net.TCPConn) {
	_ = conn.SetKeepAliveConfig(net.KeepAliveConfig{Enable: k.Idle >= 0, Idle: k.Idle, Interval: k.Interval, Count: k.Count})
}

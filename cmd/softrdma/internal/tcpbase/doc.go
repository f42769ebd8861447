// Package tcpbase is what RDMA has to be compared with: the same tests over
// plain TCP sockets of the kernel, from Go, on the same path.
//
// Each test has two forms. Blocking uses net.Conn as everybody does: a
// goroutine that waits is woken by Go's netpoller. Spinning asks a non-blocking
// socket again and again, as a program that polls a completion queue does; its
// descriptor must have left the netpoller, or each octet that arrives wakes the
// poller too, which more than doubles the time of a round.
//
// A connection begins with 16 octets of the client, in network order:
//
//	octets 0-3   "SRTB"
//	octet  4     version, 1
//	octet  5     test: 1 sink, 2 source, 3 echo, 4 request and response
//	octet  6     1 if the server shall spin
//	octet  7     0
//	octets 8-11  octets of a message
//	octets 12-15 octets that a source or sink moves with one call
//
// Then: sink, the client sends until it shuts its side down and the server
// answers with the number of octets, 8 octets; source, the server sends until
// the client closes; echo, the server answers each message with one of the same
// length; request and response, it answers 16 octets with a message.
package tcpbase

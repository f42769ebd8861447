// Package perf measures an RDMA connection: bandwidth and latency of Send,
// Write, Read and atomics between a Client and a Server.
//
// # Connections
//
// A session has one control connection and one or more data connections, all
// to the same port. The private data of the connect request says which one it
// is:
//
//	octets 0-3   "SRPF"
//	octet  4     version of the protocol, 1
//	octet  5     role: 1 control, 2 data
//	octets 6-7   data: number of the connection, from 0
//	octets 8-15  data: the session's number, from the Ready message
//
// A request with other private data is rejected; the rejection's private data
// is a line of text.
//
// # Control messages
//
// Each is one Send of at most 1024 octets. All numbers are big-endian.
//
//	octet  0     version of the protocol, 1
//	octet  1     type
//	octets 2-3   length of the whole message
//
// followed by a body. The client asks and the server answers, one message
// each, always in this order:
//
//	client                          server
//	Open   the test                 Ready (the server's memory) or Refused
//	Start  the client's memory      Go or Refused; the data connections are up now
//	... the test runs on the data connections ...
//	Stop   messages sent            Result or Refused
//
// After that the client closes the connections, or sends the next Open.
//
// # Tests
//
// Bandwidth: the client keeps up to Depth messages in flight. A Write is
// complete, in iWARP, when it has been handed to TCP; so the clock stops when
// a Read that was posted after the last message has come back, which proves
// that all of it is in the server's memory. There is no retry in iWARP when a
// Send meets no receive: the server grants receives as credits. It has
// Receives of them posted at the start and after each CreditStep that it has
// posted anew it sends a message of 8 octets with the total number so far.
//
// Latency: the two sides take turns. Send: each answers a message with one of
// the same length. Write: each polls the last octet of its memory, which is
// the number of the round, modulo 256 and from 1 on; the memory begins so that
// this octet is the last one of an aligned word of 8. Read: the client reads
// again and again. Atomics likewise, on one word of the server.
//
// With verification each message carries a pattern made from the session's
// seed and the number of the message, and the receiving side checks it. Of
// atomics the client checks each value that it fetches, and the server those that
// are left in its memory.
//
// A peer may send anything: every length is bounded, unknown values are
// refused, and what a session may hold in memory is limited before any of it
// is allocated.
package perf

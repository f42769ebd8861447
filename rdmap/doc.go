// Package rdmap is the RDMA protocol of RFC 5040 over the DDP messages of
// package ddp: Send, RDMA Write and RDMA Read, their order, and the Terminate
// message that ends a stream in error. It has the Immediate Data and the atomic
// operations of RFC 7306, too.
//
// # Two halves
//
// A [Stream] has a send half ([Stream.Submit], [Stream.Pump], [Stream.Flush],
// [Stream.LowerORD]) for whoever holds the send side, and a receive half
// ([Stream.Receive], [Stream.Give], [Stream.Refuse]) for whoever receives.
// Each half belongs to one goroutine at a time; the two may run at once. The
// rest may be called from anywhere. Nothing blocks on the peer, starts a
// goroutine or looks at a clock.
//
// The halves share a few small things, all bounded: the ring of inbound Read
// and Atomic Requests (receive to send, IRD deep), the ring of outstanding ones
// (send to receive, ORD deep), the gate that holds a responder back until the first FPDU
// has come, the Terminate that is due, and the table of regions.
//
// # Sending
//
// Submit takes one operation, Pump moves it and whatever else is due (responses
// to the peer's requests, a Terminate) into MPA while there is room, Flush hands
// the batch to TCP:
//
//	for {
//		p, err := s.Pump()
//		... complete p.SentID if p.Sent; stop on err ...
//		if p.Blocked {
//			break // Pump again when the byte stream is writable
//		}
//		if p.WantOp && next != nil {
//			if ok, err := s.Submit(next); ok { next = following(); continue }
//			... err: *LocalError. !ok: an Event with KickTx says when ...
//		}
//		if !p.More {
//			break
//		}
//	}
//	s.Flush()
//
// # Receiving
//
// Receive works through the octets that have arrived and reports what the user
// of the stream has to know as an [Event]; ok false means that more octets are
// needed. Every error ends the receive half and comes again from each further
// call; what arrives afterwards is never looked at. A Terminate is then due
// where the protocol wants one, and the send half Pumps it out.
//
// # Who owns a buffer
//
// Submit keeps the Op, with its SGL and Inline, until Pump reports it sent or
// the stream has ended. Give keeps the SGL of the receive buffer until the
// RecvDone event or an error. Memory itself is named by STag and looked up in
// the table for each segment, so that deregistering it is safe at any time.
//
// # Atomic operations
//
// The peer's are carried out by the send half when their answer is written, in
// the order of all requests. Each is one step towards every other atomic
// operation on that memory, through whatever stream, and towards 64-bit accesses
// of the host with package sync/atomic; towards plain accesses it is not. The
// address has to be a multiple of eight.
//
// Immediate Data uses up a receive buffer and leaves it as it is: it tells that
// the Write before it has been placed.
package rdmap

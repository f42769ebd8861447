// Package rdmap is the RDMA protocol of RFC 5040 over the DDP messages of
// package ddp: Send, RDMA Write and RDMA Read, their order, and the Terminate
// message that ends a stream in error.
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
// Requests (receive to send, IRD deep), the ring of outstanding reads (send to
// receive, ORD deep), the gate that holds a responder back until the first FPDU
// has come, the Terminate that is due, and the table of regions.
//
// # Sending
//
// Submit takes one operation, Pump moves it and whatever else is due (responses
// to the peer's reads, a Terminate) into MPA while there is room, Flush hands
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
// # Limitations
//
// Immediate Data and atomic operations (RFC 7306) are not implemented: they are
// answered with Terminate 0/2/06, as the RFC lets an implementation do.
package rdmap

// Package netstack carries byte streams: a TCP/IP that you poll.
//
// A [Stack] runs one of two carriers behind the same types. [New] runs TCP/IP in user space (gVisor's netstack) over
// a [pktio.Port], the way the product is meant to be used. [NewKernel] runs on the TCP sockets of the operating
// system: no privileges, the same octets on the wire, and the baseline to compare with.
//
// Nothing here blocks except [Stack.Poll]. [Stack.Dial] starts a connection and returns, [Listener.Accept] takes one
// that waits, [Conn.Peek] and [Conn.Writev] do what can be done now. Poll says which connections and listeners are
// worth another look.
//
// # Who may call
//
// Poll has one caller, the receive goroutine. A [Conn] has two halves. The receive half (Connected, Peek, Discard,
// Abort, Close, SetOwner, Owner) belongs to the receive goroutine; the send half (Room, Writev, MSS, CloseWrite) to
// whoever holds the send side at the moment. The halves may run at the same time, two calls of one half may not.
// Listener.Accept belongs to the receive goroutine. Dial, Listen, Wake, Stats and Close may be called by any.
//
// # Events
//
// An [Event] is an edge. It says: look at this until it runs dry. Peek until it returns nothing (or not enough),
// Accept until it returns false, send until Room is too small; the next event comes when there is more. Nothing else
// is promised: an event may turn out to be empty.
//
// # Who owns a buffer
//
// Peek lends the memory in which the octets arrived. It stays good until Discard has passed it, whatever the peer
// does meanwhile, a reset included; Abort, Close and the end of the Stack end it too, and those are the caller's own
// doing. Writev borrows its argument for the call.
//
// # Background work
//
// TCP never stops: timers, acknowledgements and retransmissions run on goroutines of the stack. What Writev took but
// TCP had no room for, and the FIN behind it, is passed on by Room, Writev and Poll, so Poll has to be called as long
// as connections are meant to make progress, those already closed included.
//
// # Choices made for the user-space carrier
//
//   - Losses are found by selective acknowledgements alone (RFC 6675), without RACK (RFC 8985): see [RecoverySACK].
//   - The retransmission timer waits between [DefaultMinRTO] and one second; a peer that acknowledges nothing for about
//     a minute is given up. Congestion control is Reno, Nagle's delay is off, keepalive is off.
//   - Buffers have a fixed size, [DefaultBuffer] unless the Config says otherwise: no automatic tuning.
//   - Where the port cannot segment, the link endpoint does it at the last moment and joins arriving segments of one
//     burst, so that TCP works on large segments at any MTU.
//   - A port that gives up, because its interface is gone, ends all connections with its error.
//   - Poll receives the frames itself while it is awake. What else it does not do is done by goroutines of the stack.
//
// # Limitations
//
// IPv4 only in user space so far; the kernel carrier takes IPv6 too. One interface a Stack, no VLAN tags. A handshake
// beyond the backlog is answered with a SYN cookie, which leaves the window scale option out. A connection whose first
// SYN was lost believes in a round-trip time of a second for a while, and waits that long for each further loss.
package netstack

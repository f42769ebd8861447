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
// # Addresses
//
// A Stack has IPv4 addresses, IPv6 addresses or both. A listener on no address, or on "::", takes connections of both
// families, one on 0.0.0.0 those of IPv4; a peer's IPv4 address is told as one. A link-local IPv6 address has its
// interface as its zone wherever it is told of. It needs none where there is one interface only that it can be on: in user
// space always. Link-local addresses are called from a link-local address, which in user space one has to be given.
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
//   - The retransmission timer waits between [DefaultMinRTO] and one second, or less where [Keepalive] is short; that says
//     how long a peer that acknowledges nothing is trusted, idle or not. A peer that shuts its window and answers the
//     questions about it is trusted for ever. Congestion control is Reno, Nagle's delay is off.
//   - A host that announces its address, as one whose stack has just started does, is asked at once about the idle
//     connections to it; its stack answers those it does not know by a reset.
//   - Neighbours are asked anew after some seconds of silence, and whoever of them speaks from another Ethernet address is
//     followed there. TIME_WAIT lasts ten seconds.
//   - Other hosts with one of our addresses are looked for before it is used, where [Config.AddressProbe] says so, and
//     noticed later on, see [Stack.Conflict].
//   - Buffers have a fixed size, [DefaultBuffer] unless the Config says otherwise: no automatic tuning.
//   - Where the port cannot segment, the link endpoint does it at the last moment and joins arriving segments of one
//     burst, so that TCP works on large segments at any MTU.
//   - The segment size follows the path's MTU ([Conn.MSS]). ICMP is believed about segments under way alone (RFC 5927),
//     and down to an IPv6 path of 1280 octets, or an IPv4 path of 552, below which routers may fragment.
//   - Of IPv6 there is what an address needs: neighbour discovery, and reports of the groups it takes (MLD). No address is
//     made up, no router asked and none believed.
//   - A port that gives up, because its interface is gone, ends all connections with its error.
//   - Poll receives the frames itself while it is awake, and with them comes TCP's work on established connections.
//     Acknowledgements wait a moment for octets of ours to go with ([Config.KeepACKs]), and those that came with octets are
//     looked at after the answer to these has left. A segment that needs no decision of TCP is sent behind the headers of
//     the one before, without a way through gVisor's IP. Who receives a long stream rests for some 50 us at a time. For
//     that a few functions of gVisor are called that it does not export, of the one version that was read for it; with
//     another version, with the build tag softrdma_handoff or with [Config.Handoff] its own goroutines do this work, and
//     more slowly.
//   - What else Poll does not do is done by goroutines of the stack.
//
// # Limitations
//
// One interface a Stack, no VLAN tags, and no Path MTU but what routers tell of: where they drop without a word, give a
// smaller MTU. A connection does not try larger segments again, and does not tell others what it learned. A handshake
// beyond the backlog, which is 4096 at least, is answered with a SYN cookie, which leaves the window scale option out. Of
// RFC 5961 resets and SYNs are treated as it says, but octets that fit the window are taken whatever they acknowledge: who
// guesses addresses, ports and window can put some into a stream, for the CRC of MPA to find. A connection whose first
// SYN was lost believes in a round-trip time of a second for a while, and waits that long for each further loss.
package netstack

// Package iwarp opens RDMA devices that speak iWARP (RFC 5040, 5041, 5044 and
// 6581) in user space, over a TCP/IP stack of their own or over the host's.
//
// # Backends
//
// Packet runs the whole stack in this process: frames come from an AF_PACKET
// socket (Linux, CAP_NET_RAW), TCP/IP is gVisor's, and the address used must
// be one that the host itself does not own. Kernel runs iWARP over the host's
// TCP sockets: no privilege, the same octets on the wire, the kernel's copies
// and wake-ups. Auto takes Packet where an interface and an address are given
// and the right is there, else Kernel; Explain tells which and why. Pipe joins
// two devices by a link in memory and needs nothing from the host.
//
// # Threads
//
// A device runs two goroutines of its own. The receive goroutine polls the
// TCP/IP stack, parses and places what arrives, and produces completions. The
// transmit goroutine sends what could not be sent at once: normally the
// goroutine that calls PostSend hands its message to TCP itself.
//
// An application that polls a completion queue takes the work of both over while
// it polls, one step after the other; the two come back when it parks or stops.
// Whoever receives writes no FPDU meanwhile, and whoever sends parses none.
//
// That is [ThreadsAdaptive]. Config.Threads has the three threading models that the
// SoftRDMA paper compares as well:
//
//	                             receives, places,         PostSend    what had to wait
//	                             completes                             is sent by
//	ThreadsAdaptive              who polls, else the       transmits   who has received,
//	                             receive goroutine                     else the transmit goroutine
//	ThreadsIO (c1)               the receive goroutine     hands over  the receive goroutine
//	ThreadsRunToCompletion (c2)  who polls                 transmits   who polls
//	ThreadsSplit (c3)            the receive goroutine     transmits   who polls, else the
//	                                                                   transmit goroutine
//
// "Had to wait" are work requests that found the window shut, read responses,
// Terminates. ThreadsAdaptive is c2 while the application polls; while it does not, its
// PostSend transmits and the receive goroutine does the rest. Under c1 and c3 a busy
// application and its device want a processor each; on a host with fewer, a comparison
// tells of that before anything else.
//
// Whoever polls package netstack takes frames off the port and runs TCP for them. While
// nobody does, or has not for 500 us, a goroutine of that package takes them, in every
// model: TCP's acknowledgements and timers wait for no application.
//
// The models differ in threads alone, not in copies. What arrives is copied out of the
// ring that is shared with the kernel into TCP's buffer, and from there to where it
// belongs, which is the one copy of the layers above TCP. With Config.OneCopy large
// packets go past the ring.
//
// # Few processors
//
// One goroutine at a time has most of a device's work. On a host of two processors, where
// the kernel or the peer needs the other one, a program does better with GOMAXPROCS=1:
// each goroutine that Go wakes on the other processor takes that from somebody.
//
// # The end of a connection
//
// A connection is over when [verbs.QP.Done] is closed, whoever ended it and how:
// this is what librdmacm calls DISCONNECTED. Where it did not end in order,
// [verbs.QP.Err] and one asynchronous event tell the reason.
//
// A reset by the peer is an end in order once this side has begun to disconnect, with
// all its work completed: peers that close with octets unread answer a FIN that way.
// Else a reset is told, as ECONNRESET, also if all work had completed: nothing tells
// a peer that left in haste from one that died. Neither is logged above Info.
//
// # Limitations
//
// Send with Immediate does not exist on iWARP. iWARP neither encrypts nor
// authenticates: use a tunnel on a network that is not trusted.
package iwarp

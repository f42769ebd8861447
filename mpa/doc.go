// Package mpa frames DDP segments over a byte stream: the Marker PDU Aligned
// framing of RFC 5044, with the enhanced connection setup of RFC 6581.
//
// A connection begins with one startup frame in each direction. The initiator
// calls [Conn.Request] and then [Conn.RecvReply] until it reports ok; the
// responder calls [Conn.RecvRequest] until it reports ok and answers with
// [Conn.Accept] or [Conn.Reject]. After that the connection is in FPDU mode:
// [Conn.Next] hands out one ULPDU (one DDP segment) after the other and
// [Conn.Write] sends them.
//
// # Who may call
//
// Nothing here blocks on the peer, starts a goroutine or looks at a clock.
// A Conn has two halves. The receive half ([Conn.RecvReply],
// [Conn.RecvRequest], [Conn.Next], [Conn.Drain]) belongs to one goroutine at a
// time and so does the send half ([Conn.Request], [Conn.Accept],
// [Conn.Reject], [Conn.MULPDU], [Conn.CanWrite], [Conn.Write], [Conn.Flush],
// [Conn.CloseWrite]); the two halves may run at the same time. Accept and
// Reject may follow RecvRequest on another goroutine, if handing the request
// over orders the two.
//
// A startup phase that fails resets the stream; apart from that the stream, and
// the timers for the startup phase, are the caller's.
//
// # Who owns a buffer
//
// Octets handed out by Next are borrowed from the stream and end with the
// following call of Next. Write copies what it is given into a staging buffer
// taken from a mempool, and computes the CRC over that copy, so that memory
// changing under it cannot make a wrong CRC. Private data of startup frames is
// copied.
//
// # Limitations
//
// Revision 0 (before RFC 5044) is not spoken. Frames that arrive out of order
// are left to TCP; MPA sees the stream in order only, so that an FPDU with a bad
// CRC ends the connection and is not dropped for TCP to send again.
//
// The stream has to be able to hold one whole FPDU (up to 65544 octets, 66064
// with markers), as an FPDU is handed out only when all of it is there and its
// CRC is right.
package mpa

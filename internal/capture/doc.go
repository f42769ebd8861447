// Package capture reads and writes what went over the wire.
//
// It has two halves that share nothing but the file format. The Tap wraps a
// [pktio.Port] and writes every frame that passes to a pcapng file. The decoder
// reads such a file (or one made by tcpdump, dumpcap or Wireshark), puts the TCP
// streams together again and explains them as MPA (RFC 5044, RFC 6581), DDP
// (RFC 5041) and RDMAP (RFC 5040, RFC 7306).
//
// The decoder is a second opinion. It was written from the specifications alone
// and shares no line with the packages mpa, ddp and rdmap, so that a mistake made
// there is not made here again. For the same reason it is slow, allocates freely
// and knows no connection state beyond what it reads off the wire: it is for
// tests and interop runs, never for a data path.
//
// # Limits
//
// IP fragments are not put together. Frames with several VLAN tags or tunnels are
// read as far as gopacket reads them.
//
// [pktio.Port]: https://pkg.go.dev/github.com/softrdma/softrdma/pktio#Port
package capture

// Package ddp places data where it belongs: the Direct Data Placement protocol
// of RFC 5041 over the ULPDUs of package mpa.
//
// A DDP message is cut into segments no longer than the MULPDU. A tagged
// segment names memory of the receiver by STag and tagged offset (TO); an
// untagged one names a queue (QN), a message of it (MSN) and an offset within
// that message (MO). A [Stream] does both directions of one connection. A
// [Table] holds the memory regions and windows of one device and their STags.
//
// # Who may call
//
// Nothing here blocks on the peer, starts a goroutine or looks at a clock. The
// receive half of a Stream ([Stream.Next], [Stream.Arrive], [Stream.Place],
// [Stream.Deliver], [Stream.PlaceTagged], [Stream.Pause], [Stream.Received])
// belongs to one goroutine at a time and so does the send half ([Stream.StartTagged], [Stream.StartUntagged],
// [Stream.Room], [Stream.Write], [Stream.Abandon], [Stream.Flush]); the two may
// run at the same time. A Table may be used by any number of goroutines.
//
// # Who owns a buffer
//
// A [Segment] and its payload are borrowed until the following call of Next.
// Memory of a region is used only between [Table.Check] or [Table.Local] and
// [Region.Release]; [Table.Deregister] waits for such uses, so that nothing
// touches the memory once it has returned. A [Lease] is a use that goes on from
// segment to segment of a region for as long as the region is valid, until
// [Stream.Pause] or [Cursor.Release]: a turn of work at most. The one copy of the receive path
// goes from the stream's octets into the region.
//
// # What the ULP decides
//
// DDP does not know opcodes. The ULP looks at [Header.ULP] of a segment from
// Next, and only then asks for placement and names the right that is needed.
//
// # Limitations
//
// Segments are taken in order only, as TCP delivers them.
package ddp

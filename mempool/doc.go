// Package mempool keeps fixed-size, reference-counted buffers with headroom.
//
// A [Pool] allocates its memory once, when it is made: one region for the octets and one slice for the
// bookkeeping. After that nothing is allocated. Frames of an in-memory link and FPDUs on their way to TCP live in
// such buffers.
//
// # Ownership
//
// [Pool.Get] and [Pool.Wait] hand out a [Buf] with one reference, which the caller owns. [Buf.Retain] adds a
// reference, [Buf.Release] gives one back, and the last Release returns the buffer to its pool. Whoever holds a
// reference may read the octets; only a sole holder may change them or the bounds (SetLen, Prepend, Append).
//
// The receive side uses Get and drops what it has no buffer for, so that a slow reader cannot stall a link; only
// the send side may Wait.
//
// Misuse (a release too many, use after the last release, growing past the ends) panics at once, at the place
// where it happens.
package mempool

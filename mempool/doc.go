// Package mempool keeps fixed-size, reference-counted buffers with headroom.
//
// A [Pool] allocates its memory once, when it is made: one region for the octets and one slice for the
// bookkeeping. After that nothing is allocated. Frames of an in-memory link and FPDUs on their way to TCP live in
// such buffers.
//
// # Memory
//
// The octets of a pool are on Go's heap unless [Config] asks for better: a mapping of its own, a [Region], in huge
// pages that the host has set aside, else in those that the kernel finds by itself, else in plain pages; locked where
// limits and rights allow. What is not to be had is no error: [Info] says what was got and why it is not better. A
// Region alone serves as the memory that an AF_XDP socket shares with the kernel.
//
// Memory that nobody has touched is not taken, so that a device which is idle costs little: a pool hands out the
// buffers released last first and takes as much as was once out, in steps of its pages. Exceptions are huge pages set
// aside, which are ours at once and all, and Prefault.
//
// The garbage collector frees the heap; a mapping is freed by Close, or with the last buffer that is out then. What
// was handed out stays good until it is released. [Mapped] finds the pool that nobody closed.
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

// Package ring holds the bounded queues behind the send, receive and
// completion queues of package verbs.
//
// A queue is a region of octets: a header of a known layout, the two indices
// on cache lines of their own, then fixed-size records without Go pointers
// (memory is named by key, offset and length). Nothing outside the region is
// shared between the two sides, so the same queue works between two goroutines
// and between two processes that map the same memory.
//
// # Trust
//
// A side never relies on what the other side may still change. The geometry is
// read from the header once and checked; an index that the other side wrote is
// masked before it is used to address memory and compared with the own index
// before it is believed (a wrong one marks the queue broken and makes it look
// empty to the consumer and full to the producer). A consumer copies a record
// out once, then checks the copy.
//
// # Numbers
//
// Opcodes, flags and statuses inside the records have the values of libibverbs,
// which are frozen; integers are little endian, as all supported hosts are.
package ring

// Package rping speaks the wire protocol of rdma-core's rping, as client and
// as server, so that either end may be the C program.
//
// One round, on one connection (IRD and ORD of 1 suffice):
//
//  1. client: Send of 16 octets that name its source memory
//  2. server: RDMA Read of that memory
//  3. server: Send of 16 octets, whose content means nothing
//  4. client: Send of 16 octets that name its sink memory
//  5. server: RDMA Write of what it has read, up to and with the first zero
//  6. server: Send of 16 octets
//
// A memory is named by a 64-bit address, a 32-bit key and a 32-bit length, in
// network order. The client compares sink and source: the Send of step 6 must
// not complete before the Write of step 5 is in memory (RFC 5041, Section
// 5.3; RFC 5040, Section 5.5).
package rping

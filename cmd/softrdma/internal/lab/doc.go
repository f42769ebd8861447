// Package lab builds a network of two hosts on one: two network namespaces
// joined by a veth pair, each with an address for a TCP/IP stack of our own
// and another one for the kernel's.
//
// The two addresses must never be the same: a kernel that owns an address
// answers every segment to it that it has no socket for with a reset, and
// would so end the connections of a stack in user space.
//
// The work is done by iproute2. A plan is a list of its commands, so that it
// can be printed, tested without rights and repeated by hand.
package lab

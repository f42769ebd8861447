// Package lab builds a network of two hosts on one: two network namespaces
// joined by a veth pair, each with an address for a TCP/IP stack of our own
// and another one for the kernel's.
//
// The two addresses must never be the same: a kernel that owns an address
// answers every segment to it that it has no socket for with a reset, and
// would so end the connections of a stack in user space.
//
// # The wire
//
// A link that loses, delays, reorders or doubles frames has a third namespace
// in its middle, the wire, with a veth pair to each side. What happens there
// happens to every backend alike; on the sides themselves it would not: a
// program on a veth's own ingress comes after a packet socket and after native
// XDP have taken the frame, and one on its egress tells the sender.
//
// Loss alone is done in the kernel: a bridge, and on the ingress of its two
// ports a BPF program that drops. Everything else is done by a process in the
// wire's namespace that carries frames between the two ports (see RunWire),
// since few kernels have a queueing discipline for it. The wire has no address
// and answers nothing.
//
// # What is run
//
// The work is done by iproute2, and where it has no command for something, by
// system calls. A plan is a list of steps, so that it can be printed, tested
// without rights and, where it is a command, repeated by hand. What cannot be
// found out from the kernel is kept in a directory under /run.
package lab

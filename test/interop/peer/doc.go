// Package peer plays the other side of rdma-core's example programs, over verbs and
// rdmacm alone, as an application would.
//
// # ucmatose (cmatose)
//
// The client opens all its connections at once, without private data, and posts its
// receives before. When all stand, the server sends a number of messages of one size on
// each, and then takes as many. The client takes its messages on all connections before
// it answers, out of the memory it has received into: each of its messages repeats the
// last one of the server. The server disconnects. Neither program looks at the data, or
// at the status of a completion: this side does.
//
// In MPA's client/server model the responder must not speak first (RFC 5044, Section
// 7.1.2), and that is what ucmatose's server does. It works in the peer-to-peer model (RFC
// 6581), and between peers that do not keep the rule.
//
// # rdma_client and rdma_server
//
// One connection: the client sends 16 octets, the server answers with 16, inline both;
// both disconnect. The C programs send zeros.
package peer

// Package demo runs the whole stack in memory: two devices, each with a TCP/IP
// stack of its own, on a link between them. It connects, moves data in every
// way and looks at what arrived with a check of its own, octet by octet; then
// it has a connection rejected and makes a peer refuse an access, to show both
// for what they are.
package demo

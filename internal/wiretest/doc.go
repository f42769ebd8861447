// Package wiretest holds what tests of the wire share: golden octets of every kind
// of frame, hostile ones, helpers for truncation, cutting and round trips, a raw
// peer that speaks iWARP octet by octet over any net.Conn, and tshark as a second
// opinion about a capture file.
//
// It imports none of the protocol packages and has a CRC of its own, so that a
// mistake there shows here instead of being made twice. Nothing in it is for
// production code.
//
// Everything that cannot run on a host skips with a message that begins with
// "LEFT OUT:"; the test runner collects these and prints them.
package wiretest

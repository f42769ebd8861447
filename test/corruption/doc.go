// Command corruption shows that no damage on the wire gets past the CRC of MPA. Two
// devices are joined by a link in memory that flips one bit in one of many frames,
// anywhere in the TCP payload, and makes the TCP checksum right again. Operations of
// every kind run over it, and every octet that they deliver is compared. A connection
// that ends is made anew.
//
//	go run ./test/corruption [-frames N] [-every M]
//
// With the CRC on nothing wrong may be delivered, no work request may succeed with
// wrong data, and the CRC terminations must be those that the flips explain: for each
// direction of each connection the link notes where in the stream it flipped, what
// FPDU that was, and whether the receiver had all of it. The first damaged FPDU of a
// direction is one CRC termination, and nothing else is. The command prints how every
// flip is accounted for and exits with 1 if the sums differ.
//
// Before that it runs without CRC, and fails if no wrong data is seen: a checker that
// cannot see damage would prove nothing.
//
// # How a flip is accounted for
//
// An octet that is flipped is flipped in every copy that TCP sends of it, and only
// octets that pass for the first time, and before those behind them, are chosen. So it
// does not matter which copy the receiver takes. (A frame that repeats what was acknowledged long ago is flipped for
// good measure; TCP drops it.)
//
//	hit         the FPDU is the first damaged one of its direction: one CRC termination
//	same FPDU   it was damaged already
//	behind      it lies behind the first damaged one, where nothing is parsed any more
//	cut short   the flip made an FPDU longer than what the sender still sent
//	undelivered the connection ended before the receiver had all of the FPDU
//	startup     it hit an MPA Request or Reply, which no CRC covers; what becomes of such
//	            a connection is shown and not counted
//	stale       it hit a copy of octets that were acknowledged before
package main

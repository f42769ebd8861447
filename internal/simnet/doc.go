// Package simnet is a network in memory, for tests.
//
// [StreamPair] is a byte stream without any TCP: what one end writes the other
// end reads. It starts no goroutine and looks at no clock, so that it can be
// used inside testing/synctest.
package simnet

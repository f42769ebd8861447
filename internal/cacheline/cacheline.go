// Package cacheline tells how far the processor that wrote some memory is from this one, and sends memory out of the
// processors' caches. It is for memory that one processor writes and another reads, again and again: a line that is in the
// cache of a reader far away costs its writer the way there and back before he may change it, and one that is in no cache
// costs him nothing.
package cacheline

import "time"

// Size is what a cache line takes, in octets.
const Size = 64

// probes are the lines that Distance looks at: in an order that no processor takes for a stream, or it would fetch ahead.
var probes = [...]int{37, 4, 55, 21, 62, 13, 44, 30}

// Span is how many octets Distance needs.
const Span = 64 * Size

// nothing is 0, which the compiler does not know.
var nothing int

// Distance returns how long a load of one line of b took, by the mean of eight that waited for each other. b has at least
// Span octets, which nobody has read here since another processor wrote them; with less it returns 0.
func Distance(b []byte) time.Duration {
	if len(b) < Span {
		return 0
	}
	v := int(b[Span-1]) // its page has been looked up then
	start := time.Now()
	for _, line := range probes {
		v = int(b[line*Size+v&nothing]) // where the next one is depends on it
	}
	took := time.Since(start) + time.Duration(v&nothing)
	return took / time.Duration(len(probes))
}

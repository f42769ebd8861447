package crc32c

import "hash/crc32"

// Octets are a polynomial over GF(2) here. The bit sent first, the least
// significant of the first octet, has the highest power. What a register of 128
// bits holds is low*x^64 + high, and its CRC, not inverted, is what crc32q makes
// of the two: (low*x^96 + high*x^32) mod P.
//
// A carry-less product is one bit shorter than its register, which so holds it
// times x. A constant of 32 bits in a register of 64 is there times x^32. Hence
// the 33 taken off below.

// folding moves a register n bits on and keeps the remainder: low is multiplied
// by x^(n+64) mod P, high by x^n mod P.
type folding struct{ low, high uint64 }

func foldingOver(n int) folding {
	return folding{uint64(power(n + 64 - 33)), uint64(power(n - 33))}
}

const maxShift = 512

var (
	// From a block to the next but one, where blocks have 64 octets and 16.
	foldNext512 = foldingOver(2 * 512)
	foldNext128 = foldingOver(2 * 128)

	// From each 16 octets of the last two blocks to the last 16.
	foldLast [8]folding

	// shift[i] moves the CRC of a stream over the 8*i octets that follow it: the
	// product belongs into low of the last register. The last constant is only
	// loaded, beside the one before it.
	shift [maxShift + 1]uint64

	// From word n on, a mask that leaves the last n of four words.
	frontMask = [8]uint64{4: ^uint64(0), 5: ^uint64(0), 6: ^uint64(0), 7: ^uint64(0)}
)

func init() {
	for i := range foldLast {
		foldLast[i] = foldingOver(128 * (len(foldLast) - 1 - i))
	}
	v := power(-96 - 1)
	for i := range shift {
		shift[i] = uint64(v)
		v = timesOctets(v, 8)
	}
}

// power returns x^n mod P, bit-reflected.
func power(n int) uint32 {
	v := uint32(1) << 31
	for ; n < 0; n++ { // divides by x: P, which is 0 here, makes up for a missing one
		v = v<<1 ^ v>>31*(poly<<1&(1<<32-1)|1)
	}
	for ; n%8 > 0; n-- {
		v = v>>1 ^ v&1*poly
	}
	return timesOctets(v, n/8)
}

// timesOctets returns v*x^(8n) mod P: what n octets of zeros make of a CRC.
func timesOctets(v uint32, n int) uint32 {
	return ^crc32.Update(^v, table, make([]byte, n))
}

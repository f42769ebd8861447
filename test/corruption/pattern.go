package main

import "encoding/binary"

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// step keeps the words of one seed apart.
const step = 0x9e3779b97f4a7c15

// fill writes the octets of seed to b.
func fill(b []byte, seed uint64) {
	for seed = mix(seed); len(b) >= 8; b = b[8:] {
		seed += step
		binary.LittleEndian.PutUint64(b, seed^seed>>29)
	}
	if len(b) > 0 {
		var w [8]byte
		seed += step
		binary.LittleEndian.PutUint64(w[:], seed^seed>>29)
		copy(b, w[:])
	}
}

// differ returns the first position where b is not what fill writes, -1 if there is
// none.
func differ(b []byte, seed uint64) int {
	at := 0
	for seed = mix(seed); len(b)-at >= 8; at += 8 {
		seed += step
		if binary.LittleEndian.Uint64(b[at:]) != seed^seed>>29 {
			return at + first(b[at:at+8], seed^seed>>29)
		}
	}
	if at < len(b) {
		seed += step
		if i := first(b[at:], seed^seed>>29); i >= 0 {
			return at + i
		}
	}
	return -1
}

func first(b []byte, w uint64) int {
	for i := range b {
		if b[i] != byte(w>>(8*i)) {
			return i
		}
	}
	return -1
}

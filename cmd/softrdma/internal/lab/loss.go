package lab

import "math"

// lossName is what the BPF program that loses frames, and the map with its
// counters, are called in the kernel: there at most 15 octets.
const lossName = "softrdma_loss"

// The wire of a bridge draws a number for each frame as splitmix64 does: the
// n-th one is a hash of the seed and n. So the program needs no state but a
// count, and the same seed loses the same frames.
const (
	splitStep = 0x9e3779b97f4a7c15
	splitMul1 = 0xbf58476d1ce4e5b9
	splitMul2 = 0x94d049bb133111eb
)

// draw is the n-th number, of 32 bits.
func draw(seed, n uint64) uint64 {
	z := seed + (n+1)*splitStep
	z = (z ^ z>>30) * splitMul1
	z = (z ^ z>>27) * splitMul2
	return (z ^ z>>31) >> 32
}

// threshold is what a number must be below for its frame to be lost.
func threshold(p float64) uint64 { return uint64(math.Round(p * (1 << 32))) }

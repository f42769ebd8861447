//go:build race

package mempool

// The race detector sees Go's heap alone, so that is where all pools are.
const raceEnabled = true

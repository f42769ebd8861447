//go:build race

package rdmap

// slow divides the rounds of the long tests: the race detector takes its time.
const slow = 10

//go:build !race

package rdmap

// slow divides the rounds of the long tests.
const slow = 1

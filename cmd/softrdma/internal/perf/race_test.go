//go:build race

package perf

// raceEnabled tells that the race detector runs. It takes a program that polls
// memory which a peer writes for a mistake, rightly, as a Write tells nobody.
const raceEnabled = true

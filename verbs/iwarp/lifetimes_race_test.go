//go:build race

package iwarp_test

// raceEnabled makes crowds smaller: the race detector is ten times as slow.
const raceEnabled = true

//go:build race

package main

// raceDetector keeps memory of its own for all that was ever used.
const raceDetector = true

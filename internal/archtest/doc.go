// Package archtest holds the import law of this module as a test: calls go
// down, values come up, and each outside library has its one room. The table is
// in rules_test.go; a new package gets a line there.
package archtest

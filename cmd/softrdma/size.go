package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// sizeFlag is a number of octets on the command line: 4096, or 64K, 1M, 2G in
// powers of 1024.
type sizeFlag int

func (f *sizeFlag) String() string { return strconv.Itoa(int(*f)) }

// Type is what help calls it.
func (f *sizeFlag) Type() string { return "octets" }

// Set reads s.
func (f *sizeFlag) Set(s string) error {
	shift := 0
	number := strings.TrimSuffix(strings.TrimSuffix(s, "B"), "i")
	if n := len(number); n > 0 {
		if i := strings.IndexByte("KMG", strings.ToUpper(number)[n-1]); i >= 0 {
			shift, number = 10*(i+1), number[:n-1]
		}
	}
	v, err := strconv.ParseInt(number, 10, 64)
	if err != nil || shift == 0 && number != s || v > math.MaxInt>>shift || v < math.MinInt>>shift {
		return fmt.Errorf("%q is no number of octets; write 4096, 64K or 1M", s)
	}
	*f = sizeFlag(v << shift)
	return nil
}

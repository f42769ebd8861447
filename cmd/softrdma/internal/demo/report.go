package demo

import (
	"fmt"
	"time"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/pattern"
)

// Schema names the form of a Report in JSON.
const Schema = "softrdma.demo/v1"

// Outcome is how a demo ended.
type Outcome string

const (
	OK        Outcome = "ok"         // every step did what it should
	CRCError  Outcome = "crc_error"  // damage on the link was noticed and ended the connection; no wrong octet was delivered
	WrongData Outcome = "wrong_data" // octets were delivered that were never sent
	Failed    Outcome = "failed"     // a step did not work
)

// Report is a whole demo.
type Report struct {
	Schema  string        `json:"schema"`
	Outcome Outcome       `json:"outcome"`
	Error   string        `json:"error,omitempty"`
	MTU     int           `json:"mtu"`
	CRC     bool          `json:"crc"`
	Flip    float64       `json:"flip"`
	Seed    uint64        `json:"seed"`
	Flipped uint64        `json:"flipped"` // frames that the link damaged
	FPDUs   uint64        `json:"fpdus"`   // that the first host sent and took; a capture has as many
	Took    time.Duration `json:"took_ns"`
	Steps   []Step        `json:"steps"`
}

// Step is one line of a demo.
type Step struct {
	Name   string        `json:"name"`   // link, connect, send, write, read, ...
	What   string        `json:"what"`   // for people
	Octets int           `json:"octets"` // moved; 0 where it is not about data
	Took   time.Duration `json:"took_ns"`
	OK     bool          `json:"ok"`
	Detail string        `json:"detail,omitempty"`    // what came out
	Status string        `json:"status,omitempty"`    // of the work completion, where it is not success
	Code   string        `json:"code,omitempty"`      // layer, type and code of a Terminate, as in 0x0102
	CRC    bool          `json:"crc_error,omitempty"` // the damage on the link was noticed
	Wrong  int           `json:"wrong,omitempty"`     // octets that differ from what was sent
	At     []int         `json:"at,omitempty"`        // where the first of them are
}

// wrongData makes a step out of octets that are not right.
func (s *Step) wrongData(where string, d pattern.Diff) {
	s.OK = false
	s.Wrong += d.Wrong
	if s.At == nil {
		s.At = d.Offsets
	}
	s.Detail = join(s.Detail, fmt.Sprintf("wrong data in %s: %v", where, d))
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// Size prints a number of octets the short way.
func Size(n int) string {
	switch {
	case n >= 1<<30 && n%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/softrdma/softrdma/verbs/iwarp"
)

// protocolFlags say how connections are set up. Both sides have a word in it;
// each side's flags are its own.
type protocolFlags struct {
	noCRC   bool
	markers bool
	rev     string
	rtr     []string
	large   bool
}

func (f *protocolFlags) register(set *pflag.FlagSet) {
	set.BoolVar(&f.noCRC, "no-crc", false, "do not ask for the CRC of MPA; it is used all the same if the peer asks")
	set.BoolVar(&f.markers, "markers", false, "ask the peer for markers in what it sends; siw refuses")
	set.StringVar(&f.rev, "rev", "", "revision of MPA: 1 or 2, and no other; 2, or 1 with a peer that resets it, if left out")
	set.StringSliceVar(&f.rtr, "rtr", nil, "what may open a connection, to offer and to take: read, write, send, or none; "+
		"read is offered, read and write are taken, if left out")
	set.BoolVar(&f.large, "large-fpdus", false, "FPDUs of up to 64 KiB instead of one per TCP segment, where both sides say so")
}

// set puts what the flags say into p.
func (f *protocolFlags) set(p *iwarp.Protocol) error {
	p.NoCRC, p.Markers, p.LargeFPDUs = f.noCRC, f.markers, f.large
	switch f.rev {
	case "":
	case "1":
		p.Rev1 = true
	case "2":
		p.RequireRev2 = true
	default:
		return usagef("take 1 or 2, or leave it out", "--rev: there is no revision %q of MPA", f.rev)
	}
	if len(f.rtr) == 0 {
		return nil
	}
	kinds, err := parseRTR(f.rtr)
	if err != nil {
		return usagef("take read, write, send or none; read,write for several", "--rtr: %w", err)
	}
	switch {
	case kinds == 0:
		p.ClientServer = true
	case !p.Rev1:
		p.OfferRTR, p.TakeRTR = kinds, kinds
	case kinds == iwarp.RTRRead:
		p.LegacyRTR = true
	default:
		return usagef("take read, which cxgb4 waits for, or none", "--rtr: revision 1 of MPA negotiates no message that opens a connection")
	}
	return nil
}

// parseRTR returns the set of the named messages; none is no message.
func parseRTR(names []string) (kinds iwarp.RTR, err error) {
	for _, name := range names {
		k, found := map[string]iwarp.RTR{"none": 0, "read": iwarp.RTRRead, "write": iwarp.RTRWrite, "send": iwarp.RTRSend}[strings.TrimSpace(name)]
		switch {
		case !found:
			return 0, fmt.Errorf("no message %q opens a connection", name)
		case k == 0 && len(names) > 1:
			return 0, fmt.Errorf("none excludes all others")
		}
		kinds |= k
	}
	return kinds, nil
}

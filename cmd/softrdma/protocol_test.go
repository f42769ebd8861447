package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/verbs/iwarp"
)

func TestProtocolFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want iwarp.Protocol
	}{
		{nil, iwarp.Protocol{}},
		{[]string{"--no-crc", "--markers", "--large-fpdus"}, iwarp.Protocol{NoCRC: true, Markers: true, LargeFPDUs: true}},
		{[]string{"--rev", "1"}, iwarp.Protocol{Rev1: true}},
		{[]string{"--rev=2"}, iwarp.Protocol{RequireRev2: true}},
		{[]string{"--rtr", "none"}, iwarp.Protocol{ClientServer: true}},
		{[]string{"--rtr", "read"}, iwarp.Protocol{OfferRTR: iwarp.RTRRead, TakeRTR: iwarp.RTRRead}},
		{[]string{"--rtr", "write", "--rtr", "send"}, iwarp.Protocol{OfferRTR: iwarp.RTRWrite | iwarp.RTRSend, TakeRTR: iwarp.RTRWrite | iwarp.RTRSend}},
		{[]string{"--rtr", "write,read"}, iwarp.Protocol{OfferRTR: iwarp.RTRWrite | iwarp.RTRRead, TakeRTR: iwarp.RTRWrite | iwarp.RTRRead}},
		{[]string{"--rev", "1", "--rtr", "read"}, iwarp.Protocol{Rev1: true, LegacyRTR: true}},
		{[]string{"--rev", "1", "--rtr", "none"}, iwarp.Protocol{Rev1: true, ClientServer: true}},
	} {
		got, err := parseDevice(t, nil, c.args...)
		require.NoError(t, err, "%v", c.args)
		require.Equal(t, c.want, got.Protocol, "%v", c.args)
	}
	for _, args := range [][]string{
		{"--rev", "0"}, {"--rev", "3"}, {"--rev", "two"}, {"--rtr", "blink"}, {"--rtr", "none,read"},
		{"--rev", "1", "--rtr", "write"}, {"--rev", "1", "--rtr", "read,send"},
	} {
		_, err := parseDevice(t, nil, args...)
		require.Error(t, err, "%v", args)
	}
}

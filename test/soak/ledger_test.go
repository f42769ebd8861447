package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/verbs"
)

// Everything that may be wrong with a completion is told.
func TestLedger(t *testing.T) {
	const base = 3<<48 | 7<<32
	ok := func(num uint64, op verbs.Opcode, n uint32) verbs.WC {
		return verbs.WC{ID: base | num, Op: op, ByteLen: n, QP: 9}
	}
	bad := func(num uint64, s verbs.WCStatus) verbs.WC { return verbs.WC{ID: base | num, Status: s, QP: 9} }
	for _, c := range []struct {
		name string
		wcs  []verbs.WC
		want string // of the last one
		open bool
	}{
		{"all in order", []verbs.WC{ok(0, verbs.OpSend, 0), ok(2, verbs.OpRead, 50), ok(3, verbs.OpWrite, 0)}, "", false},
		{"the last is missing", []verbs.WC{ok(0, verbs.OpSend, 0), ok(2, verbs.OpRead, 50)}, "", true},
		{"one is missing", []verbs.WC{ok(0, verbs.OpSend, 0), ok(3, verbs.OpWrite, 0)}, "while 2 has none", true},
		{"one comes twice", []verbs.WC{ok(0, verbs.OpSend, 0), ok(0, verbs.OpSend, 0)}, "completed already", true},
		{"one comes late", []verbs.WC{ok(0, verbs.OpSend, 0), ok(2, verbs.OpRead, 50), ok(1, verbs.OpSend, 0)}, "completed already", true},
		{"an unsignaled one", []verbs.WC{ok(0, verbs.OpSend, 0), ok(1, verbs.OpSend, 0)}, "unsignaled", true},
		{"one that was not posted", []verbs.WC{ok(4, verbs.OpSend, 0)}, "of 4 posted ones", true},
		{"one of another queue", []verbs.WC{{ID: 1}}, "never posted here", true},
		{"another operation", []verbs.WC{ok(0, verbs.OpWrite, 0)}, "says RDMA_WRITE", true},
		{"another length", []verbs.WC{ok(0, verbs.OpSend, 0), ok(2, verbs.OpRead, 49)}, "says 49 octets", true},
		{"all flushed", []verbs.WC{bad(0, verbs.WCWRFlushErr), bad(1, verbs.WCWRFlushErr), bad(2, verbs.WCRemAccessErr), bad(3, verbs.WCWRFlushErr)}, "", false},
		{"flushed but for one", []verbs.WC{bad(0, verbs.WCWRFlushErr), bad(2, verbs.WCWRFlushErr)}, "while 1 has none", true},
		{"success behind a failure", []verbs.WC{bad(0, verbs.WCWRFlushErr), bad(1, verbs.WCWRFlushErr), ok(2, verbs.OpRead, 50)}, "success behind", true},
		{"two failures", []verbs.WC{bad(0, verbs.WCRemOpErr), bad(1, verbs.WCRemAccessErr)}, "a second request", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLedger(3, 7, false)
			for _, e := range []entry{
				{true, verbs.OpSend, 10, false}, {false, verbs.OpSend, 10, false},
				{true, verbs.OpRead, 50, true}, {true, verbs.OpWrite, 60, false}, {true, verbs.OpSend, 1, false},
			} {
				l.post(e)
			}
			l.unpost(1)
			for i := range c.wcs {
				_, err := l.complete(&c.wcs[i])
				if i < len(c.wcs)-1 || c.want == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.want)
				}
			}
			require.Equal(t, c.open, l.open())
		})
	}
}

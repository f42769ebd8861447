package capture

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
)

// TestCheck plays short sessions of which the initiator's part breaks one rule each.
func TestCheck(t *testing.T) {
	untagged, tagged := wiretest.Untagged, wiretest.Tagged
	hi := []byte("hi")
	for _, row := range []struct {
		name string
		say  [][]byte // ULPDUs of the initiator
		back [][]byte // ULPDUs of the responder, after the first of the initiator
		want string   // part of the only finding; empty: none
	}{
		{"DDP-18 a message in two segments", [][]byte{untagged(3, false, 0, 0, 1, 0, hi), untagged(3, true, 0, 0, 1, 2, hi)}, nil, ""},
		{"DDP-06 a skipped MSN", [][]byte{untagged(3, true, 0, 0, 2, 0, hi)}, nil, "MSN is 2"},
		{"DDP-06 the same MSN again", [][]byte{untagged(3, true, 0, 0, 1, 0, hi), untagged(3, true, 0, 0, 1, 0, hi)}, nil, "MSN is 1, the next one is 2"},
		{"DDP-14 queues count apart", [][]byte{untagged(3, true, 0, 0, 1, 0, hi), wiretest.ReadRequest(1, 9, 0, 0, 9, 0)},
			[][]byte{tagged(2, true, 9, 0, nil)}, ""},
		{"DDP-18 the first MO", [][]byte{untagged(3, true, 0, 0, 1, 4, hi)}, nil, "first MO is 4"},
		{"DDP-18 a gap in MO", [][]byte{untagged(3, false, 0, 0, 1, 0, hi), untagged(3, true, 0, 0, 1, 3, hi)}, nil, "MO is 3 after 2"},
		{"DDP-19 a gap in TO", [][]byte{tagged(0, false, 9, 100, hi), tagged(0, true, 9, 103, hi)}, nil, "TO is 0x67"},
		{"DDP-19 another STag", [][]byte{tagged(0, false, 9, 100, hi), tagged(0, true, 8, 102, hi)}, nil, "another message begins"},
		{"DDP-21 two messages mixed", [][]byte{untagged(3, false, 0, 0, 1, 0, hi), tagged(0, true, 9, 0, hi)}, nil, "another message begins"},
		{"DDP-16 an empty segment with more to come", [][]byte{untagged(3, false, 0, 0, 1, 0, nil), untagged(3, true, 0, 0, 1, 0, nil)}, nil, "empty segment"},
		{"RDM-51 a message after the Terminate", [][]byte{wiretest.Terminate(0x2002), untagged(3, true, 0, 0, 1, 0, hi)}, nil, "follows the Terminate"},
		{"RDM-56 a Terminate instead of the rest", [][]byte{untagged(3, false, 0, 0, 1, 0, hi), wiretest.Terminate(0x0000)}, nil, ""},
		{"RDM-05 Invalidate STag where there is none", [][]byte{untagged(3, true, 7, 0, 1, 0, hi)}, nil, "Invalidate STag is not zero"},
		{"DDP-02 reserved bits", [][]byte{append([]byte{0x45}, untagged(3, true, 0, 0, 1, 0, hi)[1:]...)}, nil, "reserved bits"},
		{"RDM-13 a Read and its Response", [][]byte{wiretest.ReadRequest(1, 9, 100, 4, 8, 0)},
			[][]byte{tagged(2, false, 9, 100, hi), tagged(2, true, 9, 102, hi)}, ""},
		{"RDM-13 a Response to another place", [][]byte{wiretest.ReadRequest(1, 9, 100, 2, 8, 0)}, [][]byte{tagged(2, true, 9, 101, hi)}, "another place"},
		{"RDM-33 a short Response", [][]byte{wiretest.ReadRequest(1, 9, 100, 3, 8, 0)}, [][]byte{tagged(2, true, 9, 100, hi)}, "asked for 3"},
		{"RDM-31 a Response nobody asked for", [][]byte{untagged(3, true, 0, 0, 1, 0, hi)}, [][]byte{tagged(2, true, 9, 100, hi)}, "without a request"},
		{"RDM-15 Responses in order", [][]byte{wiretest.ReadRequest(1, 9, 100, 2, 8, 0), wiretest.ReadRequest(2, 9, 200, 2, 8, 0)},
			[][]byte{tagged(2, true, 9, 100, hi), tagged(2, true, 9, 200, hi)}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := openCRC(t)
			c.say(0, 1460, wiretest.Frame(row.say[0], true))
			for _, u := range row.say[1:] {
				c.say(0, 1460, wiretest.Frame(u, true))
			}
			for _, u := range row.back {
				c.say(1, 1460, wiretest.Frame(u, true))
			}
			s := c.decode()
			require.NoError(t, s.Err())
			found := s.All[0].Check()
			if row.want == "" {
				require.Empty(t, found)
				return
			}
			require.NotEmpty(t, found)
			require.Contains(t, found[0].String(), row.want)
		})
	}
}

func TestCheckStart(t *testing.T) {
	hello := wiretest.Frame(wiretest.Untagged(3, true, 0, 0, 1, 0, []byte("hello")), false)
	open := func(reply wiretest.Startup) *conversation {
		c := newConversation(t)
		c.say(0, 1460, wiretest.Startup{Flags: wiretest.FlagS, Rev: 2, Private: wiretest.Block(wiretest.BlockA|1, wiretest.BlockC|wiretest.BlockD|1)}.Octets())
		reply.Reply, reply.Flags, reply.Rev = true, wiretest.FlagS, 2
		c.say(1, 1460, reply.Octets())
		return c
	}
	rules := func(c *conversation) string {
		var b strings.Builder
		for _, f := range c.decode().All[0].Check() {
			b.WriteString(f.Rule)
		}
		return b.String()
	}
	t.Run("MPA-13 the responder waits for the first FPDU", func(t *testing.T) {
		c := open(wiretest.Startup{Private: wiretest.Block(1, 1)})
		c.say(1, 1460, hello)
		require.Contains(t, rules(c), "the responder sent before")
	})
	t.Run("MPA-46 the first FPDU is the RTR that was agreed", func(t *testing.T) {
		readOnly := wiretest.Startup{Private: wiretest.Block(wiretest.BlockA|1, wiretest.BlockD|1)}
		c := open(readOnly)
		c.say(0, 1460, hello)
		require.Contains(t, rules(c), "not an agreed RTR")
		c = open(readOnly)
		c.say(0, 1460, wiretest.Frame(wiretest.Tagged(0, true, 1, 0, nil), false))
		require.Contains(t, rules(c), "not an agreed RTR", "a Write where only Read was agreed")
		c = open(readOnly)
		c.say(0, 1460, wiretest.Frame(wiretest.ReadRequest(1, 1, 0, 0, 1, 0), false))
		require.Empty(t, rules(c))
	})
}

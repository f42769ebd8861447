package main

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRows(t *testing.T) {
	all := rows(20)
	names := map[string]bool{}
	var here []string // all values that occur
	for _, r := range all {
		require.False(t, names[r.name()], r.name())
		names[r.name()] = true
		require.NotContains(t, r.name(), " ")
		here = append(here, r.values()...)
	}
	for _, want := range slices.Concat(kinds, backends, roles, []string{"ipv4", "ipv6", "mtu1500", "mtu9000", "crc", "nocrc",
		"rping 1x20x26", "rping 1x20x100", "rping 1x20x65535", "ucmatose 30x10x100", "rdma_client 1x1x16"}) {
		require.Contains(t, here, want)
	}
	// rping runs with all combinations of the rest.
	n := 0
	for _, r := range all {
		if r.Program == "rping" && r.MTU == 1500 {
			n++
		}
	}
	require.Equal(t, len(kinds)*len(backends)*len(roles)*len(families)*4*2, n)
}

func TestCover(t *testing.T) {
	all := rows(20)
	for n := 1; n <= 3; n++ {
		some := cover(all, n)
		require.Less(t, len(some), len(all)/4)
		met := map[string]bool{}
		for _, r := range some {
			for _, s := range subsets(r.values(), n) {
				met[s] = true
			}
		}
		for _, r := range all {
			for _, s := range subsets(r.values(), n) {
				require.True(t, met[s], "%s of %s", s, r.name())
			}
		}
		require.Equal(t, some, cover(all, n), "the same every time")
		// Grouped by guest and link, as in the whole matrix.
		require.True(t, slices.IsSortedFunc(some, func(a, b Row) int {
			return cmp.Or(slices.Index(kinds, a.Kind)-slices.Index(kinds, b.Kind), a.MTU-b.MTU)
		}))
	}
	require.Equal(t, []string{"a,b,", "a,c,", "b,c,"}, subsets([]string{"a", "b", "c"}, 2))
}

func TestPossible(t *testing.T) {
	for _, r := range rows(20) {
		require.False(t, r.guestProgram() == "rdma_server" && r.Family == 6, "it listens on IPv4 alone")
		require.Equal(t, r.Kind == "siw" && r.guestProgram() == "ucmatose" && r.Role == "server", r.Held())
		if r.Program == "ucmatose" && r.Load.Count <= 32 {
			require.LessOrEqual(t, r.Load.Conns, 36, "siw's limit of queues in a process")
		}
	}
}

func TestWantCRC(t *testing.T) {
	for _, row := range []struct {
		kind, role string
		asked      bool
		want       bool
	}{
		{"siw", "client", true, true},
		{"siw", "client", false, false},
		{"siw", "server", true, true},
		{"siw", "server", false, false},
		{"siw-strict", "client", true, true},
		{"siw-strict", "client", false, false}, // no siw turns the CRC on as responder
		{"siw-strict", "server", true, true},
		{"siw-strict", "server", false, true},
	} {
		t.Run(fmt.Sprintf("MPA-22 %s %s %v", row.kind, row.role, row.asked), func(t *testing.T) {
			require.Equal(t, row.want, Row{Kind: row.kind, Role: row.role, CRC: row.asked}.WantCRC())
		})
	}
}

func TestOptions(t *testing.T) {
	o, err := options([]string{"-meet", "0", "-only", "^siw-strict-rping.*-kernel-client-ipv6-mtu1500-crc$"})
	require.NoError(t, err)
	require.Len(t, o.rows(), 4, "one for each size")
	o, err = options(nil)
	require.NoError(t, err)
	require.Less(t, len(o.rows()), 100)
	for _, bad := range [][]string{{"-meet", "8"}, {"-pings", "0"}, {"-only", "("}, {"more"}} {
		_, err := options(bad)
		require.Error(t, err, "%q", bad)
	}
}

package main

import (
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The tables refer to each other, and to all of each other.
func TestTables(t *testing.T) {
	names := make(map[string]bool)
	for _, c := range cells() {
		require.False(t, names[c.name], c.name)
		names[c.name] = true
	}
	used := make(map[string]bool)
	for i, f := range figures() {
		require.Equal(t, i+1, f.id)
		require.NotEmpty(t, f.ours.cells)
		require.Equal(t, f.than == "", len(f.other.cells) == 0, f.title())
		for _, name := range slices.Concat(f.ours.cells, f.other.cells) {
			require.True(t, names[name], "%s: no cell %q", f.title(), name)
			used[name] = true
		}
		if f.than != "" {
			require.Equal(t, f.ours.metric, f.other.metric, f.title())
		}
		require.Equal(t, f.floor == 0, f.aim == 0, f.title())
		if f.floor != 0 {
			require.True(t, f.reaches(f.aim, f.floor), "%s: who reaches the aim has reached the floor", f.title())
			require.False(t, f.reaches(f.floor, f.aim), f.title())
		}
	}
	require.Equal(t, names, used, "every cell is for a figure")
	require.Len(t, slices.DeleteFunc(figures(), func(f figure) bool { return f.floor == 0 }), 18)
}

func TestPlan(t *testing.T) {
	all := makePlan(figures(), cells(), nil)
	require.Len(t, all.figures, len(figures()))
	require.Len(t, all.cells, len(cells()))
	require.Len(t, slices.Concat(all.on(clean), all.on(lossy)), len(cells()))

	some := makePlan(figures(), cells(), regexp.MustCompile("^(1|11) "))
	require.Len(t, some.figures, 2)
	var names []string
	for _, c := range some.cells {
		names = append(names, c.name)
	}
	require.Equal(t, []string{"packet WRITE 64 B lat", "TCP blocking 64 B lat", "packet WRITE 64 B rate"}, names)
	require.Empty(t, some.on(lossy))
	require.Empty(t, makePlan(figures(), cells(), regexp.MustCompile("teleport")).figures)
}

// Each kind of softrdma's measurements is checked once on each wire.
func TestChecks(t *testing.T) {
	p := makePlan(figures(), cells(), nil)
	for _, w := range []wire{clean, lossy} {
		list := p.checks(w)
		for i, r := range list {
			require.True(t, r.verify)
			require.NotContains(t, list[i+1:], r)
		}
		for _, c := range p.on(w) {
			if r, ok := c.run.(perfRun); ok {
				r.verify = true
				require.Contains(t, list, r)
			}
		}
	}
}

func TestOrder(t *testing.T) {
	list := []cell{{name: "a"}, {name: "b"}, {name: "c"}}
	require.Equal(t, list, order(list, 0))
	require.Equal(t, []cell{{name: "c"}, {name: "b"}, {name: "a"}}, order(list, 1))
	require.Equal(t, list, order(list, 2))
	require.Equal(t, "a", list[0].name, "the plan stays as it is")
}

// Both ends of a measurement have the same settings.
func TestCommands(t *testing.T) {
	const each = 2 * time.Second
	p := perfRun{backend: "xdp-generic", op: "write", kind: "bw", size: large, noCRC: true}.pair("softrdma", each)
	for _, argv := range [][]string{p.server, p.client} {
		require.Contains(t, argv, "--no-crc")
		require.Equal(t, "xdp", argv[slices.Index(argv, "--backend")+1])
		require.Equal(t, "generic", argv[slices.Index(argv, "--xdp-mode")+1])
	}
	require.Contains(t, p.server, "sr-a")
	require.Contains(t, p.client, "sr-b")
	require.Contains(t, p.client, sideA.own)
	require.NotContains(t, p.client, "--verify")
	require.Equal(t, "0s", p.client[slices.Index(p.client, "--warmup")+1])

	tcp := tcpRun{carrier: "tcp-blocking", kind: "bw", size: small, depth: smallBatch}.pair("softrdma", each)
	ours := perfRun{backend: "packet", op: "write", kind: "bw", size: small, depth: smallBatch}.pair("softrdma", each)
	for _, flag := range []string{"-s", "-D", "-t", "--warmup"} {
		require.Equal(t, ours.client[slices.Index(ours.client, flag)+1], tcp.client[slices.Index(tcp.client, flag)+1], flag)
	}
	for _, argv := range [][]string{tcp.server, tcp.client} {
		require.NotContains(t, argv, "packet", "nothing but TCP on the wire")
		require.NotContains(t, argv, "--dev")
	}
	require.Contains(t, tcp.client, sideA.kernel)

	require.Equal(t, [2][]string{{"UCX_TLS=tcp", "UCX_NET_DEVICES=sr-a"}, {"UCX_TLS=tcp", "UCX_NET_DEVICES=sr-b"}}, ucxRun{test: "tag_lat", size: small}.pair(each).env)
	f := fabricRun{size: small}.pair(each)
	require.Equal(t, append(slices.Clone(f.server), sideA.kernel), f.client, "fi_pingpong has to be told the same on both sides")
}

func TestOptions(t *testing.T) {
	o, err := parseOptions(nil, nil)
	require.NoError(t, err)
	require.Equal(t, 10, o.rounds)
	require.Equal(t, 2*time.Second, o.each)
	o, err = parseOptions([]string{"-quick", "-rounds", "2", "-figures", "^1 "}, nil)
	require.NoError(t, err)
	require.Equal(t, 2, o.rounds, "what is given counts")
	require.Equal(t, 200*time.Millisecond, o.each)
	require.True(t, o.rows.MatchString("1 x"))
	for _, args := range [][]string{{"-rounds", "0"}, {"-seconds", "0"}, {"-figures", "("}, {"x"}} {
		_, err := parseOptions(args, nil)
		require.Error(t, err, "%v", args)
	}
}

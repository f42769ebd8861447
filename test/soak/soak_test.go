package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/leakcheck"
	"github.com/softrdma/softrdma/pktio"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// short is a run for tests.
func short(t *testing.T, d time.Duration) *options {
	return &options{
		Seed: 20, Duration: d, Lanes: 8, MaxSize: 64 << 10, Rounds: 10, Link: "pipe", MTU: 1500,
		Every: time.Hour, Hang: 2 * time.Minute, Allowance: 256, Dump: t.TempDir(), JSON: true,
	}
}

// soaked runs o in this process and returns the result.
func soaked(t *testing.T, o *options, begun func(ends [2]*end, link []*pktio.Faulty)) *result {
	var r result
	require.NoError(t, o.check())
	p := &printer{o: o, out: &bytes.Buffer{}, log: &bytes.Buffer{}}
	require.NoError(t, soakHere(context.Background(), p, &r, begun))
	return &r
}

func TestSoak(t *testing.T) {
	for name, change := range map[string]func(o *options){
		"pipe":     func(o *options) {},
		"bad link": func(o *options) { o.Faults = pktio.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, Corrupt: 0.01} },
		"loopback": func(o *options) { o.Link = "loopback" },
	} {
		t.Run(name, func(t *testing.T) {
			o := short(t, time.Second)
			change(o)
			r := soaked(t, o, nil)
			require.Empty(t, r.Failures)
			require.NotZero(t, r.Total.Octets)
			require.NotZero(t, r.Total.Generations)
			for _, k := range []string{"send", "write", "read"} {
				require.NotZero(t, r.Total.Operations[k])
			}
		})
	}
}

// One octet that changes where none may is found, whether something was to be written
// there or not.
func TestSoakFindsAWrongOctet(t *testing.T) {
	for _, area := range []int{areaTarget, areaInbox, areaSink, areaExport} {
		t.Run(areaNames[area], func(t *testing.T) {
			r := soaked(t, short(t, 500*time.Millisecond), func(ends [2]*end, _ []*pktio.Faulty) {
				m := ends[1].lanes[3].memory
				m.raw[area][guard-1] ^= 0x40 // nothing else comes there, so that the race detector has no reason to speak
			})
			require.NotEmpty(t, r.Failures)
			require.Contains(t, r.Failures[0]+r.Failures[len(r.Failures)-1], "end b, lane 3, generation 1")
			require.Contains(t, r.Failures[0], "WRONG OCTETS: "+areaNames[area]+", offset -1")
		})
	}
}

// Octets of another place are named.
func TestMemoryNamesWhatIsWrong(t *testing.T) {
	o := short(t, time.Second)
	m := newMemory(o, 1, 2)
	what := mark{markData, 0, 2, 7, 3*maxOps + 4}
	m.pat.fill(m.at(areaInbox, 100, 50), what, 10)
	require.NoError(t, m.want(areaInbox, 100, 50, what, 10))
	err := m.want(areaInbox, 100, 50, what, 11) // as if all had come one octet late
	require.ErrorContains(t, err, "want octet 11 of the payload of round 3, operation 4 of end a, lane 2, generation 7, found octet 10 of the payload of round 3")
	require.ErrorContains(t, m.untouched(areaInbox, 0, 200), "offset 100")

	// Of what comes before an end, the first octets have come and no others.
	f := prefix{m: m}
	m.restore(areaInbox, 120, 30)
	require.NoError(t, f.next(areaInbox, piece{100, 50}, what, 10))
	require.NoError(t, f.next(areaInbox, piece{200, 50}, what, 60))
	m.pat.fill(m.at(areaInbox, 300, 50), what, 110)
	require.ErrorContains(t, f.next(areaInbox, piece{300, 50}, what, 110), "no prefix")
}

// A link that carries nothing any more is a hang, and all that is known goes to a file.
func TestSoakFindsAHang(t *testing.T) {
	o := short(t, time.Minute)
	o.Hang, o.Rounds, o.NoEndings = 3*time.Second, 100000, true
	r := soaked(t, o, func(_ [2]*end, link []*pktio.Faulty) {
		time.AfterFunc(300*time.Millisecond, func() { link[0].Cut(true) })
	})
	require.NotEmpty(t, r.Failures)
	require.Contains(t, r.Failures[0], "HANG: end ")
	files, err := os.ReadDir(o.Dump)
	require.NoError(t, err)
	require.NotEmpty(t, files)
	b, err := os.ReadFile(o.Dump + "/" + files[0].Name())
	require.NoError(t, err)
	for _, want := range []string{"lane 7: last progress", "go run ./test/soak --seed 20", "mpa.fpdus_in", "goroutine "} {
		require.Contains(t, string(b), want)
	}
}

func TestShares(t *testing.T) {
	for s, want := range map[string]float64{"1%": 0.01, "0.1%": 0.001, "0.05": 0.05, "0": 0} {
		v, err := parseShare(s)
		require.NoError(t, err)
		require.InDelta(t, want, v, 1e-12)
	}
	_, err := parseShare("few")
	require.ErrorContains(t, err, "no share")
}

// What two processes say is put together once both have said it.
func TestMergerAddsUp(t *testing.T) {
	o := short(t, time.Second)
	var out bytes.Buffer
	m := &merger{p: &printer{o: o, out: &bytes.Buffer{}, log: &out}, n: &network{o: o}}
	line := func(final bool, failures ...string) *bytes.Reader {
		s := snapshot{Operations: map[string]uint64{"send": 3}, Ends: map[string]uint64{}, Counters: map[string]uint64{}, Octets: 5, Host: host{Goroutines: 2}}
		b, err := json.Marshal(endLine{Snapshot: s, Final: final, Failures: failures})
		require.NoError(t, err)
		return bytes.NewReader(append(b, '\n'))
	}
	require.NoError(t, m.read(0, line(false)))
	require.Empty(t, out.String())
	require.NoError(t, m.read(1, line(false)))
	require.Contains(t, out.String(), "6 operations (send 6 ")
	require.NoError(t, m.read(0, line(true)))
	var r result
	m.finish(&r)
	require.Equal(t, []string{"the process of end b has ended without a verdict"}, r.Failures)
	require.NoError(t, m.read(1, line(true, "broken")))
	r = result{}
	m.finish(&r)
	require.Equal(t, []string{"broken"}, r.Failures)
	require.EqualValues(t, 10, r.Total.Octets)
	require.ErrorContains(t, m.read(1, bytes.NewReader([]byte("panic: \n"))), "end b says")
}

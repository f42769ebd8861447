package iwarp

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/verbs"
)

// TestLimitsInTheManual holds the table of docs/security.md to the code.
func TestLimitsInTheManual(t *testing.T) {
	text, err := os.ReadFile("../../docs/security.md")
	require.NoError(t, err)
	type row struct{ set, def, counter string }
	var rows []row
	for _, m := range regexp.MustCompile("(?m)^\\| (.*) \\| (.*) \\| (.*) \\| `(.*)` \\|$").FindAllStringSubmatch(string(text), -1) {
		rows = append(rows, row{strings.Trim(m[2], "`"), m[3], m[4]})
	}
	p, err := Protocol{}.withDefaults()
	require.NoError(t, err)
	l, err := Limits{}.withDefaults()
	require.NoError(t, err)
	want := map[string]string{
		"Protocol.HalfOpen":       fmt.Sprint(p.HalfOpen),
		"Protocol.RequestTimeout": p.RequestTimeout.String(),
		"Protocol.ConnectTimeout": p.ConnectTimeout.String(),
		"Protocol.DrainTimeout":   p.DrainTimeout.String(),
		"Protocol.Keepalive":      p.Keepalive.String(),
		"Protocol.IRD":            fmt.Sprint(p.IRD),
		"ListenConfig.Backlog":    fmt.Sprint(defaultBacklog),
		"Limits.MRBytes":          "the host's memory",
		"Limits.QueueBytes":       fmt.Sprintf("%d, or a quarter of the host's memory", int64(DefaultQueueBytes)),
	}
	v := reflect.ValueOf(l)
	for i := range v.NumField() {
		if name := "Limits." + v.Type().Field(i).Name; want[name] == "" {
			want[name] = fmt.Sprint(v.Field(i).Int())
		}
	}
	require.Equal(t, hostMemory(), l.MRBytes)
	require.LessOrEqual(t, l.QueueBytes, hostMemory()/4)

	counters := map[string]bool{"Stats.Refused": true}
	d := newIdle(t)
	for _, c := range d.snapshot().Counters {
		counters[c.Name] = true
	}
	_, ok := reflect.TypeFor[verbs.Stats]().FieldByName("Refused")
	require.True(t, ok)

	seen := map[string]bool{}
	fixed := []string{}
	for _, r := range rows {
		require.True(t, counters[r.counter], "no counter %s", r.counter)
		switch w, ok := want[r.set]; {
		case ok:
			require.Equal(t, w, r.def, "the default of %s", r.set)
			seen[r.set] = true
		case r.set == "fixed":
			fixed = append(fixed, r.def)
		default:
			require.Equal(t, "posted receives", r.set)
		}
	}
	for name := range want {
		require.True(t, seen[name], "%s is not in the table", name)
	}
	require.Equal(t, []string{
		fmt.Sprint(maxEarly), fmt.Sprint(MaxReadDepth),
		fmt.Sprintf("%d, the last %d not for what peers do to queue pairs", eventBacklog, eventReserve), fmt.Sprint(logsPerSecond),
	}, fixed)
	require.Contains(t, string(text), fmt.Sprintf("gives way after %v", patience))
}

// newIdle is a device on the host's TCP sockets.
func newIdle(t *testing.T) *device {
	p, err := Protocol{}.withDefaults()
	require.NoError(t, err)
	c := Config{Backend: Kernel, Protocol: p}
	d, err := c.open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.close()) })
	return d
}

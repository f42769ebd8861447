package lab

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func lines(steps []Step) string {
	var b strings.Builder
	for _, s := range steps {
		b.WriteString(s.String() + "\n")
	}
	return b.String()
}

// plans are one of each kind.
var plans = map[string]Plan{
	"plain":       {},
	"wire frames": {WireFrames: true},
	"bridge":      {Impair: &Impairment{Loss: 0.01}},
	"process":     {Impair: &Impairment{Delay: time.Millisecond}, WireFrames: true},
}

func TestUpPlan(t *testing.T) {
	steps, err := Default().Up(Plan{MTU: 9000})
	require.NoError(t, err)
	require.Equal(t, `ip netns add softrdma-a
ip netns add softrdma-b
ip link add sr-a netns softrdma-a type veth peer name sr-b netns softrdma-b
ip -n softrdma-a link set sr-a mtu 9000
ip -n softrdma-a link set sr-a addrgenmode none
ip -n softrdma-a addr add 10.78.0.1/24 dev sr-a
ip -n softrdma-a addr add fd78::1/64 dev sr-a nodad
ip -n softrdma-a link set lo up
ip -n softrdma-a link set sr-a up
ip -n softrdma-b link set sr-b mtu 9000
ip -n softrdma-b link set sr-b addrgenmode none
ip -n softrdma-b addr add 10.78.0.2/24 dev sr-b
ip -n softrdma-b addr add fd78::2/64 dev sr-b nodad
ip -n softrdma-b link set lo up
ip -n softrdma-b link set sr-b up
`, lines(steps))
}

func TestUpPlanOfABridge(t *testing.T) {
	steps, err := Default().Up(Plan{MTU: 1280, Impair: &Impairment{Loss: 0.001, Seed: 3}})
	require.NoError(t, err)
	require.Contains(t, lines(steps), `ip netns add softrdma-w
ip link add sr-a netns softrdma-a type veth peer name sr-wa netns softrdma-w
ip link add sr-b netns softrdma-b type veth peer name sr-wb netns softrdma-w
ip -n softrdma-w link add sr-w type bridge forward_delay 0 stp_state 0 mcast_snooping 0
ip -n softrdma-w link set sr-w mtu 1280
ip -n softrdma-w link set sr-w addrgenmode none
ip -n softrdma-w link set sr-wa mtu 1280
ip -n softrdma-w link set sr-wa addrgenmode none
ip -n softrdma-w link set sr-wa master sr-w
ip -n softrdma-w link set sr-wb mtu 1280
ip -n softrdma-w link set sr-wb addrgenmode none
ip -n softrdma-w link set sr-wb master sr-w
# BPF program softrdma_loss on the TCX ingress of sr-wa and sr-wb drops 0.1% of what comes in
ip -n softrdma-w link set sr-w up
ip -n softrdma-w link set sr-wa up
ip -n softrdma-w link set sr-wb up
ip -n softrdma-a link set sr-a mtu 1280
`)
}

func TestUpPlanOfAProcess(t *testing.T) {
	steps, err := Default().Up(Plan{WireFrames: true, Impair: &Impairment{Reorder: 0.1}})
	require.NoError(t, err)
	require.Contains(t, lines(steps), `ip -n softrdma-w link set sr-wa addrgenmode none
# ip netns exec softrdma-w ethtool -K sr-wa tso off gso off gro off
ip -n softrdma-w link set sr-wb addrgenmode none
# ip netns exec softrdma-w ethtool -K sr-wb tso off gso off gro off
ip -n softrdma-w link set sr-wa up
ip -n softrdma-w link set sr-wb up
# ip netns exec softrdma-w softrdma lab wire /run/softrdma-lab/softrdma/wire.json &
`)
	require.Contains(t, lines(steps), `# ip netns exec softrdma-b ethtool -K sr-b tso off gso off gro off
ip -n softrdma-b link set sr-b up
`)
	require.NotContains(t, lines(steps), "bridge")
	require.NotContains(t, lines(steps), "BPF")
}

// What is true of all plans.
func TestUpPlans(t *testing.T) {
	for name, p := range plans {
		t.Run(name, func(t *testing.T) {
			steps, err := Default().Up(p)
			require.NoError(t, err)
			all := lines(steps)
			require.NotContains(t, all, "10.77.", "the kernel gets none of our addresses")
			require.NotContains(t, all, "fd77:", "the kernel gets none of our addresses")
			require.NotContains(t, all, "mtu")
			require.NotContains(t, all, "-n softrdma-w addr", "the wire has no address")
			impaired := slices.IndexFunc(steps, func(s Step) bool {
				return strings.Contains(s.Note, "BPF") || strings.Contains(s.Note, "lab wire")
			})
			up := slices.IndexFunc(steps, func(s Step) bool { return s.String() == "ip -n softrdma-a link set sr-a up" })
			require.Positive(t, up)
			require.Less(t, impaired, up, "no frame gets past the wire")
			require.Equal(t, p.Impair != nil, impaired >= 0)

			p.NoIPv6, p.MTU = true, 1400
			steps, err = Default().Up(p)
			require.NoError(t, err)
			require.NotContains(t, lines(steps), "fd78")
			require.NotContains(t, lines(steps), "addrgenmode")
			require.Contains(t, lines(steps), "10.78.0.2/24")
			links := 2
			if p.Impair != nil {
				links = 4
				if !p.Impair.process() {
					links = 5
				}
			}
			require.Equal(t, links, strings.Count(lines(steps), "mtu 1400"), "all links have one MTU")
		})
	}
}

func TestPlanCheck(t *testing.T) {
	for mtu, ok := range map[int]bool{-1: false, 68: false, 1279: false, 0: true, 1280: true, 1500: true, 9000: true, 65535: true, 65536: false} {
		_, err := Default().Up(Plan{MTU: mtu})
		require.Equal(t, ok, err == nil, "MTU %d: %v", mtu, err)
	}
	p := Plan{MTU: 1000}
	require.EqualError(t, p.Check(), "an MTU of 1000 is out of range: take 1280 to 65535, as IPv6 asks for so much")
	for _, i := range []Impairment{
		{Loss: 1.1}, {Loss: -0.1}, {Duplicate: 2}, {Reorder: -1},
		{Delay: -1}, {Jitter: -1}, {Delay: 11 * time.Second}, {Jitter: time.Hour},
	} {
		_, err := Default().Up(Plan{Impair: &i})
		require.Error(t, err, "%+v", i)
	}
}

func TestDownPlan(t *testing.T) {
	l := Default()
	for name, test := range map[string]struct {
		namespaces, links string
		dir               bool
		process           int
		want              string
	}{
		"plain": {"a b", "sr-a sr-b", true, 0, `ip -n softrdma-a link del sr-a
ip netns del softrdma-a
ip netns del softrdma-b
# rm -r /run/softrdma-lab/softrdma
`},
		"bridge": {"a b w", "sr-a sr-b sr-w", true, 0, `ip -n softrdma-a link del sr-a
ip -n softrdma-b link del sr-b
ip -n softrdma-w link del sr-w
ip netns del softrdma-a
ip netns del softrdma-b
ip netns del softrdma-w
# rm -r /run/softrdma-lab/softrdma
`},
		"process": {"a b w", "sr-a sr-b", true, 42, `# kill 42, the wire process
ip -n softrdma-a link del sr-a
ip -n softrdma-b link del sr-b
ip netns del softrdma-a
ip netns del softrdma-b
ip netns del softrdma-w
# rm -r /run/softrdma-lab/softrdma
`},
		"nothing":          {"", "", false, 0, ""},
		"half":             {"b", "sr-b", false, 0, "ip -n softrdma-b link del sr-b\nip netns del softrdma-b\n"},
		"without the link": {"a b", "", false, 0, "ip netns del softrdma-a\nip netns del softrdma-b\n"},
		"the wire alone":   {"w", "", false, 0, "ip netns del softrdma-w\n"},
		"traces":           {"", "", true, 0, "# rm -r /run/softrdma-lab/softrdma\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &Found{Namespace: make(map[string]bool), Link: make(map[string]bool), Dir: test.dir, Process: test.process}
			for _, n := range strings.Fields(test.namespaces) {
				f.Namespace["softrdma-"+n] = true
			}
			for _, n := range strings.Fields(test.links) {
				f.Link[n] = true
			}
			require.Equal(t, test.want, lines(l.Down(f)))
			require.Equal(t, test.want == "", f.nothing())
		})
	}
}

package netstack

import (
	"bytes"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
)

// goTool runs the go command.
func goTool(t *testing.T, args ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("LEFT OUT: no go command here: ", err)
	}
	cmd := exec.Command("go", args...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	require.NoError(t, err, "%s%s", out, complaint.String())
	return out
}

// gVisor's own way is gone by who asks for it, and by all in a program that was built so; it takes octets where they
// belong, too.
func TestHandoff(t *testing.T) {
	for name, c := range map[string]Config{"asked for": {Handoff: true}, "not asked for": {}} {
		t.Run(name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, fam family) {
				p := newUserPairOf(t, fam, pktio.PipeConfig{}, c)
				for _, h := range []*host{p.a, p.b} {
					if c.Handoff || !canInline() {
						require.Nil(t, h.user.link.rx.inline)
					} else {
						require.NotNil(t, h.user.link.rx.inline)
					}
				}
				ca, cb := p.exchange(1000)
				for i := range 5 {
					p.goesOn(ca, cb, 1000+i*100_000, i*100_000, 100_000)
				}
			})
		})
	}
}

// Memory of TCP's own is lent by gVisor that is interfered with, and by no other TCP.
func TestStageIsLent(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		b := ca.Stage()
		if ca.user == nil || !canInline() {
			require.Nil(t, b)
			return
		}
		pattern(b[:1000], 0, 0)
		require.NoError(t, ca.Commit(1000))
		k := checker{}
		p.until("octets", func() bool { require.NoError(t, k.receive(t, cb)); return k.at == 1000 })
	})
}

// The tag that does this for a whole program does. (TestCanInline is for those without it.)
func TestHandoffTag(t *testing.T) {
	if !canInline() {
		return // this one is built so
	}
	out := goTool(t, "test", "-tags", "softrdma_handoff", "-count", "1", "-v", "-run", "^(TestHandoff|TestStageIsLent)$", ".")
	require.Contains(t, string(out), "--- PASS: TestHandoff/not_asked_for/IPv6")
	require.Contains(t, string(out), "--- PASS: TestStageIsLent/user/GSO")
}

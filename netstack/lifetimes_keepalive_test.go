package netstack

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/softrdma/softrdma/pktio"
)

// soon finds a silent peer out after a second.
var soon = Config{Keepalive: KeepaliveWithin(time.Second)}

func TestKeepaliveConfig(t *testing.T) {
	for d, total := range map[time.Duration]time.Duration{
		0: time.Minute, -1: 0, time.Minute: time.Minute, time.Second: time.Second, 17: 17, time.Hour: time.Hour,
	} {
		k, err := KeepaliveWithin(d).withDefaults()
		if d == 17 {
			require.NoError(t, err)
		}
		require.Equal(t, total, k.Total(), "%v", d)
	}
	for _, k := range []Keepalive{
		{Idle: time.Second}, {Interval: time.Second}, {Count: 1}, {Idle: 1, Interval: -1, Count: 1},
		{Idle: 1, Interval: 1, Count: 128}, {Idle: 1, Interval: 1, Count: -1},
	} {
		_, err := Config{Keepalive: k}.withDefaults()
		require.Error(t, err)
		_, err = KernelConfig{Keepalive: k}.withDefaults()
		require.ErrorContains(t, err, "Keepalive")
	}
}

// Whatever the times, what is outstanding is given up about when an idle peer is.
func TestRetransmissionsLastAsLongAsKeepalive(t *testing.T) {
	for _, total := range []time.Duration{time.Second, 3 * time.Second, 10 * time.Second, time.Minute, time.Hour} {
		for _, least := range []time.Duration{time.Millisecond, DefaultMinRTO, 200 * time.Millisecond} {
			most, retries := KeepaliveWithin(total).retransmission(least)
			require.LessOrEqual(t, most, max(maxRTO, least))
			for _, first := range []time.Duration{least, most} { // a fast peer and a slow one
				var waited time.Duration
				rto := first
				for range retries + 1 {
					waited += rto
					rto = min(2*rto, most)
				}
				require.GreaterOrEqual(t, waited, total, "least %v, first %v", least, first)
				require.LessOrEqual(t, waited, total*9/4, "least %v, first %v", least, first)
			}
		}
	}
	most, retries := Keepalive{Idle: -1}.retransmission(DefaultMinRTO)
	require.Equal(t, time.Second, most)
	require.InDelta(t, 66, retries, 3)
}

// silent waits until both connections have ended because the other side fell silent.
func (p *pair) silent(conns ...*Conn) {
	p.t.Helper()
	errs := make([]error, len(conns))
	p.until("both to give up", func() bool {
		over := true
		for i, c := range conns {
			if errs[i] == nil {
				_, errs[i] = c.Peek()
			}
			over = over && errs[i] != nil
		}
		return over
	})
	for i, err := range errs {
		require.ErrorIs(p.t, err, syscall.ETIMEDOUT)
		require.ErrorContains(p.t, err, "answers no more")
		var timeout net.Error
		require.True(p.t, errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, syscall.ETIMEDOUT))
		require.ErrorIs(p.t, conns[i].Writev([][]byte{{1}}), syscall.ETIMEDOUT, "the same reason for both halves")
	}
}

func TestSilentPeer(t *testing.T) {
	for _, c := range []struct {
		name  string
		write int // octets under way when the link is cut
	}{{"idle", 0}, {"octets under way", 100_000}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newUserPair(t, pktio.PipeConfig{GSO: true}, soon)
			start := time.Now()
			ca, cb := p.exchange(1000)
			p.portA.Cut(true)
			if c.write > 0 {
				send(t, ca, 0, 1000, c.write)
				send(t, cb, 1, 0, c.write)
			}
			p.silent(ca, cb)
			require.Greater(t, time.Since(start), 700*time.Millisecond)
			require.EqualValues(t, 1, p.a.Stats().Silent)
			require.EqualValues(t, 1, p.b.Stats().Silent)
			ca.Close()
			cb.Close()
		})
	}
}

// Hundreds of idle connections ask and answer, and none is taken for broken.
func TestIdlePeersAreNotSilent(t *testing.T) {
	t.Parallel()
	conns := 300
	if raceEnabled {
		conns = 50
	}
	often := Keepalive{Idle: 200 * time.Millisecond, Interval: time.Second, Count: 10} // patient: the machine may be busy
	p := newUserPair(t, pktio.PipeConfig{GSO: true}, Config{Keepalive: often})
	_, _, l := p.connect()
	var as, bs []*Conn
	for range conns {
		ca, cb := p.connectTo(l)
		as, bs = append(as, ca), append(bs, cb)
	}
	before := p.a.Stats().FramesOut + p.b.Stats().FramesOut
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		p.a.poll(5 * time.Millisecond)
		p.b.poll(5 * time.Millisecond)
	}
	require.Greater(t, p.a.Stats().FramesOut+p.b.Stats().FramesOut-before, uint64(2*conns), "questions and answers")
	require.Zero(t, p.a.Stats().Silent+p.b.Stats().Silent)
	for i := range as {
		require.NoError(t, as[i].Writev([][]byte{{byte(i)}}))
	}
	for i := range bs {
		p.until("an octet", func() bool {
			pieces, err := bs[i].Peek()
			require.NoError(t, err)
			return length(pieces) == 1 && pieces[0][0] == byte(i)
		})
	}
}

// A peer whose window is shut answers, and that is enough.
func TestShutWindowIsNotSilence(t *testing.T) {
	t.Parallel()
	p := newUserPair(t, pktio.PipeConfig{GSO: true}, Config{Keepalive: KeepaliveWithin(3 * time.Second), RecvBuffer: MinBuffer, SendBuffer: MinBuffer})
	ca, cb, _ := p.connect()
	sent := 0
	for stuck := time.Now(); time.Since(stuck) < 7*time.Second; {
		if n := send(t, ca, 0, sent, 1<<20); n > 0 {
			sent += n
			stuck = time.Now()
		}
		p.a.poll(time.Millisecond)
		p.b.poll(time.Millisecond)
	}
	k := checker{}
	p.until("what was held back", func() bool { require.NoError(t, k.receive(t, cb)); return k.at == sent })
}

func TestKeepaliveOff(t *testing.T) {
	p := newUserPair(t, pktio.PipeConfig{}, Config{Keepalive: Keepalive{Idle: -1}})
	ca, _ := p.exchange(1000)
	on, err := ca.user.ep.GetSockOptInt(tcpip.KeepaliveCountOption)
	require.NoError(t, toError(err))
	require.Equal(t, 9, on, "gVisor's own, untouched")
	require.False(t, ca.user.ep.SocketOptions().GetKeepAlive())
}

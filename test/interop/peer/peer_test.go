package peer

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/leakcheck"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// host is two devices on a link in memory, and a listener on the second.
type host struct {
	here, there *verbs.Device
	l           *rdmacm.Listener
	addr        string
}

func newHost(t *testing.T, p iwarp.Protocol) *host {
	h := &host{}
	var err error
	h.here, h.there, err = iwarp.Pipe(iwarp.PipeConfig{Protocol: p})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, h.here.Close())
		require.NoError(t, h.there.Close())
	})
	h.addr = fmt.Sprintf("%v:%d", iwarp.PipeAddrB, CmatosePort)
	h.l, err = (&rdmacm.ListenConfig{Device: h.there}).Listen(t.Context(), h.addr)
	require.NoError(t, err)
	return h
}

// both runs the two sides and returns their errors.
func both(t *testing.T, client, server func(context.Context) error) (clientErr, serverErr error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error)
	go func() { done <- server(ctx) }()
	clientErr = client(ctx)
	return clientErr, <-done
}

// echo plays the client as the C program does, which receives into the memory that it
// sends from.
func (c *Cmatose) echo(ctx context.Context, addr string) error {
	return c.play(ctx, func(ctx context.Context) error {
		if err := c.each(func(n *node) error { return n.dial(ctx, c.Device, addr) }); err != nil {
			return err
		}
		for _, n := range c.nodes {
			if err := n.received(ctx); err != nil {
				return err
			}
			for k := range c.Count {
				copy(n.out.Bytes()[k*c.Size:], n.message(c.Count-1))
			}
		}
		if err := c.sendAll(ctx); err != nil {
			return err
		}
		return c.each(func(n *node) error { return n.ended(ctx) })
	})
}

// repeat plays the server as the C program does: the same memory again and again.
func (c *Cmatose) repeat(ctx context.Context, l *rdmacm.Listener) error {
	return c.play(ctx, func(ctx context.Context) error {
		if err := c.acceptAll(ctx, l); err != nil {
			return err
		}
		for _, n := range c.nodes {
			for k := range c.Count {
				copy(n.out.Bytes()[k*c.Size:], n.out.Bytes()[:c.Size])
			}
		}
		if err := c.sendAll(ctx); err != nil {
			return err
		}
		return c.each(func(n *node) error {
			if err := n.received(ctx); err != nil {
				return err
			}
			return n.conn.Disconnect(ctx)
		})
	})
}

func TestCmatose(t *testing.T) {
	for _, load := range []Cmatose{{Conns: 1, Count: 1, Size: MinSize}, {Conns: 20, Count: 10, Size: 100}, {Conns: 3, Count: 5, Size: 20000}} {
		t.Run(fmt.Sprintf("%dx%dx%d", load.Conns, load.Count, load.Size), func(t *testing.T) {
			h := newHost(t, iwarp.Protocol{})
			client, server := load, load
			client.Device, server.Device = h.here, h.there
			ce, se := both(t, func(ctx context.Context) error { return client.echo(ctx, h.addr) },
				func(ctx context.Context) error { return server.Serve(ctx, h.l) })
			require.NoError(t, ce)
			require.NoError(t, se)

			client.nodes, server.nodes = nil, nil
			ce, se = both(t, func(ctx context.Context) error { return client.Connect(ctx, h.addr) },
				func(ctx context.Context) error { return server.repeat(ctx, h.l) })
			require.NoError(t, ce)
			require.NoError(t, se)
		})
	}
}

func TestCmatoseNotices(t *testing.T) {
	h := newHost(t, iwarp.Protocol{})
	load := Cmatose{Conns: 2, Count: 3, Size: 50}
	client, server := load, load
	client.Device, server.Device = h.here, h.there
	// Two of the careful kind: neither repeats what the other demands.
	ce, _ := both(t, func(ctx context.Context) error { return client.Connect(ctx, h.addr) },
		func(ctx context.Context) error { return server.Serve(ctx, h.l) })
	require.ErrorContains(t, ce, "message 1 is not the same as message 0")

	client, server = load, load
	client.Device, server.Device = h.here, h.there
	client.Size = 49
	ce, _ = both(t, func(ctx context.Context) error { return client.Connect(ctx, h.addr) },
		func(ctx context.Context) error { return server.repeat(ctx, h.l) })
	require.Error(t, ce, "a message that is too long for its receive")

	client = load
	client.Size = MinSize - 1
	require.Error(t, client.Connect(t.Context(), h.addr))
}

func TestCmatoseAnswers(t *testing.T) {
	h := newHost(t, iwarp.Protocol{})
	load := Cmatose{Conns: 1, Count: 2, Size: 50}
	client, server := load, load
	client.Device, server.Device = h.here, h.there
	_, se := both(t, func(ctx context.Context) error {
		return client.play(ctx, func(ctx context.Context) error {
			if err := client.nodes[0].dial(ctx, h.here, h.addr); err != nil {
				return err
			}
			// Its own messages instead of the server's last.
			return client.sendAll(ctx)
		})
	}, func(ctx context.Context) error { return server.Serve(ctx, h.l) })
	require.ErrorContains(t, se, "answer 0 should repeat message 1")
}

func TestHeld(t *testing.T) {
	const silence = 200 * time.Millisecond
	load := Cmatose{Conns: 3, Count: 2, Size: 50}
	t.Run("MPA-13 the responder waits for the initiator", func(t *testing.T) {
		h := newHost(t, iwarp.Protocol{ClientServer: true})
		client, server := load, load
		client.Device, server.Device = h.here, h.there
		ce, se := both(t, func(ctx context.Context) error { return client.Connect(ctx, h.addr) },
			func(ctx context.Context) error { return server.ServeHeld(ctx, h.l, silence) })
		require.NoError(t, se)
		require.Error(t, ce, "nothing comes before the server leaves")
	})
	t.Run("peer-to-peer it does not", func(t *testing.T) {
		h := newHost(t, iwarp.Protocol{})
		client, server := load, load
		client.Device, server.Device = h.here, h.there
		_, se := both(t, func(ctx context.Context) error { return client.Connect(ctx, h.addr) },
			func(ctx context.Context) error { return server.ServeHeld(ctx, h.l, silence) })
		require.ErrorContains(t, se, "before the initiator has spoken")
	})
}

func TestGreet(t *testing.T) {
	h := newHost(t, iwarp.Protocol{})
	ce, se := both(t, func(ctx context.Context) error { return Greet(ctx, h.here, h.addr) },
		func(ctx context.Context) error { return ServeGreeting(ctx, h.there, h.l) })
	require.NoError(t, ce)
	require.NoError(t, se)

	// Another message than zeros or ours.
	ce, _ = both(t, func(ctx context.Context) error { return Greet(ctx, h.here, h.addr) }, func(ctx context.Context) error {
		return greet(h.there, func(n *node) error {
			r, err := h.l.Accept(ctx)
			if err != nil {
				return err
			}
			if err := n.accept(ctx, r); err != nil {
				return err
			}
			if err := n.hear(ctx); err != nil {
				return err
			}
			n.out.Bytes()[GreetSize-1]++
			return n.say(ctx)
		})
	})
	require.ErrorContains(t, ce, "neither zeros nor ours")
}

func TestPattern(t *testing.T) {
	b := make([]byte, 100)
	Fill(b, 7, 3)
	conn, k, err := Parse(b)
	require.NoError(t, err)
	require.Equal(t, []int{7, 3}, []int{conn, k})
	other := make([]byte, 100)
	Fill(other, 7, 4)
	require.NotEqual(t, b[MinSize:], other[MinSize:], "messages differ beyond their numbers")
	for i := range b {
		b[i] ^= 1
		_, _, err := Parse(b)
		require.Error(t, err, "octet %d", i)
		b[i] ^= 1
	}
	_, _, err = Parse(b[:MinSize-1])
	require.Error(t, err)
}

package iwarp_test

import (
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// kernel6 is two devices on the host's sockets that meet at ::1. The test is left out where there is no IPv6.
func kernel6(t *testing.T) link {
	s, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skip("LEFT OUT: this host has no IPv6:", err)
	}
	require.NoError(t, s.Close())
	l := kernel(t, iwarp.Protocol{})
	l.addr = netip.IPv6Loopback()
	return l
}

// read fetches the peer's arena.
func (p *pair) read(t *testing.T) {
	fill(p.theirs.mr.Bytes(), 5)
	p.mine.send(t, verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled,
		SGL: []verbs.SGE{p.mine.mr.SGE(0, arena)}, Remote: p.theirs.remote})
	require.NoError(t, p.mine.wait(t, 1)[0].Err())
	require.Equal(t, string(p.theirs.mr.Bytes()), string(p.mine.mr.Bytes()))
}

func TestKernelIPv6(t *testing.T) {
	l := kernel6(t)
	p := l.connect(t, arena, nil)
	p.read(t)
	require.Equal(t, netip.IPv6Loopback(), p.mine.RemoteAddr().Addr())
	require.Equal(t, p.mine.LocalAddr(), p.theirs.RemoteAddr())
}

// meet connects a to lis at host and returns the initiator's address as the listener sees it.
func (l link) meet(t *testing.T, lis *rdmacm.Listener, host string) netip.Addr {
	t.Helper()
	ctx := within(t, 20*time.Second)
	seen := make(chan netip.Addr, 1)
	go func() {
		req, err := lis.Accept(ctx)
		if err != nil {
			close(seen)
			return
		}
		seen <- req.RemoteAddr().Addr()
		if c, err := req.Accept(ctx, rdmacm.AcceptConfig{}); err == nil {
			_ = c.Close()
		}
	}()
	c, err := (&rdmacm.Dialer{Device: l.a}).Dial(ctx, net.JoinHostPort(host, strconv.Itoa(int(lis.Addr().Port()))))
	require.NoError(t, err)
	defer c.Close()
	from, ok := <-seen
	require.True(t, ok)
	return from
}

// ":port" is for all addresses of both families.
func TestListenOnBothFamilies(t *testing.T) {
	l := kernel6(t)
	ctx := within(t, 20*time.Second)
	lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, ":0")
	require.NoError(t, err)
	defer lis.Close()
	require.Equal(t, "127.0.0.1", l.meet(t, lis, "127.0.0.1").String())
	require.Equal(t, "::1", l.meet(t, lis, "::1").String())

	only, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, "0.0.0.0:0")
	require.NoError(t, err)
	defer only.Close()
	require.Equal(t, "127.0.0.1", l.meet(t, only, "127.0.0.1").String())
	_, err = (&rdmacm.Dialer{Device: l.a}).Dial(ctx, netip.AddrPortFrom(netip.IPv6Loopback(), only.Addr().Port()).String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

// A name with several addresses stands for the one where somebody listens.
func TestDialTriesAddresses(t *testing.T) {
	twoAddresses(t)
	l := kernel6(t)
	for _, at := range []string{"127.0.0.1:0", "[::1]:0", "both.test:0"} {
		lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(within(t, 20*time.Second), at)
		require.NoError(t, err)
		require.Equal(t, lis.Addr().Addr(), l.meet(t, lis, "both.test"))
		require.NoError(t, lis.Close())
	}
	lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(within(t, 20*time.Second), ":0")
	require.NoError(t, err)
	port := strconv.Itoa(int(lis.Addr().Port()))
	require.NoError(t, lis.Close())
	_, err = (&rdmacm.Dialer{Device: l.a}).Dial(within(t, 20*time.Second), "both.test:"+port)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

package iwarp_test

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// segments returns how many TCP segments with data the peer has received.
func segments(t *testing.T, p *wiretest.Peer) (n uint32) {
	t.Helper()
	raw, err := p.Conn().(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	var info *unix.TCPInfo
	require.NoError(t, raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }))
	require.NoError(t, err)
	return info.Data_segs_in
}

// TestStartupSegments: irdma takes a startup frame only whole, and siw and cxgb4 only if
// nothing comes with it.
func TestStartupSegments(t *testing.T) {
	t.Run("IOP-22 IOP-08 MPA-09 the Request comes in one segment, alone", func(t *testing.T) {
		data := make([]byte, 508)
		fill(data, 1)
		o := meet(t, iwarp.Protocol{}, 1, func(d *rdmacm.Dialer) { d.PrivateData = data })
		require.Len(t, o.Startup().Private, 512)
		o.ExpectSilence(20 * time.Millisecond)
		require.EqualValues(t, 1, segments(t, o.Peer))
	})
	t.Run("IOP-22 IOP-08 MPA-09 MPA-13 the Reply comes in one segment, alone", func(t *testing.T) {
		data := make([]byte, 512)
		fill(data, 2)
		i := call(t, iwarp.Protocol{}, 1, func(a *rdmacm.AcceptConfig) { a.PrivateData = data })
		require.Equal(t, data, i.Initiate(request).Private)
		require.NoError(t, <-i.accepted)
		i.e.send(t, verbs.SendWR{Op: verbs.OpSend, Inline: []byte("waits for the first FPDU")})
		i.ExpectSilence(50 * time.Millisecond)
		require.EqualValues(t, 1, segments(t, i.Peer))
		i.Send(send(1, "first"))
		i.Expect(send(1, "waits for the first FPDU"))
	})
}

// TestEchoedBits: siw echoes all reserved bits, which proves nothing about it.
func TestEchoedBits(t *testing.T) {
	t.Run("IOP-37 MPA-04 Res 0x0f in a Reply switches nothing on", func(t *testing.T) {
		lis, err := (&net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			var oops error
			err := c.Control(func(fd uintptr) { oops = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, 1460) })
			if err == nil {
				err = oops
			}
			return err
		}}).Listen(within(t, time.Minute), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer lis.Close()
		e := newEnd(t, kernel(t, iwarp.Protocol{}).a, arena)
		dialed := make(chan error, 1)
		ctx := within(t, 20*time.Second)
		go func() {
			d := rdmacm.Dialer{Device: e.dev, PD: e.pd, QP: e.qp()}
			var err error
			e.Conn, err = d.Dial(ctx, lis.Addr().String())
			dialed <- err
		}()
		tcp, err := lis.Accept()
		require.NoError(t, err)
		p := wiretest.NewPeer(t, tcp)
		p.Respond(wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS | 0x0f, Rev: 2, Private: wiretest.Block(wiretest.BlockA|1, wiretest.BlockD|1)})
		meant(p)
		p.Send(wiretest.Tagged(2, true, 1, 0, nil))
		require.NoError(t, <-dialed)
		const size = 200 << 10
		e.send(t, verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{e.mr.SGE(0, size)}, Remote: verbs.RemoteBuf{RKey: 9, Len: size}})
		for got := 0; got < size; {
			u := meant(p)
			require.LessOrEqual(t, len(u), 1460-6, "no FPDU is larger than a TCP segment")
			got += len(u) - 14
		}
	})
}

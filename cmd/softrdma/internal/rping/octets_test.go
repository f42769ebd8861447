package rping

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// onKernel opens a device on the host's sockets.
func onKernel(t *testing.T) *verbs.Device {
	t.Helper()
	d, err := iwarp.Open(t.Context(), iwarp.Config{Backend: iwarp.Kernel, Protocol: iwarp.Protocol{ClientServer: true}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// siw is what a Linux siw peer says at start-up, the depth of Reads being 1.
func siw(reply bool) wiretest.Startup {
	return wiretest.Startup{Reply: reply, Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2, Private: wiretest.Block(1, 1)}
}

func message(msn uint32, payload []byte) []byte {
	return wiretest.Untagged(3, true, 0, 0, msn, 0, payload)
}

const theirKey, theirAddr = 0x0badf00d, 0x7f1200001000

// TestServerOctets is rping's client, written octet by octet, against our server.
func TestServerOctets(t *testing.T) {
	t.Run("IOP-25 IOP-27 IOP-28 IOP-34 a client made by hand", func(t *testing.T) {
		d := onKernel(t)
		l, err := (&rdmacm.ListenConfig{Device: d}).Listen(t.Context(), "127.0.0.1:0")
		require.NoError(t, err)
		ends := make(chan End, 1)
		ctx, cancel := context.WithCancel(context.Background())
		served := make(chan error, 1)
		s := Server{Device: d, OnEnd: func(e End) { ends <- e }}
		go func() { served <- s.Serve(ctx, l) }()
		p := wiretest.DialPeer(t, l.Addr().String())
		p.Initiate(siw(false))
		text := make([]byte, 100)
		const sinkAddr = theirAddr + 4096
		for n := range 5 {
			Text(text, n)
			msn := uint32(n)
			p.Send(message(2*msn+1, info{theirAddr, theirKey, 100}.append(nil)))
			ask := p.Next()
			sink := wiretest.Hex(fmt.Sprintf("%x", ask[18:30])) // STag and TO of the server's memory
			require.Equal(t, wiretest.ReadRequest(msn+1, be32(sink), be64(sink[4:]), 100, theirKey, theirAddr), ask)
			p.Send(wiretest.Tagged(2, true, be32(sink), be64(sink[4:]), text))
			require.Len(t, p.Next(), 18+16, "go ahead")
			p.Send(message(2*msn+2, info{sinkAddr, theirKey, 100}.append(nil)))
			p.Expect(wiretest.Tagged(0, true, theirKey, sinkAddr, text)) // before the Send that says so
			require.Len(t, p.Next(), 18+16)
		}
		p.ExpectSilence(300 * time.Millisecond) // the server does not leave first
		p.CloseWrite()
		p.ExpectEOF()
		e := <-ends
		require.NoError(t, e.Err, "an end in order")
		require.Equal(t, 5, e.Pings)
		cancel()
		require.NoError(t, <-served)
		require.NoError(t, l.Close())
	})
}

// TestClientOctets is rping's server, written octet by octet, against our client.
func TestClientOctets(t *testing.T) {
	for _, c := range []struct {
		name  string
		early bool // the last Send of a round comes before the Write
		ok    bool
	}{
		{"IOP-25 IOP-26 IOP-27 IOP-34 a server made by hand", false, true},
		{"IOP-26 the comparison would see a Send that comes before its Write", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer lis.Close()
			const size, count = 3001, 4
			client := Client{Device: onKernel(t), Size: size, Count: count}
			done := make(chan error, 1)
			go func() { done <- client.Run(context.Background(), lis.Addr().String()) }()
			tcp, err := lis.Accept()
			require.NoError(t, err)
			p := wiretest.NewPeer(t, tcp)
			p.Respond(siw(true))
			for n := uint32(0); n < count; n++ {
				source, err := parseInfo(p.Next()[18:])
				require.NoError(t, err)
				require.EqualValues(t, size, source.size)
				p.Send(wiretest.ReadRequest(n+1, theirKey, theirAddr, size, source.key, source.addr))
				var text []byte
				for more := true; more; {
					u := p.Next()
					text = append(text, u[14:]...)
					more = u[0]&0x40 == 0
				}
				want := make([]byte, size)
				Text(want, int(n))
				require.Equal(t, want, text)
				p.Send(message(2*n+1, make([]byte, 16)))
				sink, err := parseInfo(p.Next()[18:])
				require.NoError(t, err)
				if c.early {
					p.Send(message(2*n+2, make([]byte, 16)))
					break
				}
				for at := 0; at < size; at += 1428 { // as siw cuts it
					k := min(1428, size-at)
					p.Send(wiretest.Tagged(0, at+k == size, sink.key, sink.addr+uint64(at), text[at:at+k]))
					time.Sleep(time.Millisecond)
				}
				p.Send(message(2*n+2, make([]byte, 16)))
			}
			if c.ok {
				p.ExpectEOF() // the client leaves first
				p.CloseWrite()
				require.NoError(t, <-done)
				return
			}
			var m *Mismatch
			require.ErrorAs(t, <-done, &m)
		})
	}
}

func be32(b []byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}
func be64(b []byte) uint64 { return uint64(be32(b))<<32 | uint64(be32(b[4:])) }

// TestSizesAndRoles runs the program's extremes, each end on the other side in turn, against
// one server that stays.
func TestSizesAndRoles(t *testing.T) {
	count := 1000
	if testing.Short() {
		count = 50
	}
	a, b, err := iwarp.Pipe(iwarp.PipeConfig{})
	require.NoError(t, err)
	for _, c := range []struct {
		name           string
		client, server *verbs.Device
		addr           string
	}{
		{"over our own TCP", a, b, iwarp.PipeAddrB.String()},
		{"over kernel TCP", onKernel(t), onKernel(t), "127.0.0.1"},
	} {
		t.Run("IOP-29 IOP-26 "+c.name, func(t *testing.T) {
			l, err := (&rdmacm.ListenConfig{Device: c.server}).Listen(t.Context(), c.addr+":0")
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(context.Background())
			served := make(chan error, 1)
			ends := make(chan End, 8)
			s := Server{Device: c.server, OnEnd: func(e End) { ends <- e }}
			go func() { served <- s.Serve(ctx, l) }()
			for _, size := range []int{MinSize, DefaultSize, 1429, MaxSize} {
				count := count
				if size != MinSize && size != MaxSize {
					count /= 10
				}
				client := Client{Device: c.client, Size: size, Count: count}
				require.NoError(t, client.Run(t.Context(), l.Addr().String()), "%d octets", size)
				e := <-ends
				require.NoError(t, e.Err)
				require.Equal(t, count, e.Pings)
			}
			cancel()
			require.NoError(t, <-served)
			require.NoError(t, l.Close())
		})
	}
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

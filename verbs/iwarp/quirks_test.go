package iwarp_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// agree does a start-up without a ready-to-receive message: ours is the first word.
func agree(t *testing.T, receives int, ird, ord int, rep wiretest.Startup) *outgoing {
	t.Helper()
	o := meet(t, iwarp.Protocol{ClientServer: true, DrainTimeout: time.Second}, receives, func(d *rdmacm.Dialer) { d.IRD, d.ORD = ird, ord })
	o.Respond(rep)
	require.NoError(t, <-o.dialed)
	return o
}

// plain is a Reply of the client/server model that grants the given depths.
func plain(ird, ord uint16) wiretest.Startup {
	return wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2, Private: wiretest.Block(ird, ord)}
}

func (e *end) readOf(n int) verbs.SendWR {
	return verbs.SendWR{ID: 30, Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(4096, n)},
		Remote: verbs.RemoteBuf{Addr: 0x7f0000000000, RKey: 0x0badf00d, Len: uint32(n)}}
}

// flushedOf checks that the next n completions are flushed receives, but for those of the
// IDs in telling, which may say more.
func (e *end) flushedOf(t *testing.T, n int, telling ...uint64) {
	t.Helper()
	for _, wc := range e.wait(t, n) {
		require.Error(t, wc.Err())
		if len(telling) == 0 || wc.ID != telling[0] {
			require.Equal(t, verbs.WCWRFlushErr, wc.Status, "request %d", wc.ID)
		}
	}
	e.quiet(t)
}

// TestTerminateMeansTheEnd: whatever a Terminate says, the same follows.
func TestTerminateMeansTheEnd(t *testing.T) {
	header := wiretest.Tagged(0, true, 0x0badf00d, 0x7f0000000000, nil)
	payloads := map[string][]byte{}
	for _, k := range []wiretest.Known{known(t, "siw"), known(t, "cxgb4")} {
		for _, code := range []uint16{0x0000, 0x0102, 0x0109, 0x0206, 0x0207, 0x02ff, 0x1100, 0x1101, 0x1202, 0x1205, 0x2002, 0x2005, 0xffff} {
			payloads[fmt.Sprintf("%s %04x", k.Name, code)] = k.Terminate(code, 30, header)
			payloads[fmt.Sprintf("%s %04x alone", k.Name, code)] = k.Terminate(code, 0, nil)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 12 {
		b := make([]byte, r.IntN(60))
		fill(b, uint64(i))
		payloads[fmt.Sprintf("garbage %d", i)] = wiretest.Untagged(7, true, 0, 2, 1, 0, b)
	}
	for name, term := range payloads {
		t.Run("IOP-02 IOP-01 "+name, func(t *testing.T) {
			t.Parallel()
			o := agree(t, 3, 0, 1, plain(1, 1))
			o.e.send(t, o.e.readOf(100))
			o.Next()
			o.Send(term, send(1, "too late"))
			o.e.ended(t)
			require.Equal(t, verbs.QPSErr, o.e.State())
			var said *verbs.TerminateError
			require.ErrorAs(t, o.e.Err(), &said)
			require.True(t, said.Remote)
			o.e.flushedOf(t, 4, 30)
			o.ExpectEOF() // and no Terminate of ours before it
		})
	}
}

// TestOwnTerminates: the octets of ours are those of the standard, to siw too, which
// writes them otherwise.
func TestOwnTerminates(t *testing.T) {
	for _, c := range []struct {
		name string
		bad  func(e *end) []byte
		want string // from the Terminate's payload up to the segment length
		copy int    // octets of the message that follow
	}{
		{"an unknown STag", func(e *end) []byte { return wiretest.Tagged(0, true, 0x0badf00d, 0, []byte("x")) }, "11 00 c0 00 00 0f", 14},
		{"past the end", func(e *end) []byte {
			return wiretest.Tagged(0, true, uint32(e.remote.RKey), e.remote.Addr+arena-4, []byte("12345"))
		}, "11 01 c0 00 00 13", 14},
		{"a Read of an unknown STag", func(e *end) []byte { return wiretest.ReadRequest(1, 1, 0, 8, 0x0badf00d, 0) }, "01 00 e0 00 00 2e", 46},
		{"no receive", func(e *end) []byte { return send(1, "nobody waits") }, "12 02 c0 00 00 1e", 18},
		{"an unknown opcode", func(e *end) []byte { return wiretest.Untagged(12, true, 0, 0, 1, 0, nil) }, "02 06 c0 00 00 12", 18},
		{"a Send with Invalidate of plain memory", func(e *end) []byte {
			return wiretest.Untagged(4, true, uint32(e.remote.RKey), 0, 1, 0, nil)
		}, "", 0},
	} {
		t.Run("IOP-03 "+c.name, func(t *testing.T) {
			k := known(t, "siw")
			receives := 0
			if c.want == "" {
				receives = 1 // it has to get as far as the STag
			}
			i := call(t, iwarp.Protocol{DrainTimeout: time.Second}, receives, nil)
			i.Initiate(k.Ask(2, 2))
			require.NoError(t, <-i.accepted)
			i.Play(k)
			u := c.bad(i.e)
			i.Send(u)
			if c.want == "" {
				// 0x0109 with the header of the message, as the standard has it and siw has not.
				got := i.ExpectTerminate(0x0109)
				require.Zero(t, got[2]&0x3f)
			} else {
				want := append(wiretest.Hex(c.want), u[:c.copy]...)
				require.Equal(t, fmt.Sprintf("% x", want), fmt.Sprintf("% x", i.ExpectTerminate(binary.BigEndian.Uint16(want))))
			}
			i.ExpectEOF()
			require.NoError(t, i.Conn().Close())
			i.e.ended(t)
		})
	}
}

// TestNoTerminate: peers that end the connection without the Terminate that is due.
func TestNoTerminate(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(o *outgoing)
	}{
		{"FIN instead of a Terminate", func(o *outgoing) { o.CloseWrite() }},
		{"all closed at once", func(o *outgoing) { o.Conn().Close() }},
		{"RST instead of a Terminate", func(o *outgoing) { o.Reset() }},
		{"RST inside a message", func(o *outgoing) {
			o.Send(wiretest.Untagged(3, false, 0, 0, 1, 0, []byte("half")))
			o.Reset()
		}},
		{"FIN inside an FPDU", func(o *outgoing) {
			o.Write(wiretest.Frame(send(1, "hello"), true)[:9])
			o.Conn().Close()
		}},
	} {
		t.Run("IOP-04 "+c.name, func(t *testing.T) {
			o := agree(t, 3, 0, 1, plain(1, 1))
			o.e.send(t, o.e.readOf(100))
			o.Next()
			c.end(o)
			o.e.ended(t)
			require.Error(t, o.e.Err())
			o.e.flushedOf(t, 4)
		})
	}
}

// loud counts log records above Info.
type loud struct{ n atomic.Int32 }

func (l *loud) Enabled(context.Context, slog.Level) bool { return true }
func (l *loud) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *loud) WithGroup(string) slog.Handler            { return l }
func (l *loud) Handle(_ context.Context, r slog.Record) error {
	if r.Level > slog.LevelInfo {
		l.n.Add(1)
	}
	return nil
}

// patient is a device that waits for a peer's FIN longer than any test here takes: a
// connection that is gone before was ended by something else.
func patient(t *testing.T, l *loud) *verbs.Device {
	t.Helper()
	d, err := iwarp.Open(within(t, time.Minute), iwarp.Config{Backend: iwarp.Kernel, Logger: slog.New(l),
		Protocol: iwarp.Protocol{ClientServer: true, DrainTimeout: 30 * time.Second}})
	require.NoError(t, err)
	closeAfter(t, d)
	return d
}

// bye connects d to a scripted peer and sends it a last message, which completes. Two
// receives stay posted.
func bye(t *testing.T, d *verbs.Device) *outgoing {
	t.Helper()
	o := meetFrom(t, d, 2, nil)
	o.Respond(plain(1, 1))
	require.NoError(t, <-o.dialed)
	o.e.send(t, verbs.SendWR{ID: 40, Op: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("bye")})
	require.NoError(t, o.e.wait(t, 1)[0].Err())
	return o
}

// connections is how many TCP connections d has.
func connections(d *verbs.Device) uint64 {
	s := d.Stats()
	return s.Counter("tcp.open")
}

// gone waits until d has no TCP connection any more.
func gone(t *testing.T, d *verbs.Device) {
	t.Helper()
	require.Eventually(t, func() bool { return connections(d) == 0 }, 10*time.Second, time.Millisecond, "the connection is still there")
}

// TestResetAtTheEnd: siw has unread octets when it closes, and its FIN becomes a RST.
func TestResetAtTheEnd(t *testing.T) {
	for name, reset := range map[string]func(o *outgoing){
		"of a peer that has read all": func(o *outgoing) {
			o.Expect(send(1, "bye"))
			o.ExpectEOF()
			o.Reset()
		},
		"of a peer that closes with octets unread": func(o *outgoing) { require.NoError(t, o.Conn().Close()) },
	} {
		t.Run("IOP-05 RST after our FIN, "+name+": the end in order", func(t *testing.T) {
			var l loud
			d := patient(t, &l)
			for range 10 {
				o := bye(t, d)
				require.NoError(t, o.e.Disconnect(within(t, 10*time.Second)))
				o.e.ended(t) // our half is over with the FIN, TCP is not
				require.EqualValues(t, 1, connections(d), "the peer has not answered the FIN")
				reset(o)
				gone(t, d)
				require.Equal(t, verbs.QPSErr, o.e.State())
				require.NoError(t, o.e.Err(), "an end in order")
				o.e.flushedOf(t, 2)
				require.NoError(t, o.e.Conn.Close())
			}
			require.Empty(t, eventsOf(t, d))
			require.Zero(t, l.n.Load(), "records above Info")
		})
	}
	t.Run("IOP-05 RST after our last Send arrived: over, nothing but the reason is told", func(t *testing.T) {
		var l loud
		d := patient(t, &l)
		o := bye(t, d)
		o.Expect(send(1, "bye"))
		require.Equal(t, verbs.QPSRTS, o.e.State())
		o.Reset()
		o.e.ended(t)
		gone(t, d)
		require.Equal(t, verbs.QPSErr, o.e.State())
		require.ErrorIs(t, o.e.Err(), syscall.ECONNRESET)
		o.e.flushedOf(t, 2) // the Send has succeeded, and nothing else is said about it
		evs := eventsOf(t, d)
		require.Len(t, evs, 1, "the reason, once")
		require.ErrorIs(t, evs[0].Err, syscall.ECONNRESET)
		require.NoError(t, o.e.Conn.Close())
		require.Zero(t, l.n.Load(), "records above Info")
	})
	t.Run("IOP-05 no end of a peer is logged as an error", func(t *testing.T) {
		var l loud
		d, err := iwarp.Open(within(t, time.Minute), iwarp.Config{Backend: iwarp.Kernel, Logger: slog.New(&l), Protocol: iwarp.Protocol{DrainTimeout: time.Second}})
		require.NoError(t, err)
		closeAfter(t, d)
		lis, err := (&rdmacm.ListenConfig{Device: d}).Listen(within(t, 10*time.Second), "127.0.0.1:0")
		require.NoError(t, err)
		defer lis.Close()
		for range 5 {
			p := wiretest.DialPeer(t, lis.Addr().String())
			p.Write(request.Octets())
			req, err := lis.Accept(within(t, 10*time.Second))
			require.NoError(t, err)
			c, err := req.Accept(within(t, 10*time.Second), rdmacm.AcceptConfig{})
			require.NoError(t, err)
			p.Startup()
			p.Reset()
			<-c.Done()
			require.NoError(t, c.Close())
		}
		require.Zero(t, l.n.Load())
	})
}

// TestResponderSpeaksFirst: siw has no gate, and cxgb4's is in its firmware.
func TestResponderSpeaksFirst(t *testing.T) {
	for _, apart := range []time.Duration{0, 20 * time.Millisecond} {
		t.Run(fmt.Sprintf("IOP-09 DDP-53 %v behind the Reply", apart), func(t *testing.T) {
			o := meet(t, iwarp.Protocol{ClientServer: true}, 2, nil)
			rep := known(t, "siw").Answer(t, o.Startup(), 1, 1)
			first := wiretest.Frame(send(1, "welcome"), true)
			if apart == 0 {
				o.Write(append(rep.Octets(), first...))
			} else {
				o.Write(rep.Octets())
				time.Sleep(apart)
				o.Write(first)
			}
			require.NoError(t, <-o.dialed)
			wc := o.e.wait(t, 1)[0]
			require.NoError(t, wc.Err())
			require.EqualValues(t, 7, wc.ByteLen)
			require.Equal(t, "welcome", string(o.e.mr.Bytes()[:7]))
			o.ExpectSilence(10 * time.Millisecond)
			o.e.send(t, verbs.SendWR{Op: verbs.OpSend, Inline: []byte("thanks")})
			o.Expect(send(1, "thanks"))
		})
	}
}

// silentHost is an address where connections are taken and nothing is said.
func silentHost(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { lis.Close() })
	return lis.Addr().String()
}

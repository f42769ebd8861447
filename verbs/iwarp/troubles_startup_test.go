package iwarp_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// The tests here are troubles at start-up that users of other stacks have reported.

func TestSplitReply(t *testing.T) {
	t.Run("MPA-08 the Reply is split in two", func(t *testing.T) {
		for cut := 1; ; cut++ {
			o := meet(t, iwarp.Protocol{}, 1, nil)
			b := known(t, "siw").Answer(t, o.Startup(), 1, 1, []byte("private")...).Octets()
			o.Write(b[:cut])
			time.Sleep(time.Millisecond)
			o.ExpectSilence(time.Millisecond)
			o.Write(b[cut:])
			require.Equal(t, wiretest.ReadRequest(1, 1, 0, 0, 1, 0), meant(o.Peer))
			require.NoError(t, <-o.dialed)
			require.Equal(t, "private", string(o.e.PrivateData()))
			if cut == len(b)-1 {
				break
			}
		}
	})
	t.Run("MPA-08 the Request comes octet by octet", func(t *testing.T) {
		i := call(t, iwarp.Protocol{}, 1, nil)
		b := wiretest.Startup{Flags: wiretest.FlagC, Rev: 1, Private: []byte("slow")}.Octets()
		for _, c := range b {
			i.ExpectSilence(time.Millisecond)
			i.Write([]byte{c})
		}
		require.True(t, i.Startup().Reply)
		require.NoError(t, <-i.accepted)
		require.Equal(t, "slow", string(i.e.PrivateData()))
	})
}

func TestRejectRacesAccept(t *testing.T) {
	t.Run("MPA-14 MPA-15 a reject races an accept", func(t *testing.T) {
		verdicts := map[bool]int{}
		for n := range 60 {
			p, req := asked(t, iwarp.Protocol{DrainTimeout: time.Second}, request)
			ctx := within(t, 10*time.Second)
			var accepted *rdmacm.Conn
			var aerr, rerr error
			var race sync.WaitGroup
			race.Go(func() {
				time.Sleep(time.Duration(n%5) * 10 * time.Microsecond)
				accepted, aerr = req.Accept(ctx, rdmacm.AcceptConfig{})
			})
			race.Go(func() {
				time.Sleep(time.Duration(n/5%5) * 20 * time.Microsecond)
				rerr = req.Reject(ctx, []byte("no"))
			})
			rep := p.Startup()
			race.Wait()
			rejected := rep.Flags&wiretest.FlagR != 0
			verdicts[rejected]++
			require.Equal(t, rejected, aerr != nil, "%v", aerr)
			require.Equal(t, rejected, rerr == nil, "%v", rerr)
			if rejected {
				require.Equal(t, "no", string(rep.Private))
				p.ExpectEOF()
				continue
			}
			p.ExpectSilence(time.Millisecond) // one answer only
			require.NoError(t, accepted.Close())
		}
		t.Logf("rejected: %d, accepted: %d", verdicts[true], verdicts[false])
	})
}

func TestSilentHost(t *testing.T) {
	t.Run("MPA-16 a connect to a silent host ends at its deadline", func(t *testing.T) {
		d := kernel(t, iwarp.Protocol{ConnectTimeout: 200 * time.Millisecond}).a
		began := time.Now()
		_, err := (&rdmacm.Dialer{Device: d}).Dial(within(t, 10*time.Second), silentHost(t))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.GreaterOrEqual(t, time.Since(began), 200*time.Millisecond)
		require.Less(t, time.Since(began), 5*time.Second)
	})
	t.Run("MPA-16 also while an application polls, which keeps the device's own goroutine away", func(t *testing.T) {
		d := kernel(t, iwarp.Protocol{ConnectTimeout: 200 * time.Millisecond}).a
		cq, err := d.CreateCQ(verbs.CQConfig{})
		require.NoError(t, err)
		ctx := within(t, 10*time.Second)
		dialed := make(chan error, 1)
		go func() {
			_, err := (&rdmacm.Dialer{Device: d}).Dial(ctx, silentHost(t))
			dialed <- err
		}()
		began := time.Now()
		for err = nil; err == nil; {
			n, cerr := cq.Poll(make([]verbs.WC, 1))
			require.NoError(t, cerr)
			require.Zero(t, n)
			select {
			case err = <-dialed:
			default:
			}
		}
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Less(t, time.Since(began), 5*time.Second)
		require.NoError(t, cq.Close())
	})
	t.Run("MPA-16 or when the caller's time is up", func(t *testing.T) {
		d := kernel(t, iwarp.Protocol{}).a
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		_, err := (&rdmacm.Dialer{Device: d}).Dial(ctx, silentHost(t))
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("MPA-16 an initiator that says nothing is let go", func(t *testing.T) {
		began := time.Now()
		i := call(t, iwarp.Protocol{RequestTimeout: 200 * time.Millisecond}, 1, nil)
		i.Write(request.Octets()[:19])
		i.ExpectClosed()
		require.GreaterOrEqual(t, time.Since(began), 200*time.Millisecond)
	})
	t.Run("MPA-16 the limits are 5 s and 10 s", func(t *testing.T) {
		if testing.Short() {
			t.Skip("LEFT OUT: it takes 10 s")
		}
		t.Parallel()
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer lis.Close()
		l := kernel(t, iwarp.Protocol{})
		server, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(within(t, time.Minute), "127.0.0.1:0")
		require.NoError(t, err)
		defer server.Close()
		began := time.Now()
		p := wiretest.DialPeer(t, server.Addr().String())
		dialed := make(chan error, 1)
		ctx := within(t, time.Minute)
		go func() {
			_, err := (&rdmacm.Dialer{Device: l.a}).Dial(ctx, lis.Addr().String())
			dialed <- err
		}()
		p.Patience = 20 * time.Second
		p.ExpectClosed()
		require.GreaterOrEqual(t, time.Since(began), 5*time.Second)
		require.Less(t, time.Since(began), 8*time.Second)
		require.ErrorIs(t, <-dialed, os.ErrDeadlineExceeded)
		require.GreaterOrEqual(t, time.Since(began), 10*time.Second)
		require.Less(t, time.Since(began), 15*time.Second)
	})
}

// TestDepthsOfPeer: a peer that wants more Reads than there is room for.
func TestDepthsOfPeer(t *testing.T) {
	for _, ord := range []uint16{0, 1, 17, 128, 129, 0x3ffe, 0x3fff} {
		t.Run(fmt.Sprintf("SEC-40 MPA-37 an initiator with ORD %d, where IRD is 4", ord), func(t *testing.T) {
			i := call(t, iwarp.Protocol{IRD: 4, ORD: 4}, 1, nil)
			rep := i.Initiate(wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2, Private: wiretest.Block(2, ord)})
			require.NoError(t, <-i.accepted)
			ird, ord2 := i.e.ReadDepths()
			require.LessOrEqual(t, ird, iwarp.MaxReadDepth)
			require.Equal(t, 2, ord2, "no more than the peer takes")
			if ord == 0x3fff {
				require.EqualValues(t, 0x3fff, binary.BigEndian.Uint16(rep.Private), "not negotiated")
				return
			}
			require.EqualValues(t, ird, binary.BigEndian.Uint16(rep.Private)&0x3fff)
			require.EqualValues(t, min(int(ord), iwarp.MaxReadDepth), min(ird, int(ord)), "what is asked for and allowed is granted")
		})
	}
	t.Run("MPA-39 a responder with ORD above what we can take", func(t *testing.T) {
		o := meet(t, iwarp.Protocol{ClientServer: true}, 1, nil)
		o.Respond(plain(4, 129))
		o.ExpectTerminate(0x2006)
		o.ExpectEOF()
		require.Error(t, <-o.dialed)
	})
	t.Run("MPA-37 a responder with ORD above what we said, but within the limit", func(t *testing.T) {
		o := meet(t, iwarp.Protocol{ClientServer: true, IRD: 4}, 1, nil)
		o.Respond(plain(4, 100))
		require.NoError(t, <-o.dialed)
		ird, _ := o.e.ReadDepths()
		require.Equal(t, 100, ird)
	})
}

// TestPrivateDataLengths carries private data of every length there is.
func TestPrivateDataLengths(t *testing.T) {
	for _, c := range []struct {
		name  string
		proto iwarp.Protocol
		limit int
	}{
		{"revision 2", iwarp.Protocol{}, 508},
		{"revision 1", iwarp.Protocol{Rev1: true}, 512},
	} {
		t.Run(fmt.Sprintf("MPA-28 SEC-39 private data of 0 to %d octets, %s", c.limit, c.name), func(t *testing.T) {
			step := 1
			if testing.Short() {
				step = 31
			}
			l := kernel(t, c.proto)
			ctx := within(t, 3*time.Minute)
			small := rdmacm.Easy{Messages: 1, Size: 64}
			lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, "127.0.0.1:0")
			require.NoError(t, err)
			defer lis.Close()
			data := make([]byte, c.limit+1)
			fill(data, 7)
			answered := make(chan error)
			go func() {
				defer close(answered)
				for req := range lis.All(ctx) {
					mine := req.PrivateData()
					var err error
					if len(mine)%2 == 1 {
						err = req.Reject(ctx, mine)
					} else {
						var s *rdmacm.Conn
						if s, err = req.Accept(ctx, rdmacm.AcceptConfig{PrivateData: mine, Easy: small}); err == nil {
							err = s.Close()
						}
					}
					answered <- err
				}
			}()
			for n := 0; n <= c.limit; n += step {
				dialed := make(chan error, 1)
				var conn *rdmacm.Conn
				go func() {
					var err error
					conn, err = (&rdmacm.Dialer{Device: l.a, PrivateData: data[:n], Easy: small}).Dial(ctx, lis.Addr().String())
					dialed <- err
				}()
				require.NoError(t, <-answered, "%d octets", n)
				err := <-dialed
				var rejected *verbs.RejectError
				if errors.As(err, &rejected) {
					require.Equal(t, 1, n%2)
					require.Equal(t, string(data[:n]), string(rejected.PrivateData))
					continue
				}
				require.NoError(t, err)
				require.Equal(t, string(data[:n]), string(conn.PrivateData()))
				require.NoError(t, conn.Close())
			}
			_, err = (&rdmacm.Dialer{Device: l.a, PrivateData: data}).Dial(ctx, lis.Addr().String())
			require.ErrorContains(t, err, fmt.Sprint(c.limit))
			require.NoError(t, lis.Close())
			<-answered
		})
	}
	t.Run("MPA-07 SEC-39 a Request with one octet too many", func(t *testing.T) {
		i := call(t, iwarp.Protocol{}, 1, nil)
		i.Write(wiretest.Startup{Flags: wiretest.FlagC, Rev: 1, Private: make([]byte, 513)}.Octets())
		i.ExpectClosed()
	})
	t.Run("MPA-07 SEC-39 a Reply with one octet too many", func(t *testing.T) {
		o := meet(t, iwarp.Protocol{}, 1, nil)
		o.Startup()
		o.Write(wiretest.Startup{Reply: true, Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2, Private: make([]byte, 513)}.Octets())
		o.ExpectClosed()
		require.Error(t, <-o.dialed)
	})
}

// TestRTRWithAnySTag: some hardware names STag 0 in the message that opens the connection.
func TestRTRWithAnySTag(t *testing.T) {
	for _, stag := range []uint32{0, 1, 0x0badcafe, math.MaxUint32} {
		for _, write := range []bool{false, true} {
			t.Run(fmt.Sprintf("MPA-48 SEC-46 the ready-to-receive message has STag %d, a Write: %v", stag, write), func(t *testing.T) {
				i := call(t, iwarp.Protocol{}, 1, nil)
				offer := uint16(wiretest.BlockD)
				if write {
					offer = wiretest.BlockC
				}
				i.Initiate(wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2, Private: wiretest.Block(wiretest.BlockA|1, offer|1)})
				if write {
					i.Send(wiretest.Tagged(0, true, stag, math.MaxUint64, nil))
				} else {
					i.Send(wiretest.ReadRequest(1, stag, 77, 0, stag, math.MaxUint64))
					i.Expect(wiretest.Tagged(2, true, stag, 77, nil))
				}
				require.NoError(t, <-i.accepted)
				i.e.quiet(t)
				i.Send(send(1, "hello"))
				require.NoError(t, i.e.wait(t, 1)[0].Err())
			})
		}
	}
}

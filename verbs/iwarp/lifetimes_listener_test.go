package iwarp_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// small is an easy path that takes little memory.
var small = rdmacm.Easy{Messages: 1, Size: 64}

// TestCrowdWithBacklogOfOne dials a thousand times at once to a listener with
// the least backlog: all get in, each with the answer that was for it.
func TestCrowdWithBacklogOfOne(t *testing.T) {
	crowd := 1000
	if raceEnabled {
		crowd = 200
	}
	forBackends(t, iwarp.Protocol{ConnectTimeout: time.Minute}, func(t *testing.T, l link) {
		ctx := within(t, 90*time.Second)
		lis, err := (&rdmacm.ListenConfig{Device: l.b, Backlog: 1}).Listen(ctx, fmt.Sprintf("%s:0", l.addr))
		require.NoError(t, err)
		defer lis.Close()
		var work sync.WaitGroup
		work.Go(func() {
			for range crowd {
				req, err := lis.Accept(ctx)
				if err != nil {
					t.Errorf("accept: %v", err)
					return
				}
				work.Go(func() {
					c, err := req.Accept(ctx, rdmacm.AcceptConfig{Easy: small, PrivateData: req.PrivateData()})
					if err != nil {
						t.Errorf("accept: %v", err)
						return
					}
					<-c.Done() // until the initiator disconnects
					c.Close()
				})
			}
		})
		start := time.Now()
		var slowest atomic.Int64
		for i := range crowd {
			work.Go(func() {
				d := rdmacm.Dialer{Device: l.a, Easy: small, PrivateData: []byte(fmt.Sprint(i))}
				c, err := d.Dial(ctx, lis.Addr().String())
				if err != nil {
					t.Errorf("dial: %v", err)
					return
				}
				slowest.Store(max(slowest.Load(), int64(time.Since(start))))
				if got := string(c.PrivateData()); got != fmt.Sprint(i) {
					t.Errorf("dial %d got the answer for %s", i, got)
				}
				c.Close()
			})
		}
		work.Wait()
		s := l.b.Stats()
		t.Logf("the last of %d after %v; %d waited behind the backlog, %d were dropped", crowd, time.Duration(slowest.Load()).Round(time.Millisecond),
			s.Counter("cm.backlog_full"), s.Counter("cm.half_open_dropped"))
		require.EqualValues(t, crowd, s.Counter("cm.accepted"))
	})
}

// TestListenerClosedOverRequests closes a listener while requests wait for the
// application in every place there is: each peer gets an answer, Accept ends,
// and a request that was taken before can still be answered.
func TestListenerClosedOverRequests(t *testing.T) {
	forBackends(t, iwarp.Protocol{ConnectTimeout: time.Minute, HalfOpen: 8}, func(t *testing.T, l link) {
		ctx := within(t, 60*time.Second)
		lis, err := (&rdmacm.ListenConfig{Device: l.b, Backlog: 2}).Listen(ctx, fmt.Sprintf("%s:0", l.addr))
		require.NoError(t, err)
		const peers = 60
		type outcome struct {
			conn *rdmacm.Conn
			err  error
		}
		outcomes := make(chan outcome, peers)
		for range peers {
			go func() {
				c, err := (&rdmacm.Dialer{Device: l.a, Easy: small}).Dial(ctx, lis.Addr().String())
				outcomes <- outcome{c, err}
			}()
		}
		taken, err := lis.Accept(ctx)
		require.NoError(t, err)
		require.Eventually(t, func() bool { s := l.b.Stats(); return s.Counter("cm.backlog_full") > 0 }, 20*time.Second, time.Millisecond)
		require.NoError(t, lis.Close())
		_, err = lis.Accept(ctx)
		require.ErrorIs(t, err, verbs.ErrClosed)

		c, err := taken.Accept(ctx, rdmacm.AcceptConfig{Easy: small})
		require.NoError(t, err, "what was taken stays")
		refusals := 0
		for range peers {
			select {
			case o := <-outcomes:
				if o.err == nil {
					require.NoError(t, o.conn.Close())
					continue
				}
				refusals++
				var op *verbs.OpError
				require.ErrorAs(t, o.err, &op)
				require.False(t, errors.Is(o.err, context.DeadlineExceeded) || errors.Is(o.err, syscall.ETIMEDOUT), "an answer, not the end of patience: %v", o.err)
			case <-ctx.Done():
				require.Fail(t, "a peer got no answer")
			}
		}
		require.Equal(t, peers-1, refusals, "those that nobody had taken")
		require.NoError(t, c.Close())
		_, err = (&rdmacm.Dialer{Device: l.a, Easy: small}).Dial(ctx, lis.Addr().String())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

// TestPeersLeaveBehindTheBacklog has peers give up while they wait for their
// turn: they take nobody's place.
func TestPeersLeaveBehindTheBacklog(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		ctx := within(t, 60*time.Second)
		lis, err := (&rdmacm.ListenConfig{Device: l.b, Backlog: 1}).Listen(ctx, fmt.Sprintf("%s:0", l.addr))
		require.NoError(t, err)
		defer lis.Close()
		impatient, leave := context.WithCancel(ctx)
		var gone sync.WaitGroup
		for range 20 {
			gone.Go(func() {
				_, err := (&rdmacm.Dialer{Device: l.a, Easy: small}).Dial(impatient, lis.Addr().String())
				if !errors.Is(err, context.Canceled) {
					t.Errorf("dial: %v", err)
				}
			})
		}
		require.Eventually(t, func() bool { s := l.b.Stats(); return s.Counter("cm.backlog_full") > 0 }, 20*time.Second, time.Millisecond)
		leave()
		gone.Wait()
		dialed := make(chan error, 1)
		go func() {
			c, err := (&rdmacm.Dialer{Device: l.a, Easy: small}).Dial(ctx, lis.Addr().String())
			if err == nil {
				err = c.Close()
			}
			dialed <- err
		}()
		for left := 0; ; left++ {
			req, err := lis.Accept(ctx)
			require.NoError(t, err)
			c, err := req.Accept(ctx, rdmacm.AcceptConfig{Easy: small})
			if err == nil {
				<-c.Done()
				require.NoError(t, c.Close())
				break
			}
			require.Less(t, left, 20)
		}
		require.NoError(t, <-dialed)
	})
}

// TestReconnectManyTimes connects and disconnects again and again from one address to
// one listener, either side first.
func TestReconnectManyTimes(t *testing.T) {
	times := 1000
	if raceEnabled {
		times = 150
	}
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		ctx := within(t, 90*time.Second)
		lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, fmt.Sprintf("%s:0", l.addr))
		require.NoError(t, err)
		defer lis.Close()
		done := make(chan error, 1)
		go func() {
			for i := range times {
				req, err := lis.Accept(ctx)
				if err != nil {
					done <- err
					return
				}
				c, err := req.Accept(ctx, rdmacm.AcceptConfig{Easy: small})
				if err != nil {
					done <- err
					return
				}
				if i%2 == 0 {
					<-c.Done()
				}
				if err := c.Close(); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		for i := range times {
			c, err := (&rdmacm.Dialer{Device: l.a, Easy: small}).Dial(ctx, lis.Addr().String())
			require.NoError(t, err, "dial %d", i)
			if i%2 == 1 {
				<-c.Done()
			}
			require.NoError(t, c.Close())
		}
		require.NoError(t, <-done)
	})
}

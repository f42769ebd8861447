package capture_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrdma/softrdma/internal/capture"
	"github.com/softrdma/softrdma/pktio"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// gate is a writer that can be held up and made to fail.
type gate struct {
	mu   sync.Mutex
	hold chan struct{} // not nil: Write waits for it
	err  error
	buf  bytes.Buffer
}

func (g *gate) set(hold chan struct{}, err error) {
	g.mu.Lock()
	g.hold, g.err = hold, err
	g.mu.Unlock()
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	hold := g.hold
	g.mu.Unlock()
	if hold != nil {
		<-hold
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return 0, g.err
	}
	return g.buf.Write(p)
}

func TestTapHeadFails(t *testing.T) {
	defer goleak.VerifyNone(t)
	a, b, err := pktio.NewPipe(pktio.PipeConfig{})
	require.NoError(t, err)
	defer b.Close()
	defer a.Close()
	g := &gate{err: errors.New("disk full")}
	_, err = capture.NewTap(a, g)
	require.EqualError(t, err, "capture: the head of the file cannot be written: disk full")
}

func TestTapWriterFails(t *testing.T) {
	defer goleak.VerifyNone(t)
	g := &gate{}
	tap, b := tapPipe(t, g)
	g.set(nil, errors.New("disk full"))
	batch := make([]pktio.Frame, 1)
	for range 10 {
		_, err := tap.Send([]pktio.Frame{tapFrame(t, 100, false, false)})
		require.NoError(t, err)
		n, err := b.Recv(batch, -1)
		require.NoError(t, err)
		require.Equal(t, 1, n, "traffic goes on")
	}
	require.EqualError(t, tap.Close(), "capture: 10 of 10 frames are missing from the file: disk full")
	require.EqualValues(t, 10, tap.Stats().Failed)
	require.NoError(t, tap.Close())
}

// A writer that is held up holds traffic up for a moment, then no longer; when it comes back frames are recorded again.
func TestTapWriterStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		tap, b := tapPipe(t, g)
		hold := make(chan struct{})
		g.set(hold, nil)
		big := tapFrame(t, 65000, false, true)
		batch := make([]pktio.Frame, 1)
		send := func(f pktio.Frame) {
			_, err := tap.Send([]pktio.Frame{f})
			require.NoError(t, err)
			_, err = b.Recv(batch, -1)
			require.NoError(t, err)
		}
		send(big)
		synctest.Wait() // the goroutine is stuck with it
		start := time.Now()
		sent := 1
		for ; tap.Stats().Missed == 0; sent++ {
			send(big)
		}
		require.Equal(t, 500*time.Millisecond, time.Since(start))
		require.Greater(t, sent, 200)
		for range 100 {
			send(big)
			sent++
		}
		require.Equal(t, 500*time.Millisecond, time.Since(start), "waited once")
		require.EqualValues(t, 101, tap.Stats().Missed)
		close(hold)
		synctest.Wait()
		send(big)
		sent++
		require.EqualValues(t, 101, tap.Stats().Missed)
		require.EqualError(t, tap.Close(), fmt.Sprintf("capture: 101 of %d frames are missing from the file: the writer was too slow", sent))
		r, got := readTap(t, g.buf.Bytes())
		require.Len(t, got, sent-101)
		intf, err := r.Interface(0)
		require.NoError(t, err)
		require.EqualValues(t, 101, intf.Statistics.PacketsDropped)
		require.EqualValues(t, sent, intf.Statistics.PacketsReceived)
	})
}

// slow is a writer that takes a while for everything.
type slow struct{ bytes.Buffer }

func (s *slow) Write(p []byte) (int, error) {
	time.Sleep(time.Millisecond)
	return s.Buffer.Write(p)
}

// A slow writer slows traffic down and loses nothing.
func TestTapWriterIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := new(slow)
		tap, b := tapPipe(t, w)
		big := tapFrame(t, 65000, false, true)
		batch := make([]pktio.Frame, 1)
		start := time.Now()
		for range 300 {
			_, err := tap.Send([]pktio.Frame{big, big})
			require.NoError(t, err)
			for range 2 {
				_, err = b.Recv(batch, -1)
				require.NoError(t, err)
			}
		}
		require.NotZero(t, time.Since(start))
		require.NoError(t, tap.Close())
		_, got := readTap(t, w.Bytes())
		require.Len(t, got, 600)
	})
}

func TestTapCloseDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{}
		tap, b := tapPipe(t, g)
		hold := make(chan struct{})
		g.set(hold, nil)
		_, err := tap.Send([]pktio.Frame{tapFrame(t, 100, false, false)})
		require.NoError(t, err)
		blocked := make(chan error)
		go func() {
			_, err := tap.Recv(make([]pktio.Frame, 1), -1)
			blocked <- err
		}()
		synctest.Wait()
		closed := make(chan error)
		start := time.Now()
		go func() { closed <- tap.Close() }()
		require.ErrorIs(t, <-blocked, net.ErrClosed, "the port closes first")
		require.ErrorContains(t, <-closed, "the writer does not come back")
		require.Equal(t, 6*time.Second, time.Since(start))
		close(hold)
		require.NoError(t, b.Close())
	})
}

// A pipe that nobody reads is told that time is over, and Close ends in good order.
func TestTapCloseEndsABlockedPipe(t *testing.T) {
	if testing.Short() {
		t.Skip("LEFT OUT: waits for five seconds; run without -short")
	}
	t.Parallel()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	tap, b := tapPipe(t, w)
	batch := make([]pktio.Frame, 1)
	for range 10 { // more than a pipe holds
		_, err := tap.Send([]pktio.Frame{tapFrame(t, 65000, false, true)})
		require.NoError(t, err)
		_, err = b.Recv(batch, -1)
		require.NoError(t, err)
	}
	require.ErrorIs(t, tap.Close(), os.ErrDeadlineExceeded)
	require.NoError(t, w.Close())
	require.NoError(t, r.Close())
}

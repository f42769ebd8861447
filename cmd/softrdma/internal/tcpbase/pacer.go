package tcpbase

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"
)

// pacer tells a test to come to its end, and then to end.
type pacer struct {
	soft   atomic.Bool // finish what is under way
	hard   atomic.Bool // give up
	cancel func() bool
}

func newPacer(ctx context.Context) *pacer {
	p := &pacer{}
	p.cancel = context.AfterFunc(ctx, func() {
		p.soft.Store(true)
		time.AfterFunc(graceTime, func() { p.hard.Store(true) })
	})
	return p
}

func (p *pacer) stop()         { p.cancel() }
func (p *pacer) stopped() bool { return p.soft.Load() }

var errCut = errors.New("the peer did not come to the end of the test")

// quitFunc is asked by a spinning stream now and then whether it shall go on,
// and is told how long nothing has moved.
type quitFunc func(idle time.Duration) error

// hurry is the client's quitFunc.
func (p *pacer) hurry(time.Duration) error {
	if p.hard.Load() {
		return errCut
	}
	return nil
}

// cut ends whatever waits on the connection.
func (p *pacer) cut(conn net.Conn) {
	p.soft.Store(true)
	p.hard.Store(true)
	_ = conn.SetDeadline(time.Now()) // it fails where the spinning stream has taken the connection over
}

package pktio

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// pingPong bounces a frame between two ports, both polled by this goroutine.
func pingPong(b *testing.B, x, y Port, size int) {
	lx, ly := x.Link(), y.Link()
	tx := one(rawFrame(ly.Addr, lx.Addr, size))
	rx := make([]Frame, 8)
	spin := func(p Port) {
		for {
			n, err := p.Recv(rx, 0)
			if err != nil {
				b.Fatal(err)
			}
			for i := range rx[:n] {
				if d := rx[i].Data[0]; len(d) == size && d[12] == testType>>8 {
					return
				}
			}
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		copy(tx[0].Data[0], ly.Addr[:])
		if n, err := x.Send(tx); n != 1 {
			b.Fatal(err)
		}
		spin(y)
		copy(tx[0].Data[0], lx.Addr[:])
		if n, err := y.Send(tx); n != 1 {
			b.Fatal(err)
		}
		spin(x)
	}
}

// bulk sends frames from x, which a goroutine receives from y, never more than a window ahead.
func bulk(b *testing.B, x, y Port, f Frame) {
	const window = 64
	var received atomic.Int64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		rx := make([]Frame, 32)
		for {
			n, err := y.Recv(rx, time.Millisecond)
			if err != nil {
				return
			}
			for i := range rx[:n] {
				if rx[i].Len() == f.Len() {
					received.Add(1)
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	b.SetBytes(int64(f.Len()))
	b.ReportAllocs()
	batch := []Frame{f}
	sent := int64(0)
	wait := func(ahead int64) {
		for sent-received.Load() > ahead {
			runtime.Gosched()
		}
	}
	for b.Loop() {
		wait(window)
		if n, err := x.Send(batch); n != 1 {
			b.Fatal(err)
		}
		sent++
	}
	wait(0)
	close(stop)
	<-done
}

func BenchmarkPipeRoundTrip(b *testing.B) {
	x, y := newPipe(b, PipeConfig{})
	pingPong(b, x, y, 64)
}

func BenchmarkPipeBulk(b *testing.B) {
	for _, n := range []int{1514, 65000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x, y := newPipe(b, PipeConfig{GSO: true})
			f := Frame{Data: [][]byte{rawFrame(y.link.Addr, x.link.Addr, n)}}
			if n > 1514 {
				f = tcpFrame(b, pattern(n), tcpOpts{gso: 1448, dst: y.link.Addr})
			}
			bulk(b, x, y, f)
		})
	}
}

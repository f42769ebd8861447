package pktio

import (
	"sync"
	"testing"
)

func BenchmarkVethRoundTrip(b *testing.B) {
	x, y := vethPair(b, 1500)
	pingPong(b, x, y, 64)
}

func BenchmarkVethBulk(b *testing.B) {
	for name, n := range map[string]int{"1514": 1514, "64KiB": 65000} {
		b.Run(name, func(b *testing.B) {
			x, y := vethPair(b, 1500)
			f := Frame{Data: [][]byte{rawFrame(y.link.Addr, x.link.Addr, n)}}
			if n > 1514 {
				f = tcpFrame(b, pattern(n), tcpOpts{gso: 1448, dst: y.link.Addr, src: x.link.Addr})
			}
			bulk(b, x, y, f)
		})
	}
}

// What looking at the interface costs before each wait.
func BenchmarkVethLook(b *testing.B) {
	_, y := vethPair(b, 1500)
	b.ReportAllocs()
	for b.Loop() {
		_ = y.raw.Control(y.rx.look)
	}
}

// A frame that has to wake the receiver, there and back.
func BenchmarkVethRoundTripBlocking(b *testing.B) {
	x, y := vethPair(b, 1500)
	lx, ly := x.Link(), y.Link()
	var echo sync.WaitGroup
	echo.Go(func() {
		rx, tx := make([]Frame, 1), one(rawFrame(lx.Addr, ly.Addr, 64))
		for {
			n, err := y.Recv(rx, -1)
			if err != nil {
				return
			}
			if n == 1 && rx[0].Data[0][12] == testType>>8 {
				_, _ = y.Send(tx)
			}
		}
	})
	rx, tx := make([]Frame, 1), one(rawFrame(ly.Addr, lx.Addr, 64))
	b.ReportAllocs()
	for b.Loop() {
		if n, err := x.Send(tx); n != 1 {
			b.Fatal(err)
		}
		for got := false; !got; {
			n, err := x.Recv(rx, -1)
			if err != nil {
				b.Fatal(err)
			}
			got = n == 1 && rx[0].Data[0][12] == testType>>8
		}
	}
	b.StopTimer()
	_ = y.Close()
	echo.Wait()
}

package pktio

import (
	"net/netip"
	"sync"
	"testing"
)

// xdpBench runs a benchmark with AF_XDP ports in both modes.
func xdpBench(b *testing.B, f func(b *testing.B, mode XDPMode)) {
	for _, mode := range []XDPMode{XDPNative, XDPGeneric} {
		b.Run(mode.String(), func(b *testing.B) { f(b, mode) })
	}
}

func BenchmarkXDPRoundTrip(b *testing.B)       { benchXDPRoundTrip(b, false) }
func BenchmarkXDPRoundTripSocket(b *testing.B) { benchXDPRoundTrip(b, true) }

func benchXDPRoundTrip(b *testing.B, socket bool) {
	xdpBench(b, func(b *testing.B, mode XDPMode) {
		enterNetns(b)
		newVeth(b, 1500)
		x := openXDP(b, XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, Mode: mode, SendSocket: socket})
		y := openXDP(b, XDPConfig{Interface: vethB, Addrs: []netip.Addr{addrB}, Mode: mode, SendSocket: socket})
		tx := [2][]Frame{one(ipFrame(y.link.Addr, x.link.Addr, addrB, 64)), one(ipFrame(x.link.Addr, y.link.Addr, addrA, 64))}
		rx := make([]Frame, 8)
		b.ReportAllocs()
		for b.Loop() {
			for i, p := range []*XDP{x, y} {
				if n, err := p.Send(tx[i]); n != 1 {
					b.Fatal(err)
				}
				to := y
				if i == 1 {
					to = x
				}
				for got := false; !got; {
					n, err := to.Recv(rx, 0)
					if err != nil {
						b.Fatal(err)
					}
					got = n > 0 && isIPFrame(&rx[n-1])
				}
			}
		}
	})
}

func BenchmarkXDPBulk(b *testing.B) {
	xdpBench(b, func(b *testing.B, mode XDPMode) {
		x, y := xdpPair(b, 1500, mode)
		bulk(b, x, y, Frame{Data: [][]byte{ipFrame(y.link.Addr, x.link.Addr, addrB, 1514)}})
	})
}

// A frame that has to wake the receiver, there and back.
func BenchmarkXDPRoundTripBlocking(b *testing.B) {
	xdpBench(b, func(b *testing.B, mode XDPMode) {
		x, y := xdpPair(b, 1500, mode)
		var echo sync.WaitGroup
		echo.Go(func() {
			rx, tx := make([]Frame, 1), one(ipFrame(x.link.Addr, y.link.Addr, addrA, 64))
			for {
				n, err := y.Recv(rx, -1)
				if err != nil {
					return
				}
				if n == 1 && isIPFrame(&rx[0]) {
					_, _ = y.Send(tx)
				}
			}
		})
		rx, tx := make([]Frame, 1), one(ipFrame(y.link.Addr, x.link.Addr, addrB, 64))
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
				got = n == 1 && isIPFrame(&rx[0])
			}
		}
		b.StopTimer()
		_ = y.Close()
		echo.Wait()
	})
}

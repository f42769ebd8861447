package netstack

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkRoundTrip sends 64 octets and waits for them to come back. Both ends poll and spin.
func BenchmarkRoundTrip(b *testing.B) {
	for _, car := range carriers() {
		b.Run(car.name+"/64B", func(b *testing.B) { benchRoundTrip(b, car.make(b, Config{}), 64) })
	}
	b.Run("blocking-sockets/64B", func(b *testing.B) { benchBlocking(b, 64) })
}

func benchRoundTrip(b *testing.B, p *pair, size int) {
	ca, cb, _ := p.connect()
	srv := startEngine(b, p, p.b.Stack, nil)
	ready := make(chan struct{})
	srv.do(func() { cb.SetOwner(srv.echo(cb)); close(ready) })
	<-ready
	msg := [][]byte{make([]byte, size)}
	ev := make([]Event, 1)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if err := ca.Writev(msg); err != nil {
			b.Fatal(err)
		}
		for got := 0; got < size; {
			p.a.Poll(ev, -1)
			pieces, err := ca.Peek()
			if err != nil {
				b.Fatal(err)
			}
			n := length(pieces)
			ca.Discard(n)
			got += n
		}
	}
	b.StopTimer()
	srv.end()
}

// benchBlocking is the same over package net: what a program without this package has.
func benchBlocking(b *testing.B, size int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(c.(interface{ io.ReadWriteCloser }), onlyReader{c})
		_ = c.Close()
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(b, err)
	defer c.Close()
	buf := make([]byte, size)
	b.ResetTimer()
	for range b.N {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
}

type onlyReader struct{ io.Reader }

// BenchmarkBulk sends messages of 1 MiB one way.
func BenchmarkBulk(b *testing.B) {
	for _, car := range carriers() {
		b.Run(car.name+"/1MiB", func(b *testing.B) { benchBulk(b, car.make(b, Config{})) })
	}
}

func benchBulk(b *testing.B, p *pair) {
	const size = 1 << 20
	all := make(chan struct{})
	got := 0
	var once sync.Once
	srv := startEngine(b, p, p.b.Stack, nil)
	srv.accept = func(*Conn) handler {
		return func(c *Conn) {
			for {
				pieces, err := c.Peek()
				n := length(pieces)
				c.Discard(n)
				got += n
				if err != nil {
					once.Do(func() { close(all) })
					return
				}
				if n == 0 {
					return
				}
			}
		}
	}
	l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 1)
	require.NoError(b, err)
	c, err := p.a.Dial(netip.Addr{}, l.Addr())
	require.NoError(b, err)
	ev := make([]Event, 1)
	for ok := false; !ok; ok, err = c.Connected() {
		require.NoError(b, err)
		p.a.Poll(ev, time.Second)
	}
	part := [][]byte{make([]byte, 128<<10)}
	b.SetBytes(size)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		for sent := 0; sent < size; {
			if c.Room() < len(part[0]) {
				p.a.Poll(ev, -1)
				continue
			}
			if err := c.Writev(part); err != nil && !errors.Is(err, ErrNoRoom) {
				b.Fatal(err)
			}
			sent += len(part[0])
		}
	}
	require.NoError(b, c.CloseWrite())
	for end := false; !end; {
		select {
		case <-all:
			end = true
		default:
			p.a.Poll(ev, time.Millisecond)
		}
	}
	b.StopTimer()
	require.Equal(b, b.N*size, got)
	b.ReportMetric(float64(p.a.Stats().Retransmits), "retransmits")
	b.ReportMetric(float64(p.a.Stats().DropsOut+p.b.Stats().DropsOut), "drops")
	srv.end()
}

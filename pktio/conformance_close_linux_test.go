package pktio

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPortsClose(t *testing.T) {
	eachKind(t, 1500, portConfig{}, func(t *testing.T, a, b end) {
		for _, wait := range []time.Duration{-1, time.Minute, 0} {
			failed := make(chan error)
			go func() {
				for {
					if _, err := b.Recv(make([]Frame, 4), wait); err != nil {
						failed <- err
						return
					}
				}
			}()
			if wait == -1 {
				time.Sleep(10 * time.Millisecond) // most likely it is blocked by now
				require.NoError(t, b.Close())
			}
			require.ErrorIs(t, <-failed, ErrClosed)
		}
		require.NoError(t, b.Close(), "idempotent")
		_, err := b.Send(one(b.frameTo(a, 60)))
		require.ErrorIs(t, err, ErrClosed)
	})
}

func TestPortsKeepLentFramesAcrossClose(t *testing.T) {
	eachKind(t, 9000, portConfig{}, func(t *testing.T, a, b end) {
		for _, n := range []int{100, 9000} {
			a.sendAll(t, one(a.numbered(b, n, n)))
		}
		batch := make([]Frame, 8)
		var held []Frame
		for len(held) == 0 || held[len(held)-1].Len() != 9000 {
			time.Sleep(10 * time.Millisecond)
			n, err := b.Recv(batch, time.Second)
			require.NoError(t, err)
			held = batch[:n]
		}
		require.NoError(t, b.Close())
		require.Equal(t, a.numbered(b, 9000, 9000), octets(&held[len(held)-1]))
		_, err := b.Recv(batch, -1)
		require.ErrorIs(t, err, ErrClosed)
	})
}

// Close at any moment, with a sender and a receiver at work, and the next port at once.
func TestPortsCloseConcurrently(t *testing.T) {
	for _, kind := range portKinds {
		t.Run(kind.name, func(t *testing.T) {
			enterNetns(t)
			newVeth(t, 1500)
			peer, err := kind.open(portConfig{name: vethB, addr: addrB, ring: 64})
			leaveOut(t, err)
			require.NoError(t, err)
			defer peer.Close()
			b := end{peer, addrB}
			for range 30 {
				p, err := kind.open(portConfig{name: vethA, addr: addrA, ring: 64})
				require.NoError(t, err)
				a := end{p, addrA}
				var wg sync.WaitGroup
				sum := 0
				wg.Go(func() {
					batch := make([]Frame, 4)
					for i := 0; ; i++ {
						wait := time.Duration(-1)
						if i%2 == 0 {
							wait = time.Millisecond
						}
						n, err := a.Recv(batch, wait)
						if err != nil {
							if !errors.Is(err, ErrClosed) {
								t.Error(err)
							}
							return
						}
						for i := range batch[:n] {
							for _, o := range batch[i].Data[0] {
								sum += int(o) // a fault here would be fatal
							}
						}
					}
				})
				for _, dir := range [][2]end{{a, b}, {b, a}} {
					f := one(dir[0].frameTo(dir[1], 1000))
					wg.Go(func() {
						for range 1000 {
							if _, err := dir[0].Send(f); err != nil {
								if dir[0] == b || !errors.Is(err, ErrClosed) {
									t.Error(err)
								}
								return
							}
						}
					})
				}
				time.Sleep(time.Millisecond)
				require.NoError(t, p.Close())
				wg.Wait()
				if packet, ok := p.(*Packet); ok {
					require.Nil(t, packet.rx.short.mem)
					require.Nil(t, packet.rx.long.mem)
				}
			}
		})
	}
}

func TestPortsMisusePanics(t *testing.T) {
	eachKind(t, 1500, portConfig{}, func(t *testing.T, a, _ end) {
		var state interface {
			Or(uint32) uint32
			And(uint32) uint32
		}
		switch p := a.Port.(type) {
		case *Packet:
			state = &p.state
			p.sending.Store(true)
			require.PanicsWithValue(t, "pktio: two goroutines in Send", func() { _, _ = a.Send(nil) })
			p.sending.Store(false)
		case *XDP:
			state = &p.state
			state.Or(stateSending)
			require.PanicsWithValue(t, "pktio: two goroutines in Send", func() { _, _ = a.Send(nil) })
			state.And(^uint32(stateSending))
		}
		state.Or(stateReceiving)
		require.PanicsWithValue(t, "pktio: two goroutines in Recv", func() { _, _ = a.Recv(nil, 0) })
		state.And(^uint32(stateReceiving))
	})
}

package pktio

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// await sends a frame again and again until it comes: an interface that came up takes a while to find its carrier.
func await(t *testing.T, from, to end) {
	t.Helper()
	batch := make([]Frame, 4)
	for until := time.Now().Add(20 * time.Second); ; {
		_, err := from.Send(one(from.frameTo(to, 60)))
		require.NoError(t, err)
		n, err := to.Recv(batch, time.Millisecond)
		require.NoError(t, err)
		if n > 0 && isIPFrame(&batch[n-1]) {
			break
		}
		require.True(t, time.Now().Before(until), "no frame came")
	}
	for n := 1; n > 0; { // leave nothing over
		var err error
		n, err = to.Recv(batch, 0)
		require.NoError(t, err)
	}
}

// outages returns how often p found its interface down.
func outages(p Port) uint64 {
	if packet, ok := p.(*Packet); ok {
		return packet.Stats().Outages
	}
	return p.(*XDP).Stats().Outages
}

func TestPortsInterfaceGoesDown(t *testing.T) {
	eachKind(t, 1500, portConfig{grace: -1}, func(t *testing.T, a, b end) {
		const text = `pktio: interface sr-pktio-a is down: "ip link set sr-pktio-a up" brings it up: network is down`
		failed := make(chan error)
		for _, d := range []time.Duration{-1, time.Minute, time.Millisecond, 0} {
			go func() {
				for {
					if _, err := a.Recv(make([]Frame, 4), d); err != nil {
						failed <- err
						return
					}
				}
			}()
			time.Sleep(10 * time.Millisecond) // most likely it is blocked by now
			setUp(t, vethA, false)
			err := <-failed
			require.ErrorIs(t, err, syscall.ENETDOWN, "wait %v", d)
			require.EqualError(t, err, text)
			_, err = a.Recv(make([]Frame, 4), -1)
			require.EqualError(t, err, text, "as long as it is down")
			for range 3 {
				_, err = a.Send(one(a.frameTo(b, 60)))
				require.ErrorIs(t, err, syscall.ENETDOWN)
				require.EqualError(t, err, text)
			}
			n, err := a.Send(one(a.frameTo(b, 60)))
			require.EqualError(t, err, text)
			require.Zero(t, n)
			setUp(t, vethA, true)
			await(t, a, b)
			await(t, b, a)
		}
		require.EqualValues(t, 4, outages(a.Port))
	})
}

// An interface that is down for less than the grace is nobody's business.
func TestPortsInterfaceFlaps(t *testing.T) {
	eachKind(t, 1500, portConfig{}, func(t *testing.T, a, b end) {
		for range 3 {
			got := make(chan error, 1)
			go func() {
				batch := make([]Frame, 1)
				for {
					n, err := a.Recv(batch, -1)
					if err != nil || n == 1 && isIPFrame(&batch[0]) {
						got <- err
						return
					}
				}
			}()
			before := outages(a.Port)
			setUp(t, vethA, false)
			for outages(a.Port) == before {
				time.Sleep(time.Millisecond)
			}
			setUp(t, vethA, true)
			for until := time.Now().Add(20 * time.Second); len(got) == 0 && time.Now().Before(until); time.Sleep(time.Millisecond) {
				_, err := b.Send(one(b.frameTo(a, 60)))
				require.NoError(t, err)
			}
			require.NoError(t, <-got)
		}
	})
}

// The grace runs out for a receiver that waits, whether or not it gave the wait an end.
func TestPortsInterfaceStaysDown(t *testing.T) {
	const grace = 200 * time.Millisecond
	eachKind(t, 1500, portConfig{grace: grace}, func(t *testing.T, a, _ end) {
		for _, wait := range []time.Duration{-1, time.Minute, 10 * time.Millisecond} {
			start := time.Now()
			setUp(t, vethA, false)
			for {
				n, err := a.Recv(make([]Frame, 1), wait)
				if err != nil {
					require.ErrorIs(t, err, syscall.ENETDOWN)
					break
				}
				require.Zero(t, n)
			}
			require.GreaterOrEqual(t, time.Since(start), grace-10*time.Millisecond)
			setUp(t, vethA, true)
			for n, err := 0, error(nil); n == 0 && err == nil; { // it sees that it is up
				n, err = a.Recv(make([]Frame, 1), 50*time.Millisecond)
				if n == 0 {
					break
				}
			}
		}
	})
}

func TestPortsPeerGoesDown(t *testing.T) {
	eachKind(t, 1500, portConfig{}, func(t *testing.T, a, b end) {
		setUp(t, vethB, false)
		for range 200 {
			_, err := a.Send(one(a.frameTo(b, 60)))
			require.NoError(t, err, "no carrier is no error: the frame has no way to go")
		}
		setUp(t, vethB, true)
		for until := time.Now().Add(20 * time.Second); ; {
			_, err := a.Send(one(a.frameTo(b, 777)))
			require.NoError(t, err)
			rx := make([]Frame, 1)
			if n, _ := b.Recv(rx, time.Millisecond); n == 1 && isIPFrame(&rx[0]) {
				require.Equal(t, 777, rx[0].Len(), "nothing from before")
				break
			}
			require.True(t, time.Now().Before(until))
		}
	})
}

func TestPortsInterfaceIsDeleted(t *testing.T) {
	const text = `pktio: interface sr-pktio-a is gone, deleted or moved to another network namespace: open the device anew when it is back: network is down`
	for _, d := range []time.Duration{-1, 0} {
		eachKind(t, 1500, portConfig{}, func(t *testing.T, a, b end) {
			failed, sent := make(chan error, 1), make(chan error, 1)
			go func() {
				for {
					if _, err := a.Recv(make([]Frame, 4), d); err != nil {
						failed <- err
						return
					}
				}
			}()
			// The sender may hear of it first.
			go func() {
				frame := one(a.frameTo(b, 60))
				for {
					if _, err := a.Send(frame); err != nil {
						sent <- err
						return
					}
				}
			}()
			time.Sleep(10 * time.Millisecond)
			l, err := netlink.LinkByName(vethA)
			require.NoError(t, err)
			require.NoError(t, netlink.LinkDel(l))
			err = <-failed
			require.ErrorIs(t, err, syscall.ENETDOWN)
			require.EqualError(t, err, text)
			require.ErrorIs(t, <-sent, syscall.ENETDOWN)
			for range 3 {
				_, err = a.Send(one(make([]byte, 60)))
				require.EqualError(t, err, text)
			}
			// One of the same name does not bring it back.
			newVeth(t, 1500)
			_, err = a.Recv(make([]Frame, 1), -1)
			require.EqualError(t, err, text)
		})
	}
}

package pktio

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// Super-frames that a port sends through its packet socket arrive, whole or cut, with checksums that are right or left to
// be finished.
func TestXDPSendsSuperFrames(t *testing.T) {
	xdpModes(t, func(t *testing.T, mode XDPMode) {
		for _, peerMode := range []XDPMode{XDPNative, XDPGeneric} {
			t.Run("to "+peerMode.String(), func(t *testing.T) {
				enterNetns(t)
				newVeth(t, 1500)
				a := openXDP(t, XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, Mode: mode, SendSocket: true})
				if !a.socket {
					t.Skip("LEFT OUT: checksums of frames sent need Linux 6.11")
				}
				b := openXDP(t, XDPConfig{Interface: vethB, Addrs: tcpAddrs, Mode: peerMode})
				want := Link{MTU: 1500, Addr: a.link.Addr, MaxFrame: MaxSuperFrame, GSO: true, Checksum: true, Name: vethA}
				require.Equal(t, want, a.Link())
				sent := uint64(0)
				for _, v6 := range []bool{false, true} {
					for _, n := range []int{0, 1, 1400, 1401, 4000, 20000, 65000} {
						o := tcpOpts{v6: v6, partial: true}
						if n > 1400 {
							o.gso = 1400
						}
						f := tcpTo(t, b, a, n, o)
						k, err := a.Send([]Frame{f})
						require.NoError(t, err)
						require.Equal(t, 1, k)
						sent++
						head := f.Len() - n
						var payload []byte
						for first := true; first || len(payload) < n; first = false {
							got := recvTCP(t, b)
							require.True(t, tcpOK(&got))
							require.True(t, peerMode == XDPGeneric || got.Len() <= head+1400)
							payload = append(payload, got.Data[0][head:]...)
						}
						require.Equal(t, pattern(n), append([]byte{}, payload...))
					}
				}
				require.Equal(t, sent, a.Stats().TxFrames)
				require.Zero(t, b.Stats().RxTooLong+b.Stats().RxDropped+b.Stats().RxRingFull)
			})
		}
	})
}

// Plain frames and super-frames go two ways and keep their order.
func TestXDPSocketKeepsOrder(t *testing.T) {
	xdpModes(t, func(t *testing.T, mode XDPMode) {
		enterNetns(t)
		newVeth(t, 1500)
		a := openXDP(t, XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, Mode: mode, SendSocket: true})
		b := openXDP(t, XDPConfig{Interface: vethB, Addrs: tcpAddrs, Mode: mode})
		if !a.socket {
			t.Skip("LEFT OUT: checksums of frames sent need Linux 6.11")
		}
		frame := func(i int) Frame {
			o, n := tcpOpts{dst: b.link.Addr, src: a.link.Addr, partial: true}, 100
			if i%3 == 0 {
				o.gso, n = 1400, 2000
			}
			payload := pattern(n)
			payload[0] = byte(i)
			return tcpFrame(t, payload, o)
		}
		next, rx := 0, make([]Frame, 64)
		for i := 0; i < 200; {
			var batch []Frame
			for range 1 + i%4 {
				batch = append(batch, frame(i))
				i++
			}
			end{Port: a}.sendAll(t, batch)
			for n := 1; n > 0; {
				var err error
				n, err = b.Recv(rx, 0)
				require.NoError(t, err)
				for k := range n {
					if d := octets(&rx[k]); isTCP(&rx[k]) && len(d) != 54+600 { // the second half of a super-frame
						require.Equal(t, byte(next), d[54])
						next++
					}
				}
			}
		}
		for ; next < 200; next++ {
			got := recvTCP(t, b)
			if len(got.Data[0]) == 54+600 {
				next--
				continue
			}
			require.Equal(t, byte(next), got.Data[0][54])
		}
	})
}

// Each frame that cannot be sent is refused where it stands, and those in front of it are gone.
func TestXDPSocketRefuses(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	a := openXDP(t, XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, SendSocket: true})
	b := openXDP(t, XDPConfig{Interface: vethB, Addrs: tcpAddrs})
	if !a.socket {
		t.Skip("LEFT OUT: checksums of frames sent need Linux 6.11")
	}
	good := tcpTo(t, b, a, 100, tcpOpts{})
	for _, c := range []struct {
		bad  Frame
		want error
	}{
		{Frame{Data: [][]byte{make([]byte, EthernetHeader-1)}}, ErrBadFrame},
		{Frame{Data: [][]byte{make([]byte, 1515)}}, ErrTooLong},
		{Frame{Data: [][]byte{make([]byte, MaxSuperFrame+1)}, Offload: Offload{GSO: GSOTCPv4, NeedsCsum: true}}, ErrTooLong},
		{Frame{Data: good.Data, Offload: Offload{NeedsCsum: true, CsumStart: 1400, CsumOffset: 16}}, ErrBadFrame},
	} {
		n, err := a.Send([]Frame{good, c.bad, good})
		require.ErrorIs(t, err, c.want)
		require.Equal(t, 1, n)
		got := recvTCP(t, b)
		require.Equal(t, good.Data[0], got.Data[0])
	}
	require.EqualValues(t, 4, a.Stats().TxErrors)
	require.EqualValues(t, 4, a.Stats().TxFrames)

	require.NoError(t, a.Close())
	a = openXDP(t, XDPConfig{Interface: vethA, Addrs: []netip.Addr{addrA}, SendSocket: true, NoOffload: true})
	require.False(t, a.Link().GSO, "without offloads the ring is as good")
	require.False(t, a.socket)
}

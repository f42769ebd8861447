package netstack

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/pktio"
)

var otherMAC = [6]byte{2, 0, 0, 0, 0, 0xc}

// openProbing opens a stack with the a addresses of both families that asks for wait, while answer says what the other
// end of the link has to say to each of its frames. It returns all the frames that were sent.
func openProbing(t *testing.T, wait time.Duration, answer func(frame []byte) []byte) (*Stack, [][]byte, error) {
	near, far, err := pktio.NewPipe(pktio.PipeConfig{})
	require.NoError(t, err)
	var frames [][]byte
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		batch := make([]pktio.Frame, 8)
		for last := false; ; {
			n, _ := far.Recv(batch, time.Millisecond)
			for i := range batch[:n] {
				b := make([]byte, batch[i].Len())
				batch[i].CopyTo(b)
				frames = append(frames, b)
				if a := answer(b); a != nil {
					_, _ = far.Send([]pktio.Frame{{Data: [][]byte{a}}})
				}
			}
			if last && n == 0 {
				return
			}
			select {
			case <-stop:
				last = true // all it sent is there by now
			default:
			}
		}
	}()
	s, err := New(near, Config{Addrs: []netip.Prefix{netip.PrefixFrom(inet4.a, 24), netip.PrefixFrom(inet6.a, 64)}, AddressProbe: wait})
	close(stop)
	<-done
	if err != nil {
		_, closed := near.Recv(nil, 0)
		require.ErrorIs(t, closed, pktio.ErrClosed, "New takes the port, also when it fails")
	} else {
		t.Cleanup(func() { require.NoError(t, s.Close()) })
	}
	t.Cleanup(func() { require.NoError(t, far.Close()) })
	return s, frames, err
}

// answerTo is what a host with otherMAC says to a question for addr: that it has it, or that it asks as well.
func answerTo(t *testing.T, addr netip.Addr, asksToo bool) func(frame []byte) []byte {
	return func(frame []byte) []byte {
		c, ok := claimOf(frame)
		if !ok || !c.question || c.addr != addr {
			return nil
		}
		switch {
		case asksToo:
			return question(addr, otherMAC)
		case addr.Is6():
			return announcement(addr, otherMAC)
		}
		reply := header.ARP(bytes.Clone(frame[14:]))
		reply.SetOp(header.ARPReply)
		copy(reply.HardwareAddressSender(), otherMAC[:])
		copy(reply.ProtocolAddressSender(), addr.AsSlice())
		copy(reply.HardwareAddressTarget(), frame[6:12])
		copy(reply.ProtocolAddressTarget(), []byte{0, 0, 0, 0})
		return joined(ethernet([6]byte(frame[6:]), otherMAC, 0x0806), reply)
	}
}

func TestAddressIsTaken(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		for name, asksToo := range map[string]bool{"by a host that has it": false, "by one that asks at the same time": true} {
			t.Run(name, func(t *testing.T) {
				_, _, err := openProbing(t, time.Minute, answerTo(t, fam.a, asksToo))
				require.ErrorIs(t, err, ErrConflict)
				require.ErrorContains(t, err, fam.a.String())
				require.ErrorContains(t, err, "02:00:00:00:00:0c")
				require.ErrorContains(t, err, "take an address that nobody has")
				var c *Conflict
				require.ErrorAs(t, err, &c)
				require.Equal(t, otherMAC, c.MAC)
			})
		}
	})
}

// Answers about other addresses, and what comes back of our own questions, are no conflict. The questions are three and
// from nobody; when they are over the addresses are announced.
func TestAddressIsFree(t *testing.T) {
	start := time.Now()
	wait := 90 * time.Millisecond
	s, frames, err := openProbing(t, wait, func(frame []byte) []byte {
		switch c, ok := claimOf(frame); {
		case !ok:
			return nil
		case c.addr.Is4():
			return frame
		default:
			return announcement(inet6.b, otherMAC)
		}
	})
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(start), wait)
	mac := s.user.link.info.Addr
	said := make(map[claim]int)
	for _, f := range frames {
		if c, ok := claimOf(f); ok && f[0]&1 != 0 { // gVisor answers the announcement that came back
			said[c]++
		}
	}
	require.Equal(t, map[claim]int{
		{addr: inet4.a, mac: mac, question: true}: questions,
		{addr: inet6.a, mac: mac, question: true}: questions,
		{addr: inet4.a, mac: mac, announce: true}: 1,
		{addr: inet6.a, mac: mac, announce: true}: 1,
	}, said)
	require.Zero(t, s.Stats().AddressConflicts)
	require.Nil(t, s.Conflict())
}

// The second of two stacks with the same address does not open, and the first goes on.
func TestSecondStackWithTheAddress(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		near, far, err := pktio.NewPipe(pktio.PipeConfig{})
		require.NoError(t, err)
		c := Config{Addrs: []netip.Prefix{netip.PrefixFrom(fam.a, fam.bits)}}
		first, err := New(near, c)
		require.NoError(t, err)
		defer first.Close()
		c.AddressProbe = time.Minute
		_, err = New(far, c)
		require.ErrorIs(t, err, ErrConflict)
		require.Nil(t, first.Conflict(), "who asked and went away does no harm")
	})
}

// A second opinion on the frames we make.
func TestQuestionsAndAnnouncements(t *testing.T) {
	mac := [6]byte{2, 1, 2, 3, 4, 5}
	decode := func(b []byte) gopacket.Packet {
		p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.Default)
		require.Nil(t, p.ErrorLayer())
		return p
	}
	for _, c := range []struct {
		frame []byte
		from  netip.Addr
	}{{question(inet4.a, mac), netip.IPv4Unspecified()}, {announcement(inet4.a, mac), inet4.a}} {
		p := decode(c.frame)
		eth := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
		require.Equal(t, "ff:ff:ff:ff:ff:ff", eth.DstMAC.String())
		arp := p.Layer(layers.LayerTypeARP).(*layers.ARP)
		require.EqualValues(t, layers.ARPRequest, arp.Operation)
		require.Equal(t, mac[:], []byte(arp.SourceHwAddress))
		require.Equal(t, c.from.AsSlice(), []byte(arp.SourceProtAddress))
		require.Equal(t, make([]byte, 6), []byte(arp.DstHwAddress))
		require.Equal(t, inet4.a.AsSlice(), []byte(arp.DstProtAddress))
	}

	p := decode(question(inet6.a, mac))
	ip := p.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
	require.Equal(t, "33:33:ff:00:00:01", p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet).DstMAC.String())
	require.Equal(t, "::", ip.SrcIP.String())
	require.Equal(t, "ff02::1:ff00:1", ip.DstIP.String())
	require.EqualValues(t, 255, ip.HopLimit)
	ns := p.Layer(layers.LayerTypeICMPv6NeighborSolicitation).(*layers.ICMPv6NeighborSolicitation)
	require.Equal(t, "fd77::1", ns.TargetAddress.String())
	require.Empty(t, ns.Options, "the source link-layer address is left out where there is no source")

	p = decode(announcement(inet6.a, mac))
	ip = p.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
	require.Equal(t, "33:33:00:00:00:01", p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet).DstMAC.String())
	require.Equal(t, "fd77::1", ip.SrcIP.String())
	require.Equal(t, "ff02::1", ip.DstIP.String())
	na := p.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
	require.True(t, na.Override())
	require.False(t, na.Solicited())
	require.Equal(t, mac[:], na.Options[0].Data)
}

func TestClaimOfFrames(t *testing.T) {
	mac := [6]byte{2, 1, 2, 3, 4, 5}
	edit := func(b []byte, at int, v byte) []byte {
		b = bytes.Clone(b)
		b[at] = v
		return b
	}
	good := map[string]struct {
		frame []byte
		want  claim
	}{
		"ARP question":       {question(inet4.a, mac), claim{addr: inet4.a, mac: mac, question: true}},
		"ARP announcement":   {announcement(inet4.a, mac), claim{addr: inet4.a, mac: mac, announce: true}},
		"ARP question to us": {arpRequest(mac, inet4.b, inet4.a), claim{addr: inet4.b, mac: mac}},
		"ARP reply":          {edit(arpRequest(mac, inet4.a, inet4.b), 21, 2), claim{addr: inet4.a, mac: mac}},
		"solicitation":       {question(inet6.a, mac), claim{addr: inet6.a, mac: mac, question: true}},
		"advertisement":      {announcement(inet6.a, mac), claim{addr: inet6.a, mac: mac, announce: true}},
		"another's question": {solicitation(inet6.b, inet6.a, otherMAC), claim{addr: inet6.b, mac: otherMAC}},
	}
	for name, c := range good {
		t.Run(name, func(t *testing.T) {
			got, ok := claimOf(c.frame)
			require.True(t, ok)
			require.Equal(t, c.want, got)
			for n := range c.frame {
				_, ok := claimOf(c.frame[:n])
				require.False(t, ok, "%d octets", n)
			}
			_, ok = claimOf(append(bytes.Clone(c.frame), make([]byte, 18)...))
			require.True(t, ok, "with padding")
		})
	}
	for name, frame := range map[string][]byte{
		"IPv4":               ethernet(mac, otherMAC, 0x0800),
		"RARP":               edit(announcement(inet4.a, mac), 21, 3),
		"reply from nobody":  edit(question(inet4.a, mac), 21, 2),
		"hardware of eight":  edit(announcement(inet4.a, mac), 18, 8),
		"hop limit":          edit(announcement(inet6.a, mac), 21, 254),
		"checksum":           edit(announcement(inet6.a, mac), 61, 1),
		"code":               edit(announcement(inet6.a, mac), 55, 1),
		"echo":               edit(announcement(inet6.a, mac), 54, 128),
		"IP version":         edit(announcement(inet6.a, mac), 14, 0x40),
		"length past packet": edit(announcement(inet6.a, mac), 18, 1),
	} {
		_, ok := claimOf(frame)
		require.False(t, ok, name)
	}
	require.Equal(t, mac, linkLayer([]byte{2, 0, 1, 2, 3, 4, 5, 6}, 2, mac), "an option of no length")
	require.Equal(t, mac, linkLayer([]byte{2, 2, 1, 2, 3, 4, 5, 6}, 2, mac), "one longer than the message")
	require.Equal(t, otherMAC, linkLayer(append([]byte{1, 1, 9, 9, 9, 9, 9, 9, 2, 1}, otherMAC[:]...), 2, mac))
}

// solicitation is a neighbour solicitation from a host that asks who has target.
func solicitation(from, target netip.Addr, mac [6]byte) []byte {
	a := toAddress(target)
	return ndFrame(mac, toAddress(from), header.SolicitedNodeAddr(a), header.ICMPv6NeighborSolicit, 0, a, append([]byte{1, 1}, mac[:]...))
}

// While the stack runs a host that uses our address is counted, told of, and answered once.
func TestAddressConflict(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		w := newWireOf(t, fam, Config{})
		mac := w.h.user.link.info.Addr
		defences := 0
		listen := func() {
			w.h.poll(time.Millisecond)
			for n, _ := w.port.Recv(w.in, 0); n > 0; n, _ = w.port.Recv(w.in, 0) {
				if c, ok := claimOf(w.in[0].Data[0]); ok && c == (claim{addr: fam.a, mac: mac, announce: true}) && w.in[0].Data[0][0]&1 != 0 {
					defences++
				}
			}
		}
		w.send(announcement(fam.a, mac)) // our own, come back
		w.send(announcement(fam.b, otherMAC))
		w.send(question(fam.a, otherMAC)) // before it uses the address: gVisor answers
		for range 20 {
			listen()
		}
		require.Zero(t, w.h.Stats().AddressConflicts)
		require.Nil(t, w.h.Conflict())
		defences = 0

		const frames = 50
		for range frames {
			w.send(announcement(fam.a, otherMAC))
			listen()
		}
		until(t, "all to be counted", func() bool { listen(); return w.h.Stats().AddressConflicts == frames }, w.h)
		c := w.h.Conflict()
		require.NotNil(t, c)
		require.Equal(t, fam.a, c.Addr)
		require.Equal(t, otherMAC, c.MAC)
		require.ErrorContains(t, c, fam.a.String()+" is also used by 02:00:00:00:00:0c")
		require.ErrorIs(t, c, ErrConflict)
		require.Nil(t, w.h.Conflict(), "told once")
		until(t, "the defence", func() bool { listen(); return defences > 0 }, w.h)
		require.Equal(t, 1, defences)

		// Later there are news again, and another defence.
		later := &w.h.user.link.others
		later.mu.Lock()
		later.told = later.told.Add(-tellEvery)
		later.defended[fam.a] = later.defended[fam.a].Add(-defendEvery)
		later.mu.Unlock()
		w.send(announcement(fam.a, otherMAC))
		until(t, "the next news", func() bool { c = w.h.Conflict(); return c != nil }, w.h)
		require.EqualValues(t, frames+1, c.Count)
		until(t, "the next defence", func() bool { listen(); return defences > 1 }, w.h)
	})
}

// A Poll that sleeps returns for a conflict.
func TestConflictWakesPoll(t *testing.T) {
	w := newWire(t, Config{})
	woken := make(chan int)
	go func() { woken <- w.h.Poll(w.h.ev[:], -1) }()
	time.Sleep(10 * time.Millisecond) // most likely it sleeps by now
	w.send(announcement(addrA, otherMAC))
	select {
	case n := <-woken:
		require.Zero(t, n)
	case <-time.After(patience):
		t.Fatal("Poll sleeps on")
	}
	require.NotNil(t, w.h.Conflict())
}

// Two seconds after the first announcement comes another one.
func TestAnnouncedTwice(t *testing.T) {
	t.Parallel()
	w := newWire(t, Config{AddressProbe: time.Millisecond})
	mac := w.h.user.link.info.Addr
	for range 2 {
		w.recv("an announcement", func(b []byte) bool {
			c, ok := claimOf(b)
			return ok && c == claim{addr: addrA, mac: mac, announce: true}
		})
	}
}

// FuzzClaimOf looks at frames of any kind: none may do harm, and what is read back is what was there.
func FuzzClaimOf(f *testing.F) {
	mac := [6]byte{2, 1, 2, 3, 4, 5}
	for _, a := range []netip.Addr{inet4.a, inet6.a} {
		f.Add(question(a, mac))
		f.Add(announcement(a, mac))
	}
	f.Add(solicitation(inet6.b, inet6.a, otherMAC))
	f.Fuzz(func(t *testing.T, frame []byte) {
		c, ok := claimOf(frame)
		if !ok {
			return
		}
		require.True(t, c.addr.IsValid())
		require.False(t, c.question && c.announce)
		if !c.question {
			require.True(t, bytes.Contains(frame, c.mac[:]))
		}
		require.True(t, bytes.Contains(frame, c.addr.AsSlice()))
	})
}

package netstack

import (
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/softrdma/softrdma/pktio"
)

const (
	nicID = 1

	// arpWait is how long one ARP request waits for its answer. After three of them the host counts as unreachable.
	arpWait = 500 * time.Millisecond

	// maxRTO is the most the retransmission timer waits, and maxRetries how often a segment is sent before the
	// connection counts as broken: a dead peer is noticed after about a minute. RFC 6298 allows no bound below 60
	// seconds, having the whole Internet in mind. It matters after a lost SYN: gVisor then takes the second that the
	// next one took for a round-trip time, and would wait several seconds for each later loss.
	maxRTO     = time.Second
	maxRetries = 60
)

// userStack is the user-space carrier: gVisor's TCP/IP between our link endpoint and our ready queue.
type userStack struct {
	st   *Stack
	conf Config
	link *link
	tcp  *stack.Stack

	*sleeper
}

func newUserStack(s *Stack, port pktio.Port, c Config) (*userStack, error) {
	u := &userStack{st: s, conf: c, sleeper: newSleeper()}
	s.ready.kick = u.kick
	link, err := newLink(port, c.MTU)
	if err != nil {
		return nil, err
	}
	u.link = link
	nud := stack.DefaultNUDConfigurations()
	nud.RetransmitTimer = arpWait
	u.tcp = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
		HandleLocal:        true, // a connection to one of our own addresses does not touch the wire
		NUDConfigs:         nud,
	})
	if err := u.configure(); err != nil {
		u.tcp.Destroy()
		return nil, err
	}
	u.link.start(c.SpinFor, s.fail)
	return u, nil
}

// configure sets TCP's options and makes the interface.
func (u *userStack) configure() error {
	c := &u.conf
	send := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: c.SendBuffer, Max: MaxBuffer}
	recv := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: c.RecvBuffer, Max: MaxBuffer}
	moderate := tcpip.TCPModerateReceiveBufferOption(false)
	sack := tcpip.TCPSACKEnabled(true)
	delay := tcpip.TCPDelayEnabled(false)
	rto, most := tcpip.TCPMinRTOOption(c.MinRTO), tcpip.TCPMaxRTOOption(max(maxRTO, c.MinRTO))
	retries := tcpip.TCPMaxRetriesOption(maxRetries)
	// A port of ours in TIME_WAIT may serve a new connection after a second; timestamps keep the two apart.
	reuse := tcpip.TCPTimeWaitReuseOption(tcpip.TCPTimeWaitReuseGlobal)
	reno := tcpip.CongestionControlOption("reno")
	recovery := tcpip.TCPRecovery(0)
	if c.Recovery == RecoveryRACK {
		recovery = tcpip.TCPRACKLossDetection
	}
	for _, o := range []tcpip.SettableTransportProtocolOption{&send, &recv, &moderate, &sack, &delay, &rto, &most, &retries, &reuse, &reno, &recovery} {
		if err := u.tcp.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("netstack: TCP option %T: %s", o, err)
		}
	}
	if err := u.tcp.CreateNIC(nicID, u.link); err != nil {
		return fmt.Errorf("netstack: interface %s: %s", u.link.info.Name, err)
	}
	var routes []tcpip.Route
	for _, p := range c.Addrs {
		addr := tcpip.ProtocolAddress{
			Protocol:          ipv4.ProtocolNumber,
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: toAddress(p.Addr()), PrefixLen: p.Bits()},
		}
		if err := u.tcp.AddProtocolAddress(nicID, addr, stack.AddressProperties{}); err != nil {
			return fmt.Errorf("netstack: address %s: %s", p, err)
		}
		routes = append(routes, tcpip.Route{Destination: addr.AddressWithPrefix.Subnet(), NIC: nicID})
	}
	if c.Gateway.IsValid() {
		routes = append(routes, tcpip.Route{Destination: header.IPv4EmptySubnet, Gateway: toAddress(c.Gateway), NIC: nicID})
	}
	u.tcp.SetRouteTable(routes)
	return nil
}

// sleep lets the pump receive meanwhile.
func (u *userStack) sleep(d time.Duration) {
	u.link.leave()
	u.sleeper.sleep(d)
}

// close ends TCP and the link. The connections known to the Stack are dead already; here go those TCP still holds for
// itself: handshakes, and what was closed and waits for the peer.
func (u *userStack) close() error {
	// Without arriving frames nothing new begins while the old is taken down.
	err := u.link.stop()
	for i := 0; len(u.tcp.RegisteredEndpoints()) > 0 && i < 100; i++ {
		u.tcp.Close()
	}
	u.tcp.Destroy()
	return err
}

func (u *userStack) dial(c *Conn, local netip.Addr) error {
	remote := c.remote.Addr()
	if !remote.Is4() {
		return syscall.EAFNOSUPPORT
	}
	uc, err := newUserConn(c)
	if err != nil {
		return err
	}
	c.user = uc
	if local.IsValid() {
		if err := toError(uc.ep.Bind(tcpip.FullAddress{Addr: toAddress(local.Unmap())})); err != nil {
			uc.discardEndpoint()
			return err
		}
	}
	c.startDeadline(u.st.timeout)
	terr := uc.ep.Connect(tcpip.FullAddress{NIC: nicID, Addr: toAddress(remote), Port: c.remote.Port()})
	if _, started := terr.(*tcpip.ErrConnectStarted); !started && terr != nil {
		c.deadline.Stop()
		uc.discardEndpoint()
		return toError(terr)
	}
	c.local = uc.localAddr()
	return nil
}

func (u *userStack) listen(l *Listener, backlog int) error {
	local := l.addr.Addr().Unmap()
	if local.IsValid() && !local.Is4() && !local.IsUnspecified() {
		return syscall.EAFNOSUPPORT
	}
	ul := &userListener{l: l}
	ep, terr := u.tcp.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, &ul.wq)
	if terr != nil {
		return toError(terr)
	}
	ul.ep = ep
	bind := tcpip.FullAddress{Port: l.addr.Port()}
	if local.IsValid() && !local.IsUnspecified() {
		bind.Addr = toAddress(local)
	}
	if terr := ep.Bind(bind); terr != nil {
		ep.Close()
		return toError(terr)
	}
	at, terr := ep.GetLocalAddress()
	if terr != nil {
		ep.Close()
		return toError(terr)
	}
	if !local.IsValid() {
		local = netip.IPv4Unspecified()
	}
	l.addr = netip.AddrPortFrom(local, at.Port)
	l.user = ul
	ul.register()
	// gVisor's own callers add one, as Linux does inside; without, a backlog of one is always full.
	if terr := ep.Listen(backlog + 1); terr != nil {
		ul.close()
		return toError(terr)
	}
	return nil
}

func toAddress(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

func toAddrPort(a tcpip.FullAddress) netip.AddrPort {
	ip, _ := netip.AddrFromSlice(a.Addr.AsSlice())
	return netip.AddrPortFrom(ip, a.Port)
}

// toError gives a gVisor error the system's number for it.
func toError(err tcpip.Error) error {
	switch err.(type) {
	case nil:
		return nil
	case *tcpip.ErrConnectionReset:
		return syscall.ECONNRESET
	case *tcpip.ErrConnectionAborted, *tcpip.ErrAborted:
		return syscall.ECONNABORTED
	case *tcpip.ErrConnectionRefused:
		return syscall.ECONNREFUSED
	case *tcpip.ErrTimeout:
		return syscall.ETIMEDOUT
	case *tcpip.ErrHostUnreachable:
		return syscall.EHOSTUNREACH
	case *tcpip.ErrHostDown:
		return syscall.EHOSTDOWN
	case *tcpip.ErrNetworkUnreachable, *tcpip.ErrNoNet:
		return syscall.ENETUNREACH
	case *tcpip.ErrClosedForSend:
		return syscall.EPIPE
	case *tcpip.ErrNotConnected:
		return syscall.ENOTCONN
	case *tcpip.ErrPortInUse:
		return syscall.EADDRINUSE
	case *tcpip.ErrBadLocalAddress, *tcpip.ErrNoPortAvailable:
		return syscall.EADDRNOTAVAIL
	case *tcpip.ErrNoBufferSpace:
		return syscall.ENOBUFS
	}
	return fmt.Errorf("TCP: %s", err)
}

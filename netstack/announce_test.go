package netstack

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
)

// busyPort is a link on which a neighbour announces itself at the very moment that we do. Send does not return before
// the announcement was dealt with.
type busyPort struct {
	link   pktio.Link
	frame  []byte
	ours   chan struct{} // we have announced ourselves
	dealt  chan struct{} // Recv was called again after it gave the frame
	closed chan struct{}
	given  bool
}

func (p *busyPort) Link() pktio.Link { return p.link }
func (p *busyPort) Close() error     { close(p.closed); return nil }

func (p *busyPort) Recv(batch []pktio.Frame, wait time.Duration) (int, error) {
	if p.given {
		select {
		case <-p.dealt:
		default:
			close(p.dealt)
		}
	}
	select {
	case <-p.closed:
		return 0, pktio.ErrClosed
	default:
	}
	select {
	case <-p.ours:
		if !p.given {
			p.given = true
			batch[0] = pktio.Frame{Data: [][]byte{p.frame}}
			return 1, nil
		}
	default:
	}
	time.Sleep(time.Millisecond)
	return 0, nil
}

func (p *busyPort) Send(batch []pktio.Frame) (int, error) {
	for i := range batch {
		if c, ok := claimOf(batch[i].Data[0]); ok && c.announce {
			close(p.ours)
			select {
			case <-p.dealt:
			case <-time.After(patience):
			}
		}
	}
	return len(batch), nil
}

// A neighbour may announce itself before New has returned: two hosts that start at the same time do.
func TestAnnouncementDuringNew(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		p := &busyPort{
			link:  pktio.Link{MTU: 1500, MaxFrame: 1514, Addr: [6]byte{2, 0, 0, 0, 0, 0xa}, Name: "busy"},
			frame: announcement(fam.b, [6]byte{2, 0, 0, 0, 0, 0xb}),
			ours:  make(chan struct{}), dealt: make(chan struct{}), closed: make(chan struct{}),
		}
		s, err := New(p, Config{Addrs: []netip.Prefix{netip.PrefixFrom(fam.a, fam.bits)}, AddressProbe: 3 * time.Millisecond})
		require.NoError(t, err)
		select {
		case <-p.dealt:
		default:
			t.Error("New has returned before the announcement was dealt with")
		}
		require.NoError(t, s.Close())
	})
}

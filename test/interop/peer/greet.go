package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// GreetSize is the size of the one message each way between rdma_client and rdma_server.
const GreetSize = 16

// Greet plays rdma_client against a server at addr.
func Greet(ctx context.Context, dev *verbs.Device, addr string) error {
	return greet(dev, func(n *node) error {
		if err := n.dial(ctx, dev, addr); err != nil {
			return err
		}
		if err := n.say(ctx); err != nil {
			return err
		}
		return n.hear(ctx)
	})
}

// ServeGreeting plays rdma_server for one client.
func ServeGreeting(ctx context.Context, dev *verbs.Device, l *rdmacm.Listener) error {
	return greet(dev, func(n *node) error {
		r, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		if err := n.accept(ctx, r); err != nil {
			return err
		}
		if err := n.hear(ctx); err != nil {
			return err
		}
		return n.say(ctx)
	})
}

func greet(dev *verbs.Device, side func(*node) error) error {
	n, err := newNode(dev, 0, 1, GreetSize)
	if err != nil {
		return err
	}
	Fill(n.out.Bytes(), 0, 0)
	return errors.Join(side(n), n.close()) // which disconnects in order
}

// say sends the message as inline data.
func (n *node) say(ctx context.Context) error {
	if err := n.post(verbs.SendInline); err != nil {
		return err
	}
	return n.sent(ctx)
}

// hear takes the peer's message: zeros from the C programs, ours from our own.
func (n *node) hear(ctx context.Context) error {
	if err := n.received(ctx); err != nil {
		return err
	}
	m := n.message(0)
	if _, _, err := Parse(m); err != nil && !bytes.Equal(m, make([]byte, GreetSize)) {
		return n.wrap(fmt.Errorf("the peer's message is neither zeros nor ours: % x", m))
	}
	return nil
}

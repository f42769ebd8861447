package iwarp_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// A message over a link in memory: no NIC, no privilege. On a network the two
// devices come from Open, in two programs.
func ExamplePipe() {
	client, server, err := iwarp.Pipe(iwarp.PipeConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	defer server.Close()
	ctx := context.Background()

	listener, err := (&rdmacm.ListenConfig{Device: server}).Listen(ctx, ":7174")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		request, err := listener.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		conn, err := request.Accept(ctx, rdmacm.AcceptConfig{})
		if err != nil {
			log.Fatal(err)
		}
		b := make([]byte, 64)
		n, err := conn.Recv(ctx, b)
		if err != nil {
			log.Fatal(err)
		}
		if err := conn.Send(ctx, append(b[:n], " yourself"...)); err != nil {
			log.Fatal(err)
		}
	}()

	conn, err := (&rdmacm.Dialer{Device: client}).Dial(ctx, "10.77.0.2:7174")
	if err != nil {
		log.Fatal(err)
	}
	if err := conn.Send(ctx, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	b := make([]byte, 64)
	n, err := conn.Recv(ctx, b)
	fmt.Println(string(b[:n]), err)
	// Output: hello yourself <nil>
}

// Ping-pong with work requests and completion queues of one's own, as
// ibv_rc_pingpong does it. Receives are posted in Prepare, before the peer can
// send.
func Example_pingpong() {
	a, b, err := iwarp.Pipe(iwarp.PipeConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	ctx := context.Background()
	listener, err := (&rdmacm.ListenConfig{Device: b}).Listen(ctx, ":18515")
	if err != nil {
		log.Fatal(err)
	}

	const rounds, size = 1000, 4096
	player := func(dev *verbs.Device, first bool) error {
		pd, err := dev.AllocPD()
		if err != nil {
			return err
		}
		cq, err := dev.CreateCQ(verbs.CQConfig{})
		if err != nil {
			return err
		}
		mr, err := pd.AllocMR(2*size, verbs.AccessLocalWrite)
		if err != nil {
			return err
		}
		in := []verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{mr.SGE(0, size)}}}
		out := []verbs.SendWR{{ID: 2, Op: verbs.OpSend, SGL: []verbs.SGE{mr.SGE(size, size)}}}
		queues := verbs.QPConfig{SendCQ: cq, RecvCQ: cq}
		prepare := func(qp *verbs.QP) error {
			_, err := qp.PostRecv(in)
			return err
		}

		var conn *rdmacm.Conn
		if first {
			d := rdmacm.Dialer{Device: dev, PD: pd, QP: queues, Prepare: prepare}
			conn, err = d.Dial(ctx, "10.77.0.2:18515")
		} else {
			var request *rdmacm.Request
			if request, err = listener.Accept(ctx); err == nil {
				conn, err = request.Accept(ctx, rdmacm.AcceptConfig{PD: pd, QP: queues, Prepare: prepare})
			}
		}
		if err != nil {
			return err
		}
		if first {
			if _, err := conn.PostSend(out); err != nil {
				return err
			}
		}
		var wc [1]verbs.WC
		for i := range rounds {
			if _, err := cq.Wait(ctx, wc[:]); err != nil {
				return err
			}
			if err := wc[0].Err(); err != nil {
				return err
			}
			if _, err := conn.PostRecv(in); err != nil {
				return err
			}
			if first && i == rounds-1 {
				break
			}
			if _, err := conn.PostSend(out); err != nil {
				return err
			}
		}
		return nil
	}

	second := make(chan error, 1)
	go func() { second <- player(b, false) }()
	fmt.Println(player(a, true), <-second)
	// Output: <nil> <nil>
}

// One-sided operations: the server tells its buffer in the private data of its
// Reply and then sleeps; the client writes and reads it.
func ExampleOpen_oneSided() {
	client, server, err := iwarp.Pipe(iwarp.PipeConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	defer server.Close()
	ctx := context.Background()

	listener, err := (&rdmacm.ListenConfig{Device: server}).Listen(ctx, ":7174")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		request, err := listener.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		pd, err := server.AllocPD()
		if err != nil {
			log.Fatal(err)
		}
		mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
		if err != nil {
			log.Fatal(err)
		}
		where, _ := mr.Remote().MarshalBinary()
		if _, err := request.Accept(ctx, rdmacm.AcceptConfig{PD: pd, PrivateData: where}); err != nil {
			log.Fatal(err)
		}
	}()

	pd, err := client.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	conn, err := (&rdmacm.Dialer{Device: client, PD: pd}).Dial(ctx, "10.77.0.2:7174")
	if err != nil {
		log.Fatal(err)
	}
	remote, err := verbs.ParseRemoteBuf(conn.PrivateData())
	if err != nil {
		log.Fatal(err)
	}
	mr, err := pd.AllocMR(32, verbs.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	copy(mr.Bytes(), "written, then")
	if err := conn.Write(ctx, remote.Slice(100, 16), mr.SGE(0, 16)); err != nil {
		log.Fatal(err)
	}
	if err := conn.Read(ctx, mr.SGE(16, 16), remote.Slice(100, 16)); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s read back\n", mr.Bytes()[16:29])

	// A range that was not granted ends the connection and says why.
	remote.Addr += 4090
	err = conn.Read(ctx, mr.SGE(0, 16), remote)
	var term *verbs.TerminateError
	fmt.Println(errors.Is(err, verbs.WCRemAccessErr), errors.As(err, &term), term)
	// Output:
	// written, then read back
	// true true stream terminated by the peer: RDMA remote protection error: base or bounds violation (0x0101)
}

// A server that lets in whom it knows by private data.
func Example_reject() {
	client, server, err := iwarp.Pipe(iwarp.PipeConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	defer server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	listener, err := (&rdmacm.ListenConfig{Device: server}).Listen(ctx, ":7174")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for request, err := range listener.All(ctx) {
			if err != nil {
				log.Fatal(err)
			}
			if string(request.PrivateData()) != "sesame" {
				_ = request.Reject(ctx, []byte("who are you?"))
				continue
			}
			if _, err := request.Accept(ctx, rdmacm.AcceptConfig{}); err != nil {
				return // the client has left already
			}
		}
	}()

	for _, word := range []string{"please", "sesame"} {
		_, err := (&rdmacm.Dialer{Device: client, PrivateData: []byte(word)}).Dial(ctx, "10.77.0.2:7174")
		var rejected *verbs.RejectError
		if errors.As(err, &rejected) {
			fmt.Printf("%s: %s\n", word, rejected.PrivateData)
		} else {
			fmt.Printf("%s: %v\n", word, err)
		}
	}
	// Output:
	// please: who are you?
	// sesame: <nil>
}

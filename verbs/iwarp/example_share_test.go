package iwarp_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// A server whose connections take their receives from one queue: eight buffers
// for all clients, where each would need some of its own.
func Example_sharedReceives() {
	client, server, err := iwarp.Pipe(iwarp.PipeConfig{})
	check(err)
	defer client.Close()
	defer server.Close()
	ctx := context.Background()

	pd, err := server.AllocPD()
	check(err)
	const size, buffers, clients = 64, 8, 3
	mr, err := pd.AllocMR(buffers*size, verbs.AccessLocalWrite)
	check(err)
	srq, err := pd.CreateSRQ(verbs.SRQConfig{MaxWR: buffers})
	check(err)
	cq, err := server.CreateCQ(verbs.CQConfig{}) // for all connections
	check(err)
	post := func(i int) {
		_, err := srq.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{mr.SGE(i*size, size)}}})
		check(err)
	}
	for i := range buffers {
		post(i)
	}
	// Before it runs dry the device says so, once; arm it again after posting.
	check(srq.Modify(2))

	listener, err := (&rdmacm.ListenConfig{Device: server}).Listen(ctx, ":7174")
	check(err)
	go func() {
		for i := range clients {
			conn, err := (&rdmacm.Dialer{Device: client}).Dial(ctx, "10.77.0.2:7174")
			check(err)
			check(conn.Send(ctx, fmt.Appendf(nil, "hello from client %d", i)))
		}
	}()
	for range clients {
		request, err := listener.Accept(ctx)
		check(err)
		conn, err := request.Accept(ctx, rdmacm.AcceptConfig{PD: pd, QP: verbs.QPConfig{SendCQ: cq, SRQ: srq}})
		check(err)
		var wc [1]verbs.WC
		_, err = cq.Wait(ctx, wc[:])
		check(err)
		check(wc[0].Err())
		at := int(wc[0].ID) * size
		fmt.Printf("%s; on the connection just accepted: %v\n", mr.Bytes()[at:at+int(wc[0].ByteLen)], wc[0].QP == conn.Num())
		post(int(wc[0].ID)) // the buffer is free again
	}
	// Output:
	// hello from client 0; on the connection just accepted: true
	// hello from client 1; on the connection just accepted: true
	// hello from client 2; on the connection just accepted: true
}

// A peer with the right to write may do so while its data is looked at. So the
// right is taken back first: then check, then use.
func Example_trust() {
	client, server, err := iwarp.Pipe(iwarp.PipeConfig{})
	check(err)
	defer client.Close()
	defer server.Close()
	ctx := context.Background()

	listener, err := (&rdmacm.ListenConfig{Device: server}).Listen(ctx, ":7174")
	check(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		pd, err := server.AllocPD()
		check(err)
		order, err := pd.AllocMR(64, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
		check(err)
		where, _ := order.Remote().MarshalBinary()
		request, err := listener.Accept(ctx)
		check(err)
		conn, err := request.Accept(ctx, rdmacm.AcceptConfig{PD: pd, PrivateData: where})
		check(err)
		n, err := conn.Recv(ctx, nil) // the order is written
		check(err)
		check(order.Close()) // from here on not one octet of it changes
		fmt.Printf("checked and used: %q %d\n", order.Bytes()[:9], n)
		_, err = conn.Recv(ctx, nil)
		var end *verbs.TerminateError
		fmt.Println(errors.As(err, &end), end)
	}()

	pd, err := client.AllocPD()
	check(err)
	mine, err := pd.AllocMR(64, 0)
	check(err)
	conn, err := (&rdmacm.Dialer{Device: client, PD: pd}).Dial(ctx, "10.77.0.2:7174")
	check(err)
	target, err := verbs.ParseRemoteBuf(conn.PrivateData())
	check(err)
	copy(mine.Bytes(), "amount=10amount=99")
	check(conn.Write(ctx, target, mine.SGE(0, 9)))
	check(conn.Send(ctx, nil))
	for err == nil { // until the right is gone
		err = conn.Write(ctx, target, mine.SGE(0, 9))
	}
	<-done
	// Output:
	// checked and used: "amount=10" 0
	// true stream terminated by this side: DDP tagged buffer error: invalid STag (0x1100)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

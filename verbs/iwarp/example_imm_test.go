package iwarp_test

import (
	"context"
	"fmt"
	"log"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// RDMA Write with Immediate: the data goes straight to where it belongs, and one
// completion tells the receiver that it is there, how long it is, and 8 octets of
// the sender's choice: here the place.
func Example_writeWithImmediate() {
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
	done := make(chan string)
	go func() {
		pd, err := server.AllocPD()
		if err != nil {
			log.Fatal(err)
		}
		cq, err := server.CreateCQ(verbs.CQConfig{})
		if err != nil {
			log.Fatal(err)
		}
		mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
		if err != nil {
			log.Fatal(err)
		}
		where, _ := mr.Remote().MarshalBinary()
		request, err := listener.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		// Immediate data takes a receive, and writes nothing to its memory: none is needed.
		_, err = request.Accept(ctx, rdmacm.AcceptConfig{
			PD: pd, QP: verbs.QPConfig{SendCQ: cq, RecvCQ: cq}, PrivateData: where,
			Prepare: func(qp *verbs.QP) error {
				_, err := qp.PostRecv([]verbs.RecvWR{{ID: 1}})
				return err
			},
		})
		if err != nil {
			log.Fatal(err)
		}
		var wc [1]verbs.WC
		if _, err := cq.Wait(ctx, wc[:]); err != nil {
			log.Fatal(err)
		}
		at, n := int(wc[0].Imm), int(wc[0].ByteLen)
		done <- fmt.Sprintf("%v at %d: %s", wc[0].Op, at, mr.Bytes()[at:at+n])
	}()

	conn, err := (&rdmacm.Dialer{Device: client}).Dial(ctx, "10.77.0.2:7174")
	if err != nil {
		log.Fatal(err)
	}
	remote, err := verbs.ParseRemoteBuf(conn.PrivateData())
	if err != nil {
		log.Fatal(err)
	}
	_, err = conn.PostSend([]verbs.SendWR{{
		Op: verbs.OpWriteWithImm, Inline: []byte("in its place"), Remote: remote.Slice(1024, 12), Imm: 1024,
	}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-done)
	// Output: RECV_RDMA_WITH_IMM at 1024: in its place
}

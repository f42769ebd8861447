package iwarp_test

import (
	"context"
	"fmt"
	"log"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// A client shows the server 16 octets of its memory for the time of one answer:
// the message that tells of it follows the bind at once, the server writes
// and takes the window back with its reply. When the client sees the reply nobody
// can change the answer any more.
func Example_memoryWindow() {
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

	// party is what each side has: a receive of 16 octets at the start of mr.
	type party struct {
		pd *verbs.PD
		cq *verbs.CQ
		mr *verbs.MR
	}
	newParty := func(dev *verbs.Device) (p party) {
		if p.pd, err = dev.AllocPD(); err != nil {
			log.Fatal(err)
		}
		if p.cq, err = dev.CreateCQ(verbs.CQConfig{}); err != nil {
			log.Fatal(err)
		}
		// No remote right: peers reach what a window shows, and nothing else.
		if p.mr, err = p.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessMWBind); err != nil {
			log.Fatal(err)
		}
		return p
	}
	ask, answer := newParty(client), newParty(server)
	prepare := func(p party) func(qp *verbs.QP) error {
		return func(qp *verbs.QP) error {
			_, err := qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{p.mr.SGE(0, 16)}}})
			return err
		}
	}
	received := func(p party) verbs.WC {
		var wc [1]verbs.WC
		if _, err := p.cq.Wait(ctx, wc[:]); err != nil {
			log.Fatal(err)
		}
		if err := wc[0].Err(); err != nil {
			log.Fatal(err)
		}
		return wc[0]
	}

	go func() {
		request, err := listener.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		conn, err := request.Accept(ctx, rdmacm.AcceptConfig{PD: answer.pd,
			QP: verbs.QPConfig{SendCQ: answer.cq, RecvCQ: answer.cq}, Prepare: prepare(answer)})
		if err != nil {
			log.Fatal(err)
		}
		received(answer)
		there, err := verbs.ParseRemoteBuf(answer.mr.Bytes())
		if err != nil {
			log.Fatal(err)
		}
		if _, err := conn.PostSend([]verbs.SendWR{
			{Op: verbs.OpWrite, Inline: []byte("forty-two"), Remote: there},
			{Op: verbs.OpSendWithInv, Inv: there.RKey},
		}); err != nil {
			log.Fatal(err)
		}
	}()

	conn, err := (&rdmacm.Dialer{Device: client, PD: ask.pd,
		QP: verbs.QPConfig{SendCQ: ask.cq, RecvCQ: ask.cq}, Prepare: prepare(ask)}).Dial(ctx, "10.77.0.2:7174")
	if err != nil {
		log.Fatal(err)
	}
	window, err := ask.pd.AllocMW(verbs.MWType2)
	if err != nil {
		log.Fatal(err)
	}
	bind := verbs.SendWR{Op: verbs.OpBindMW, MW: window, SGL: []verbs.SGE{ask.mr.SGE(1024, 16)}, Access: verbs.AccessRemoteWrite}
	if _, err := conn.PostSend([]verbs.SendWR{bind}); err != nil {
		log.Fatal(err)
	}
	where, _ := window.Remote().MarshalBinary() // known from the post on
	if _, err := conn.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Inline: where}}); err != nil {
		log.Fatal(err)
	}
	wc := received(ask)
	fmt.Println(wc.Flags, wc.Inv == window.Key(), window.Valid())
	fmt.Printf("%s\n", ask.mr.Bytes()[1024:1033])
	// Output:
	// WITH_INV true false
	// forty-two
}

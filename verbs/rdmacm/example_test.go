package rdmacm_test

import (
	"context"
	"fmt"
	"log"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// offer is a server that grants atomics on the words of its memory and then sleeps.
// Its Reply tells where they are.
func offer(ctx context.Context, server *verbs.Device, addr string) *verbs.MR {
	listener, err := (&rdmacm.ListenConfig{Device: server}).Listen(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	pd, err := server.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	words, err := pd.AllocMR(64, verbs.AccessLocalWrite|verbs.AccessRemoteAtomic)
	if err != nil {
		log.Fatal(err)
	}
	where, _ := words.Remote().MarshalBinary()
	go func() {
		for request, err := range listener.All(ctx) {
			if err != nil {
				log.Fatal(err)
			}
			if _, err := request.Accept(ctx, rdmacm.AcceptConfig{PD: pd, PrivateData: where}); err != nil {
				log.Fatal(err)
			}
		}
	}()
	return words
}

// A counter in the memory of one host, which all others draw numbers from.
func ExampleConn_FetchAdd() {
	client, server, err := iwarp.Pipe(iwarp.PipeConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	defer server.Close()
	ctx := context.Background()
	words := offer(ctx, server, ":7174")

	conn, err := (&rdmacm.Dialer{Device: client}).Dial(ctx, "10.77.0.2:7174")
	if err != nil {
		log.Fatal(err)
	}
	counter, err := verbs.ParseRemoteBuf(conn.PrivateData())
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		old, err := conn.FetchAdd(ctx, counter.Slice(8, 8), 10)
		fmt.Println(old, err)
	}
	fmt.Println("the counter is at", words.Uint64(8).Load())
	// Output:
	// 0 <nil>
	// 10 <nil>
	// 20 <nil>
	// the counter is at 30
}

// A lock in the memory of another host: whoever swaps 0 for a name has it.
func ExampleConn_CompareSwap() {
	client, server, err := iwarp.Pipe(iwarp.PipeConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	defer server.Close()
	ctx := context.Background()
	offer(ctx, server, ":7174")

	conn, err := (&rdmacm.Dialer{Device: client}).Dial(ctx, "10.77.0.2:7174")
	if err != nil {
		log.Fatal(err)
	}
	lock, err := verbs.ParseRemoteBuf(conn.PrivateData())
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []uint64{1001, 1002} {
		holder, err := conn.CompareSwap(ctx, lock.Slice(0, 8), 0, name)
		switch {
		case err != nil:
			log.Fatal(err)
		case holder == 0:
			fmt.Println(name, "has the lock")
		default:
			fmt.Println(name, "has to wait for", holder)
		}
	}
	// Output:
	// 1001 has the lock
	// 1002 has to wait for 1001
}

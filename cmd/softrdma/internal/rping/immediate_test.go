package rping

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// TestImmediateIsNoMessage has a server that answers with immediate data: the
// length that comes with it, of what was written, is far beyond the receive.
func TestImmediateIsNoMessage(t *testing.T) {
	a, b, err := iwarp.Pipe(iwarp.PipeConfig{})
	require.NoError(t, err)
	defer b.Close()
	defer a.Close()
	lc := rdmacm.ListenConfig{Device: b}
	l, err := lc.Listen(t.Context(), fmt.Sprintf("%v:%d", iwarp.PipeAddrB, Port))
	require.NoError(t, err)
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			req, err := l.Accept(t.Context())
			if err != nil {
				return err
			}
			e, err := newEndpoint(b, MaxSize, verbs.AccessLocalWrite)
			if err != nil {
				return err
			}
			defer e.close()
			if e.conn, err = req.Accept(t.Context(), rdmacm.AcceptConfig{PD: e.pd, QP: e.qpConfig(), Prepare: e.prepare}); err != nil {
				return err
			}
			if _, err := e.next(t.Context()); err != nil { // names the source
				return err
			}
			if err := e.post(e.message(info{})); err != nil {
				return err
			}
			sink, err := e.next(t.Context())
			if err != nil {
				return err
			}
			if err := e.post(verbs.SendWR{ID: idWrite, Op: verbs.OpWriteWithImm, Remote: sink.remote(), SGL: []verbs.SGE{e.data.SGE(0, MaxSize)}}); err != nil {
				return err
			}
			<-e.conn.Done()
			return nil
		}()
	}()
	c := Client{Device: a, Count: 1, Size: MaxSize}
	require.ErrorContains(t, c.Run(t.Context(), fmt.Sprintf("%v:%d", iwarp.PipeAddrB, Port)), "0 octets")
	require.NoError(t, <-done)
}

package rdmap

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
)

// soon fails the test if f, which may wait for a use of memory, does not return.
func soon(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal(what + ": it waits for a use that nobody ends")
	}
}

// TestNothingHeldBetweenCalls deregisters memory of messages in progress whenever one
// of the calls has returned.
func TestNothingHeldBetweenCalls(t *testing.T) {
	const size = 3 * maxTurn
	t.Run("DDP-55 Receive leaves no use of the memory of a Write", func(t *testing.T) {
		tab := ddp.NewTable()
		a, b := newPair(t, 1448, 2*size, Config{Table: tab}, Config{Table: tab})
		src := newRegion(t, tab, size, testPD, 0)
		dst := newRegion(t, tab, size, testPD, remoteRights)
		a.post(&Op{Kind: Write, ID: 1, SGL: []SGE{src.sge(0, size)}, RemoteSTag: dst.stag, RemoteTO: dst.base})
		a.transmit()
		a.transmit() // a turn of the send half may be shorter than one of the other
		ev, ok, err := b.Receive()
		require.True(t, ok, "%v", err)
		require.Equal(t, FirstFPDU, ev.Kind)
		ev, ok, err = b.Receive()
		require.True(t, ok, "%v", err)
		require.Equal(t, Turn, ev.Kind)
		soon(t, "Deregister", func() { require.NoError(t, tab.Deregister(dst.stag)) })
		was := append([]byte(nil), dst.mem...)
		_, _, err = b.Receive()
		var low *ddp.Error
		require.ErrorAs(t, err, &low)
		require.EqualValues(t, ddp.CodeSTag, low.Code)
		same(t, was, dst.mem, "placed after Deregister")
	})
	t.Run("DDP-55 Pump leaves no use of the memory of an operation", func(t *testing.T) {
		tab := ddp.NewTable()
		a, _ := newPair(t, 1448, 2*size, Config{Table: tab}, Config{})
		src := newRegion(t, tab, size, testPD, 0)
		ok, err := a.Submit(&Op{Kind: Write, ID: 1, SGL: []SGE{src.sge(0, size)}, RemoteSTag: 1, RemoteTO: 0})
		require.True(t, ok, "%v", err)
		p, err := a.Pump()
		require.NoError(t, err)
		require.True(t, p.Turn)
		soon(t, "Deregister", func() { require.NoError(t, tab.Deregister(src.stag)) })
		_, err = a.Pump()
		var local *LocalError
		require.ErrorAs(t, err, &local)
		require.EqualValues(t, 1, local.ID)
		var f *ddp.Fault
		require.ErrorAs(t, err, &f)
		require.Equal(t, ddp.FaultSTag, f.Kind)
	})
	t.Run("DDP-55 Pump leaves no use of the source of a response", func(t *testing.T) {
		tab := ddp.NewTable()
		cfg := Config{Table: tab, IRD: 1, ORD: 1}
		a, b := newPair(t, 1448, 2*size, cfg, cfg)
		sink := newRegion(t, tab, size, testPD, ddp.LocalWrite)
		src := newRegion(t, tab, size, testPD, ddp.RemoteRead)
		a.post(&Op{Kind: Read, ID: 1, SGL: []SGE{sink.sge(0, size)}, RemoteSTag: src.stag, RemoteTO: src.base})
		a.transmit()
		require.True(t, b.receive())
		p, err := b.Pump()
		require.NoError(t, err)
		require.True(t, p.Turn)
		soon(t, "Deregister", func() { require.NoError(t, tab.Deregister(src.stag)) })
		_, err = b.Pump()
		var e *Error
		require.ErrorAs(t, err, &e)
		require.EqualValues(t, TypeProtection, e.Type)
		require.EqualValues(t, CodeSTag, e.Code)
	})
	t.Run("RDM-39 a Send invalidates what a Write before it, and itself, were placed in", func(t *testing.T) {
		tab := ddp.NewTable()
		a, b := newPair(t, 1448, 2*size, Config{Table: tab}, Config{Table: tab})
		dst := newRegion(t, tab, 8192, testPD, remoteRights)
		require.NoError(t, tab.AllowInvalidate(dst.stag))
		b.recvs = []RecvBuf{{ID: 5, SGL: []SGE{dst.sge(4096, 4096)}}}
		one, two := pattern(4096, 1), pattern(4096, 2)
		a.post(&Op{Kind: Write, Inline: one, RemoteSTag: dst.stag, RemoteTO: dst.base},
			&Op{Kind: Send, Inline: two, Invalidate: true, InvSTag: dst.stag})
		a.transmit()
		soon(t, "Invalidate", func() { b.receive() })
		require.NoError(t, b.rxErr)
		require.Len(t, b.events, 2)
		require.Equal(t, Event{Kind: RecvDone, ID: 5, Len: 4096, Invalidated: true, InvSTag: dst.stag}, b.events[1])
		same(t, append(one, two...), dst.mem, "placed")
		require.False(t, tab.Valid(dst.stag))
		soon(t, "Deregister", func() { require.NoError(t, tab.Deregister(dst.stag)) })
	})
	t.Run("RDM-39 DDP-55 a Send invalidates what a Write in its middle was placed in", func(t *testing.T) {
		k := newScene(t)
		require.NoError(t, k.table.AllowInvalidate(k.s.stag))
		e, peer := newRaw(t, k.config())
		k.post(e)
		peer.play(append(append(fpdu(untaggedSeg(0x01, 0x44, 0x12345678, 0, 1, 0, 1)), fpdu(taggedSeg(0xc1, 0x40, 0x12345678, base, 7))...),
			fpdu(untaggedSeg(0x41, 0x44, 0x12345678, 0, 1, 1, 2))...))
		soon(t, "Invalidate", func() { settle(e) })
		require.NoError(t, e.rxErr)
		require.Len(t, e.events, 2)
		require.Equal(t, Event{Kind: RecvDone, ID: 77, Len: 2, Invalidated: true, InvSTag: k.s.stag}, e.events[1])
		require.Equal(t, byte(7), k.s.mem[0])
		require.Equal(t, []byte{1, 2}, k.recv.mem[:2])
		require.False(t, k.table.Valid(k.s.stag))
	})
}

func TestStatsAfterABatch(t *testing.T) {
	tab := ddp.NewTable()
	a, b := newPair(t, 1448, 1<<20, Config{Table: tab}, Config{Table: tab})
	dst := newRegion(t, tab, 4096, testPD, remoteRights)
	for range 3 {
		a.post(&Op{Kind: Write, Inline: pattern(3000, 1), RemoteSTag: dst.stag, RemoteTO: dst.base}, &Op{Kind: Send})
		b.recvs = append(b.recvs, RecvBuf{})
	}
	a.transmit()
	require.True(t, b.receive())
	out, in := a.Stats(), b.Stats()
	require.EqualValues(t, 3, out.WritesOut)
	require.EqualValues(t, 3, out.SendsOut)
	require.EqualValues(t, 12, out.DDP.SegmentsOut)
	require.EqualValues(t, 9000, out.DDP.OctetsOut)
	require.EqualValues(t, 3, in.WritesIn)
	require.EqualValues(t, 3, in.SendsIn)
	require.EqualValues(t, 12, in.DDP.SegmentsIn)
	require.EqualValues(t, 9000, in.DDP.OctetsIn)
}

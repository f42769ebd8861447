package iwarp_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// sizes are message lengths around what changes the number of segments.
var sizes = []int{0, 1, 3, 4, 17, 1413, 1414, 1415, 1427, 1428, 1429, 4096, 65535, 65536, 65537, 1 << 20}

func fill(b []byte, seed uint64) {
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
}

func TestOperations(t *testing.T) {
	for _, crc := range []bool{true, false} {
		t.Run(fmt.Sprintf("crc=%v", crc), func(t *testing.T) {
			forBackends(t, iwarp.Protocol{NoCRC: !crc}, operations)
		})
	}
}

// operations moves messages of all sizes by Write, Read and Send.
func operations(t *testing.T, l link) {
	p := l.connect(t, arena, nil)
	for i, n := range sizes {
		check := func(what string, got, want []byte) {
			require.Truef(t, bytes.Equal(got, want), "%s of %d octets differs", what, n)
		}
		seed := uint64(i) * 10

		fill(p.mine.mr.Bytes(), seed)
		p.mine.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.SendSignaled,
			SGL: []verbs.SGE{p.mine.mr.SGE(0, n)}, Remote: p.theirs.remote.Slice(0, n)})
		require.NoError(t, p.mine.wait(t, 1)[0].Err())

		p.theirs.recv(t, verbs.RecvWR{ID: 2, SGL: []verbs.SGE{}})
		p.mine.send(t, verbs.SendWR{ID: 3, Op: verbs.OpSend, Flags: verbs.SendSignaled}) // behind the Write
		require.NoError(t, p.mine.wait(t, 1)[0].Err())
		wc := p.theirs.wait(t, 1)[0]
		require.NoError(t, wc.Err())
		require.Zero(t, wc.ByteLen)
		check("Write", p.theirs.mr.Bytes()[:n], p.mine.mr.Bytes()[:n])

		fill(p.theirs.mr.Bytes(), seed+1)
		p.mine.send(t, verbs.SendWR{ID: 4, Op: verbs.OpRead, Flags: verbs.SendSignaled,
			SGL: []verbs.SGE{p.mine.mr.SGE(0, n)}, Remote: p.theirs.remote.Slice(0, n)})
		wc = p.mine.wait(t, 1)[0]
		require.NoError(t, wc.Err())
		require.Equal(t, verbs.OpRead, wc.Op)
		require.EqualValues(t, n, wc.ByteLen)
		check("Read", p.mine.mr.Bytes()[:n], p.theirs.mr.Bytes()[:n])

		fill(p.mine.mr.Bytes(), seed+2)
		p.theirs.recv(t, verbs.RecvWR{ID: 5, SGL: []verbs.SGE{p.theirs.mr.SGE(0, n/2), p.theirs.mr.SGE(n/2, n-n/2)}})
		p.mine.send(t, verbs.SendWR{ID: 6, Op: verbs.OpSend, Flags: verbs.SendSignaled,
			SGL: []verbs.SGE{p.mine.mr.SGE(0, n/3), p.mine.mr.SGE(n/3, n-n/3)}})
		require.NoError(t, p.mine.wait(t, 1)[0].Err())
		wc = p.theirs.wait(t, 1)[0]
		require.NoError(t, wc.Err())
		require.Equal(t, verbs.OpRecv, wc.Op)
		require.EqualValues(t, 5, wc.ID)
		require.EqualValues(t, n, wc.ByteLen)
		check("Send", p.theirs.mr.Bytes()[:n], p.mine.mr.Bytes()[:n])
	}
}

func TestBothWaysAtOnce(t *testing.T) { forBackends(t, iwarp.Protocol{}, bothWays) }

// bothWays has both sides write to and read from each other at the same time.
func bothWays(t *testing.T, l link) {
	const rounds, chunk = 40, 48 << 10
	p := l.connect(t, 4*arena, nil)
	fill(p.mine.mr.Bytes()[:arena], 7)
	fill(p.theirs.mr.Bytes()[:arena], 7)
	done := make(chan struct{})
	drive := func(e, peer *end) {
		defer func() { done <- struct{}{} }()
		for i := range rounds {
			op := verbs.OpWrite
			at := arena // where the peer's Writes and our Reads go, apart from what is read
			sge := e.mr.SGE(i%20*chunk, chunk)
			remote := peer.remote.Slice(at+i%20*chunk, chunk)
			if i%2 == 1 {
				op = verbs.OpRead
				sge, remote = e.mr.SGE(2*arena+i%20*chunk, chunk), peer.remote.Slice(i%20*chunk, chunk)
			}
			_, err := e.PostSend([]verbs.SendWR{{ID: uint64(i), Op: op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{sge}, Remote: remote}})
			if err != nil {
				t.Errorf("post %d: %v", i, err)
				return
			}
		}
		for i, wc := range e.wait(t, rounds) {
			if wc.Err() != nil || wc.ID != uint64(i) {
				t.Errorf("completion %d: %+v", i, wc)
			}
		}
	}
	go drive(&p.mine, &p.theirs)
	go drive(&p.theirs, &p.mine)
	<-done
	<-done
	for _, e := range []*end{&p.mine, &p.theirs} {
		for i := 1; i < 20; i += 2 {
			require.True(t, bytes.Equal(e.mr.Bytes()[i*chunk:(i+1)*chunk], e.mr.Bytes()[2*arena+i*chunk:2*arena+(i+1)*chunk]), "Read %d differs", i)
		}
	}
}

func TestOrder(t *testing.T) {
	l := pipe(t, iwarp.PipeConfig{})
	t.Run("VRB-34 completions of a send queue come in posting order", func(t *testing.T) {
		p := l.connect(t, arena, nil)
		var wrs []verbs.SendWR
		for i := range 40 {
			op := verbs.OpWrite
			if i%3 == 0 {
				op = verbs.OpRead
			}
			wrs = append(wrs, verbs.SendWR{ID: uint64(i), Op: op, Flags: verbs.SendSignaled,
				SGL: []verbs.SGE{p.mine.mr.SGE(i*4096, 4096)}, Remote: p.theirs.remote.Slice(i*4096, 4096)})
		}
		p.mine.send(t, wrs...)
		for i, wc := range p.mine.wait(t, len(wrs)) {
			require.NoError(t, wc.Err())
			require.EqualValues(t, i, wc.ID)
		}
	})
	t.Run("VRB-35 an unsignaled success makes no completion", func(t *testing.T) {
		p := l.connect(t, arena, nil)
		w := verbs.SendWR{ID: 1, Op: verbs.OpWrite, SGL: []verbs.SGE{p.mine.mr.SGE(0, 8)}, Remote: p.theirs.remote.Slice(0, 8)}
		last := w
		last.ID, last.Flags = 2, verbs.SendSignaled
		p.mine.send(t, w, w, w, last)
		require.Equal(t, []uint64{2}, ids(p.mine.wait(t, 1)))
		p.mine.quiet(t)
	})
	t.Run("VRB-38 a fenced Write waits for the Reads before it", func(t *testing.T) {
		p := l.connect(t, arena, nil)
		old := bytes.Repeat([]byte{0xaa}, 256<<10)
		for range 20 {
			copy(p.theirs.mr.Bytes(), old)
			copy(p.mine.mr.Bytes()[512<<10:], bytes.Repeat([]byte{0x55}, len(old)))
			p.mine.send(t,
				verbs.SendWR{ID: 1, Op: verbs.OpRead, Flags: verbs.SendSignaled,
					SGL: []verbs.SGE{p.mine.mr.SGE(0, len(old))}, Remote: p.theirs.remote.Slice(0, len(old))},
				verbs.SendWR{ID: 2, Op: verbs.OpWrite, Flags: verbs.SendSignaled | verbs.SendFence,
					SGL: []verbs.SGE{p.mine.mr.SGE(512<<10, len(old))}, Remote: p.theirs.remote.Slice(0, len(old))})
			require.Equal(t, []uint64{1, 2}, ids(p.mine.wait(t, 2)))
			require.True(t, bytes.Equal(old, p.mine.mr.Bytes()[:len(old)]), "the Read saw the Write behind it")
			p.theirs.recv(t, verbs.RecvWR{})
			p.mine.send(t, verbs.SendWR{Op: verbs.OpSend})
			p.theirs.wait(t, 1)
		}
	})
}

// TestWatch waits for Writes by looking at the memory they go to.
func TestWatch(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		p := l.connect(t, 4096, nil)
		word := p.theirs.mr.Uint64(8)
		for i := range uint64(200) {
			p.mine.mr.Bytes()[0] = byte(i + 1)
			p.mine.send(t, verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendSignaled,
				SGL: []verbs.SGE{p.mine.mr.SGE(0, 8)}, Remote: p.theirs.remote.Slice(8, 8)})
			require.NoError(t, p.mine.wait(t, 1)[0].Err())
			require.Eventually(t, func() bool { return byte(word.Load()) == byte(i+1) || byte(word.Load()>>56) == byte(i+1) },
				10*time.Second, 20*time.Microsecond)
		}
	})
}

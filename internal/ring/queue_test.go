package ring

import (
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func put(t *testing.T, q *Queue, v uint64) bool {
	t.Helper()
	rec := q.Slot()
	if rec == nil {
		return false
	}
	binary.LittleEndian.PutUint64(rec, v)
	q.Publish()
	return true
}

func TestGeometry(t *testing.T) {
	for _, c := range []struct {
		depth, stride, cap int // cap 0: refused
	}{
		{1, 16, 1}, {2, 16, 2}, {3, 16, 4}, {64, 128, 64}, {65, 176, 128}, {MaxDepth, 16, MaxDepth},
		{0, 16, 0}, {-1, 16, 0}, {MaxDepth + 1, 16, 0}, {1, 8, 0}, {1, 17, 0}, {1, 20, 0}, {1, MaxStride, 1}, {1, MaxStride + 8, 0},
	} {
		q, err := New(c.depth, c.stride)
		if c.cap == 0 {
			require.ErrorIs(t, err, ErrGeometry, "%+v", c)
			continue
		}
		require.NoError(t, err, "%+v", c)
		require.Equal(t, c.cap, q.Cap())
		require.GreaterOrEqual(t, q.Cap(), c.depth)
		require.Equal(t, c.stride, q.Stride())
		n, err := Size(c.depth, c.stride)
		require.NoError(t, err)
		require.Len(t, q.Region(), n)
		require.True(t, aligned(q.Region(), align))
	}
}

func TestQueueFillsAndNeverOverwrites(t *testing.T) {
	q, err := New(4, 16)
	require.NoError(t, err)
	require.Nil(t, q.Next())
	next := uint64(0) // value and number of the next record
	fill := func(want int) {
		t.Helper()
		got := 0
		for put(t, q, next) {
			next++
			got++
		}
		require.Equal(t, want, got)
		require.Equal(t, 4, q.Len())
		for seq := q.Head(); seq < q.Tail(); seq++ {
			require.Equal(t, seq, binary.LittleEndian.Uint64(q.Record(seq)))
		}
	}
	fill(4)
	for range 5 { // over the edge of the ring more than once
		for _, n := range []int{1, 2, 3, 4} {
			require.Equal(t, q.Head(), binary.LittleEndian.Uint64(q.Next()))
			q.Release(q.Head() + uint64(n))
			require.Equal(t, 4-n, q.Len())
			fill(n)
		}
	}
}

func TestReservedRecordsAppearTogether(t *testing.T) {
	q, err := New(8, 16)
	require.NoError(t, err)
	for i := range 3 {
		require.NotNil(t, q.Slot(), i)
		require.Zero(t, q.Len())
	}
	q.Publish()
	require.Equal(t, 3, q.Len())
	var b [16]byte
	require.Equal(t, 16, q.Load(1, b[:]))
}

func TestReleaseMisusePanics(t *testing.T) {
	q, err := New(2, 16)
	require.NoError(t, err)
	require.True(t, put(t, q, 1))
	require.Panics(t, func() { q.Release(3) })
	q.Release(1)
	require.Panics(t, func() { q.Release(0) }, "backwards")
}

func TestOpen(t *testing.T) {
	a, err := New(4, 32)
	require.NoError(t, err)
	require.True(t, put(t, a, 7))
	require.True(t, put(t, a, 8))
	a.Release(1)

	t.Run("the other side continues where the indices stand", func(t *testing.T) {
		b, err := Open(a.Region())
		require.NoError(t, err)
		require.Equal(t, 4, b.Cap())
		require.Equal(t, 32, b.Stride())
		require.Equal(t, uint64(8), binary.LittleEndian.Uint64(b.Next()))
		require.True(t, put(t, b, 9))
		require.Equal(t, 2, a.Len())
		b.Release(3)
		require.True(t, put(t, b, 10))
	})
	fresh := func(t *testing.T) []byte {
		q, err := New(4, 32)
		require.NoError(t, err)
		return q.Region()
	}
	le := binary.LittleEndian
	for _, c := range []struct {
		name  string
		spoil func(r []byte) []byte
	}{
		{"empty", func([]byte) []byte { return nil }},
		{"short header", func(r []byte) []byte { return r[:HeaderSize-1] }},
		{"short records", func(r []byte) []byte { return r[:len(r)-1] }},
		{"unaligned", func(r []byte) []byte { return append(make([]byte, 1, len(r)+1), r...)[1:] }},
		{"magic", func(r []byte) []byte { r[0]++; return r }},
		{"version 0", func(r []byte) []byte { le.PutUint32(r[offVersion:], 0); return r }},
		{"version 2", func(r []byte) []byte { le.PutUint32(r[offVersion:], 2); return r }},
		{"stride 0", func(r []byte) []byte { le.PutUint32(r[offStride:], 0); return r }},
		{"stride odd", func(r []byte) []byte { le.PutUint32(r[offStride:], 17); return r }},
		{"stride huge", func(r []byte) []byte { le.PutUint32(r[offStride:], 1<<31); return r }},
		{"depth 0", func(r []byte) []byte { le.PutUint32(r[offDepth:], 0); return r }},
		{"depth 3", func(r []byte) []byte { le.PutUint32(r[offDepth:], 3); return r }},
		{"depth beyond the region", func(r []byte) []byte { le.PutUint32(r[offDepth:], 8); return r }},
		{"depth huge", func(r []byte) []byte { le.PutUint32(r[offDepth:], 1<<31); return r }},
		{"tail before head", func(r []byte) []byte { le.PutUint64(r[offHead:], 1); return r }},
		{"more than depth between", func(r []byte) []byte { le.PutUint64(r[offTail:], 5); return r }},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Open(c.spoil(fresh(t)))
			require.ErrorIs(t, err, ErrLayout)
		})
	}
	t.Run("Create checks the region too", func(t *testing.T) {
		_, err := Create(make([]byte, HeaderSize), 1, 16)
		require.ErrorIs(t, err, ErrLayout)
		_, err = Create(make([]byte, HeaderSize), 0, 16)
		require.ErrorIs(t, err, ErrGeometry)
		_, err = Create(fresh(t)[1:], 1, 16)
		require.ErrorIs(t, err, ErrLayout)
	})
}

func TestHostileIndices(t *testing.T) {
	pair := func(t *testing.T) (q *Queue, r []byte) {
		q, err := New(4, 16)
		require.NoError(t, err)
		require.True(t, put(t, q, 1))
		require.True(t, put(t, q, 2))
		q.Release(1)
		return q, q.Region()
	}
	le := binary.LittleEndian
	t.Run("SEC-59 a tail too far ahead makes the queue look empty and broken", func(t *testing.T) {
		q, r := pair(t)
		le.PutUint64(r[offTail:], 6)
		require.Equal(t, 1, int(q.Tail()))
		require.Zero(t, q.Len())
		require.Nil(t, q.Next())
		require.True(t, q.Broken())
	})
	t.Run("SEC-59 a tail behind the head", func(t *testing.T) {
		q, r := pair(t)
		le.PutUint64(r[offTail:], 0)
		require.Zero(t, q.Len())
		require.True(t, q.Broken())
	})
	t.Run("SEC-59 the consumer's own head is not read back", func(t *testing.T) {
		q, r := pair(t)
		le.PutUint64(r[offHead:], 77)
		require.Equal(t, uint64(1), q.Head())
		require.Equal(t, 1, q.Len())
		require.False(t, q.Broken())
	})
	t.Run("SEC-59 a head beyond the tail stops the producer", func(t *testing.T) {
		q, r := pair(t)
		le.PutUint64(r[offHead:], 50)
		require.NotNil(t, q.Slot())
		require.NotNil(t, q.Slot())
		require.Nil(t, q.Slot())
		require.True(t, q.Broken())
	})
	t.Run("SEC-59 geometry is not read again", func(t *testing.T) {
		q, r := pair(t)
		le.PutUint32(r[offDepth:], 1<<20)
		le.PutUint32(r[offStride:], 1<<15)
		require.Equal(t, 4, q.Cap())
		require.Len(t, q.Record(1<<40+3), 16)
	})
}

// One producer and one consumer, both at full speed: every record arrives once,
// in order, whole. Run with -race it also shows that the indices order memory.
func TestStressSPSC(t *testing.T) {
	const n = 100_000
	q, err := New(64, 32)
	require.NoError(t, err)
	peer, err := Open(q.Region()) // as a second process would
	require.NoError(t, err)
	go func() {
		for i := uint64(0); i < n; {
			batch := 0
			for ; batch < 7 && i < n; batch++ {
				rec := peer.Slot()
				if rec == nil {
					break
				}
				binary.LittleEndian.PutUint64(rec[0:8], i)
				binary.LittleEndian.PutUint64(rec[24:32], ^i)
				i++
			}
			if batch == 0 {
				runtime.Gosched()
				continue
			}
			peer.Publish()
		}
	}()
	for seen := uint64(0); seen < n; {
		t0 := q.Tail()
		if t0 == seen {
			runtime.Gosched()
			continue
		}
		for ; seen < t0; seen++ {
			rec := q.Record(seen)
			if a, b := binary.LittleEndian.Uint64(rec[0:8]), binary.LittleEndian.Uint64(rec[24:32]); a != seen || b != ^seen {
				t.Fatalf("record %d holds %d and %x", seen, a, b)
			}
		}
		q.Release(seen)
	}
	require.False(t, q.Broken())
	require.False(t, peer.Broken())
}

// Len and Tail may be asked by a third goroutine without a false alarm.
func TestLookingOnDoesNotBreak(t *testing.T) {
	const n = 50_000
	q, err := New(2, 16)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := uint64(0); i < n; {
			if q.Slot() == nil {
				runtime.Gosched()
				continue
			}
			q.Publish()
			i++
		}
	}()
	onlooker := make(chan struct{})
	go func() {
		defer close(onlooker)
		for {
			select {
			case <-done:
				return
			default:
				if l := q.Len(); l < 0 || l > 2 {
					panic("length out of range")
				}
				runtime.Gosched()
			}
		}
	}()
	for q.Head() < n {
		if q.Next() == nil {
			runtime.Gosched()
			continue
		}
		q.Release(q.Head() + 1)
	}
	<-onlooker
	require.False(t, q.Broken())
}

func FuzzOpen(f *testing.F) {
	q, err := New(4, 32)
	require.NoError(f, err)
	f.Add(append([]byte(nil), q.Region()...))
	f.Add([]byte(nil))
	f.Add(append([]byte(magic), make([]byte, HeaderSize)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := allocate(len(b)) // aligned, as mapped memory is
		copy(r, b)
		q, err := Open(r)
		if err != nil {
			return
		}
		// Whatever the header says, nothing outside the region is touched and the
		// counts stay inside the depth.
		require.LessOrEqual(t, HeaderSize+q.Cap()*q.Stride(), len(r))
		require.LessOrEqual(t, q.Len(), q.Cap())
		free := q.Cap() - q.Len()
		for range free {
			rec := q.Slot()
			require.Len(t, rec, q.Stride())
			clear(rec)
		}
		require.Nil(t, q.Slot())
		q.Publish()
		for rec := q.Next(); rec != nil; rec = q.Next() {
			require.Len(t, rec, q.Stride())
			q.Release(q.Head() + 1)
		}
		require.Zero(t, q.Len())
	})
}

func BenchmarkQueue(b *testing.B) {
	q, _ := New(64, 128)
	b.ReportAllocs()
	for b.Loop() {
		rec := q.Slot()
		binary.LittleEndian.PutUint64(rec, 1)
		q.Publish()
		_ = q.Next()
		q.Release(q.Head() + 1)
	}
}

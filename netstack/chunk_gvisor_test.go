//go:build !softrdma_handoff

package netstack

import (
	"bytes"
	"reflect"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// A view is what this package takes it for.
func TestViewFields(t *testing.T) {
	theirs, ours := reflect.TypeFor[buffer.View](), reflect.TypeFor[viewFields]()
	require.Equal(t, theirs.NumField(), ours.NumField())
	require.Equal(t, theirs.Size(), ours.Size())
	for i := range theirs.NumField() {
		f, own := theirs.Field(i), ours.Field(i)
		require.Equal(t, f.Offset, own.Offset, f.Name)
		if i > 0 {
			require.Equal(t, f.Name, own.Name)
		}
		if f.Name != "chunk" {
			require.Equal(t, f.Type, own.Type, f.Name)
		} else {
			require.Equal(t, reflect.Pointer, f.Type.Kind())
			require.Equal(t, "chunkRefs", f.Type.Elem().Field(0).Name, "a chunk begins with its references")
			require.Zero(t, f.Type.Elem().Field(0).Offset)
		}
	}
	require.Equal(t, buffer.MaxChunkSize, 64<<(len(chunkPools)-1))
}

// What an endpoint has is where this package looks for it.
func TestSendQueueIsAField(t *testing.T) {
	ep := reflect.TypeFor[tcp.Endpoint]()
	queue, ok := ep.FieldByName("sndQueueInfo")
	require.True(t, ok)
	require.Equal(t, []int{queue.Index[0]}, queue.Index)
	require.Equal(t, "sndQueueMu", queue.Type.Field(0).Name)
	require.Zero(t, queue.Type.Field(0).Offset, "the queue begins with its lock")
	require.Equal(t, sndQueueAt, queue.Offset)
	used, ok := queue.Type.FieldByName("SndBufUsed")
	require.True(t, ok)
	require.Equal(t, reflect.TypeFor[int](), used.Type)
	snd, ok := ep.FieldByName("snd")
	require.True(t, ok)
	require.Equal(t, reflect.Pointer, snd.Type.Kind())
	require.Equal(t, sndAt, snd.Offset)
	list, ok := snd.Type.Elem().FieldByName("writeList")
	require.True(t, ok)
	require.Equal(t, writeListAt, list.Offset)
	require.Len(t, list.Index, 1)

	// Octets that wait for their acknowledgement are counted there.
	s := newSpoken(t, inet4, Config{})
	before := *(*int)(unsafe.Add(unsafe.Pointer(s.c.user.ep), sndQueueAt+sndUsedAt))
	require.Zero(t, before)
	stage := s.c.Stage()
	require.Len(t, stage, StageSize)
	require.NoError(t, s.c.Commit(40000))
	require.Equal(t, 40000, *(*int)(unsafe.Add(unsafe.Pointer(s.c.user.ep), sndQueueAt+sndUsedAt)))
}

// A chunk that was let go is had again as it is, and a view of it is one like others.
func TestUncleared(t *testing.T) {
	v := uncleared()
	require.Equal(t, buffer.MaxChunkSize, v.Size())
	require.Equal(t, buffer.MaxChunkSize, v.Capacity())
	b := v.AsSlice()
	for i := range b {
		b[i] = byte(i)
	}
	v.CapLength(1000)
	c := v.Clone()
	require.Equal(t, b[:1000], c.AsSlice())
	v.Release()
	other := uncleared()
	require.NotSame(t, &b[0], &other.AsSlice()[0], "a chunk that is still in use")
	require.Equal(t, b[:1000], c.AsSlice())
	c.Release()
	other.Release()

	// Those who get it from gVisor get it cleared.
	dirty := uncleared()
	for i := range dirty.AsSlice() {
		dirty.AsSlice()[i] = 0xff
	}
	dirty.Release()
	clean := buffer.NewViewSize(buffer.MaxChunkSize)
	require.True(t, bytes.Equal(make([]byte, buffer.MaxChunkSize), clean.AsSlice()))
	clean.Release()

	// Not if the race detector makes the pool forget some.
	if !raceEnabled {
		require.Zero(t, testing.AllocsPerRun(100, func() { uncleared().Release() }))
	}
}

package rdmap

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/mpa"
)

func TestTerminateOf(t *testing.T) {
	got, ok := TerminateOf(fmt.Errorf("x: %w", &PeerError{Terminate{Layer: 1, Type: 2, Code: 3}}))
	require.True(t, ok)
	require.Equal(t, Terminate{Layer: 1, Type: 2, Code: 3}, got)
	got, ok = TerminateOf(&ddp.Error{Type: 2, Code: 5})
	require.True(t, ok)
	require.Equal(t, Terminate{Layer: 1, Type: 2, Code: 5}, got)
	_, ok = TerminateOf(io.EOF)
	require.False(t, ok)
	_, ok = TerminateOf(&mpa.Error{Code: mpa.CodeClosed})
	require.False(t, ok)
}

func TestTerminateIsAbout(t *testing.T) {
	for _, c := range []struct {
		header   []byte
		qn       uint32
		known    bool
		response bool
	}{
		{nil, 0, false, false},
		{taggedSeg(0xc1, 0x40, 1, 2), 0, false, false},
		{taggedSeg(0xc1, 0x42, 1, 2), 0, false, true},
		{taggedSeg(0xc1, 0x72, 1, 2), 0, false, true},
		{untaggedSeg(0x41, 0x43, 0, 0, 1, 0), 0, true, false},
		{untaggedSeg(0x41, 0x41, 0, 1, 1, 0), 1, true, false},
	} {
		term := Terminate{DDPHeader: c.header}
		qn, known := term.QN()
		require.Equal(t, c.qn, qn)
		require.Equal(t, c.known, known)
		require.Equal(t, c.response, term.ReadResponse())
	}
}

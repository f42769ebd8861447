package main

import (
	"bytes"
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softrdma/softrdma/pktio"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestGather(t *testing.T) {
	var said transcript
	done := make(chan error, 1)
	go func() { done <- take("127.0.0.1", small, &said) }()
	require.Eventually(t, func() bool { return bytes.HasSuffix([]byte(said.String()), []byte("\n")) }, 10*time.Second, time.Millisecond)
	var out bytes.Buffer
	require.NoError(t, gather(lastWord(said.String()), small, smallBatch, 50*time.Millisecond, &out))
	require.NoError(t, <-done)
	n, took, err := parseCount(out.String())
	require.NoError(t, err)
	require.Zero(t, n%smallBatch)
	require.GreaterOrEqual(t, took, 50*time.Millisecond)
}

// A message that is not the one that is due is noticed.
func TestTakeCompares(t *testing.T) {
	var said transcript
	done := make(chan error, 1)
	go func() { done <- take("127.0.0.1", small, &said) }()
	require.Eventually(t, func() bool { return bytes.HasSuffix([]byte(said.String()), []byte("\n")) }, 10*time.Second, time.Millisecond)
	conn, err := net.Dial("tcp", lastWord(said.String()))
	require.NoError(t, err)
	defer conn.Close()
	message := make([]byte, small)
	message[7] = 1
	_, err = conn.Write(message)
	require.NoError(t, err)
	require.ErrorContains(t, <-done, "message 1 came where 0 was due")
}

func TestFrames(t *testing.T) {
	a, b, err := pktio.NewPipe(pktio.PipeConfig{})
	require.NoError(t, err)
	defer a.Close()
	defer b.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- newFramePort(a, make(net.HardwareAddr, 6)).echo(ctx) }()
	peer := a.Link().Addr
	times, err := newFramePort(b, peer[:]).ping(50 * time.Millisecond)
	require.NoError(t, err)
	require.NotEmpty(t, times)
	require.Positive(t, slices.Min(times))
	cancel()
	require.NoError(t, <-done)
}

// Nobody answers.
func TestFrameLost(t *testing.T) {
	a, b, err := pktio.NewPipe(pktio.PipeConfig{})
	require.NoError(t, err)
	defer a.Close()
	defer b.Close()
	peer := a.Link().Addr
	_, err = newFramePort(b, peer[:]).ping(time.Minute)
	require.ErrorContains(t, err, "a frame was lost")
}

func TestEndArguments(t *testing.T) {
	for _, args := range [][]string{
		nil, {"teleport"}, {"take", "127.0.0.1"}, {"take", "127.0.0.1", "7"}, {"take", "127.0.0.1", "x"},
		{"gather", "127.0.0.1:1", "64", "0", "1s"}, {"gather", "127.0.0.1:1", "64", "32", "soon"}, {"ping-frames", "lo", "no address", "1s"},
	} {
		require.Error(t, runEnd(args, &bytes.Buffer{}), "%v", args)
	}
}

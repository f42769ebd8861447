package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

func TestSaidBackend(t *testing.T) {
	require.Equal(t, "packet", saidBackend("packet: own TCP/IP stack on tap0 with 10.77.0.1/24 (asked for)\nping: listening"))
	require.Equal(t, "kernel", saidBackend("kernel: the host's TCP sockets (asked for)"))
	require.Equal(t, "xdp-native", saidBackend("xdp: own TCP/IP stack on tap0 with fd77::1/64 (native, copy, asked for)"))
	require.Equal(t, "?", saidBackend("ping: listening on 10.77.0.1:7174"))
}

func TestOurArgs(t *testing.T) {
	f := files{"/runs/x"}
	line := func(r Row) string { return strings.Join(r.ourArgs("softrdma", "interop", f), " ") }
	require.Equal(t, "softrdma ping fd77::2 -C 20 -S 4096 -V -i 0 --backend xdp --stats /runs/x/counters.json --xdp-mode native "+
		"--dev tap0 --ip fd77::1/64 --capture /runs/x/softrdma.pcapng --no-crc",
		line(Row{Program: "rping", Backend: "xdp-native", Role: "client", Family: 6, Load: Load{1, 20, 4096}}))
	require.Equal(t, "interop peer ucmatose server -c 30 -C 10 -S 100 --addr [fd77::3]:7471 --held --backend kernel --stats /runs/x/counters.json",
		line(Row{Kind: "siw", Program: "ucmatose", Backend: "kernel", Role: "server", Family: 6, CRC: true, Load: Load{30, 10, 100}}))

	args := (Row{Program: "rdma_client", Backend: "xdp-generic", Role: "server", Family: 4, Load: Load{1, 1, 16}}).ourArgs("", "", f)
	o, err := parsePeer(args[2:])
	require.NoError(t, err)
	require.Equal(t, iwarp.XDP, o.device.Backend)
	require.Equal(t, pktio.XDPGeneric, o.device.XDPMode)
	require.True(t, o.device.NoCRC)
	require.Equal(t, "10.77.0.1:7471", o.addr)
	require.Equal(t, []int{1, 1, 16}, []int{o.conns, o.count, o.size})
	for _, bad := range [][]string{nil, {"ucmatose"}, {"rping", "client"}, {"ucmatose", "both"}, {"ucmatose", "client", "--xdp-mode", "x"},
		{"ucmatose", "client", "--backend", "x"}, {"ucmatose", "client", "--ip", "10.77.0.1"}, {"ucmatose", "client", "more"}} {
		_, err := parsePeer(bad)
		require.Error(t, err, "%q", bad)
	}
}

func TestWatched(t *testing.T) {
	w := newWatched()
	go func() {
		_, _ = io.WriteString(w, "packet: own stack\n")
		_, _ = io.WriteString(w, "ping: listening on 10.77.0.1:7174\n")
	}()
	require.NoError(t, w.await("listening", time.Second))
	require.Error(t, w.await("never", time.Millisecond))
	p := program{stderr: w}
	require.Equal(t, "packet", p.backend())
}

package main

import (
	"context"
	"time"
)

// wire is what a measurement runs over.
type wire int

const (
	clean wire = iota // a veth pair
	lossy             // a bridge between two veth pairs that loses frames
)

func (w wire) String() string {
	if w == lossy {
		return "lossy wire"
	}
	return "clean wire"
}

// cell is one measurement.
type cell struct {
	name string // of its own
	wire wire
	run  runner
}

// runner makes a measurement of about the given length.
type runner interface {
	measure(ctx context.Context, s *stage, each time.Duration) (sample, error)
	// program is what must be installed; empty if nothing.
	program() string
}

const (
	small = 64
	large = 1 << 20
	// smallBatch is how many small messages go at once, of softrdma and of TCP.
	smallBatch = 32
	bigBuffers = 16 << 20 // of a socket
)

// cells are all measurements, in the order in which they run: those that are compared
// with each other stand together.
func cells() []cell {
	const (
		blocking = "tcp-blocking"
		spinning = "tcp-spinning"
	)
	return []cell{
		{"packet WRITE 64 B lat", clean, perfRun{backend: "packet", op: "write", kind: "lat", size: small}},
		{"TCP blocking 64 B lat", clean, tcpRun{carrier: blocking, kind: "lat", size: small}},
		{"TCP spinning 64 B lat", clean, tcpRun{carrier: spinning, kind: "lat", size: small}},
		{"raw frames 64 B lat", clean, rawRun{}},
		{"UCX tag_lat 64 B", clean, ucxRun{test: "tag_lat", size: small}},
		{"packet SEND 64 B lat", clean, perfRun{backend: "packet", op: "send", kind: "lat", size: small}},
		{"packet READ 64 B lat", clean, perfRun{backend: "packet", op: "read", kind: "lat", size: small}},
		{"XDP native WRITE 64 B lat", clean, perfRun{backend: "xdp-native", op: "write", kind: "lat", size: small}},
		{"XDP generic WRITE 64 B lat", clean, perfRun{backend: "xdp-generic", op: "write", kind: "lat", size: small}},
		{"kernel backend WRITE 64 B lat", clean, perfRun{backend: "kernel", op: "write", kind: "lat", size: small}},
		{"UCX ucp_put_lat 64 B", clean, ucxRun{test: "ucp_put_lat", size: small}},
		{"fi_pingpong 64 B", clean, fabricRun{size: small}},

		{"packet WRITE 1 MiB bw", clean, perfRun{backend: "packet", op: "write", kind: "bw", size: large}},
		{"TCP blocking 1 MiB bw", clean, tcpRun{carrier: blocking, kind: "bw", size: large}},
		{"TCP blocking 16 MiB buffers 1 MiB bw", clean, tcpRun{carrier: blocking, kind: "bw", size: large, buffers: bigBuffers}},
		{"TCP spinning 1 MiB bw", clean, tcpRun{carrier: spinning, kind: "bw", size: large}},
		{"packet WRITE 1 MiB bw no CRC", clean, perfRun{backend: "packet", op: "write", kind: "bw", size: large, noCRC: true}},
		{"packet READ 1 MiB bw", clean, perfRun{backend: "packet", op: "read", kind: "bw", size: large}},
		{"XDP native WRITE 1 MiB bw", clean, perfRun{backend: "xdp-native", op: "write", kind: "bw", size: large}},
		{"XDP generic WRITE 1 MiB bw", clean, perfRun{backend: "xdp-generic", op: "write", kind: "bw", size: large}},
		{"kernel backend WRITE 1 MiB bw", clean, perfRun{backend: "kernel", op: "write", kind: "bw", size: large}},
		{"UCX tag_bw 1 MiB", clean, ucxRun{test: "tag_bw", size: large}},
		{"memory copy 1 MiB", clean, copyRun{size: large}},

		{"packet WRITE 64 B rate", clean, perfRun{backend: "packet", op: "write", kind: "bw", size: small, depth: smallBatch}},
		{"TCP bufio 64 B rate", clean, gatherRun{size: small, batch: smallBatch}},
		{"TCP 2 KiB calls rate", clean, tcpRun{carrier: blocking, kind: "bw", size: small, depth: smallBatch}},

		{"packet idle", clean, idleRun{}},

		{"packet WRITE 1 MiB bw loss", lossy, perfRun{backend: "packet", op: "write", kind: "bw", size: large}},
		{"TCP blocking 1 MiB bw loss", lossy, tcpRun{carrier: blocking, kind: "bw", size: large}},
		{"TCP blocking 16 MiB buffers 1 MiB bw loss", lossy, tcpRun{carrier: blocking, kind: "bw", size: large, buffers: bigBuffers}},
		{"TCP spinning 1 MiB bw loss", lossy, tcpRun{carrier: spinning, kind: "bw", size: large}},
		{"packet WRITE 64 B lat loss", lossy, perfRun{backend: "packet", op: "write", kind: "lat", size: small}},
		{"TCP blocking 64 B lat loss", lossy, tcpRun{carrier: blocking, kind: "lat", size: small}},
		{"TCP spinning 64 B lat loss", lossy, tcpRun{carrier: spinning, kind: "lat", size: small}},
	}
}

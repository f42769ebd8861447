package main

// side is one of the two things that a figure compares: the best of some cells.
type side struct {
	metric metric
	cells  []string
}

// figure is a row of the table: ours divided by the other, or ours alone.
type figure struct {
	id    int
	name  string // what is measured
	than  string // the other; empty if the figure is absolute
	ours  side
	other side
	scale float64 // of both sides, 0 is 1: half of a round trip is one way
	// What the ratio, or the value of an absolute figure, must reach and shall
	// reach; no such thing if 0.
	floor, aim float64
}

// higherIsBetter tells on which side of floor and aim a figure should be.
func (f *figure) higherIsBetter() bool { return f.ours.metric.higherIsBetter() }

// reaches tells whether v is as good as limit.
func (f *figure) reaches(v, limit float64) bool {
	if f.higherIsBetter() {
		return v >= limit
	}
	return v <= limit
}

func on(m metric, cells ...string) side { return side{m, cells} }

// figures are all rows. Those that begin with 19 have no floor: they are there to show
// where the rest stands.
func figures() []figure {
	const (
		write = "packet WRITE 64 B lat"
		bw    = "packet WRITE 1 MiB bw"
	)
	tcpBW := []string{"TCP blocking 1 MiB bw", "TCP blocking 16 MiB buffers 1 MiB bw", "TCP spinning 1 MiB bw"}
	tcpLossBW := []string{"TCP blocking 1 MiB bw loss", "TCP blocking 16 MiB buffers 1 MiB bw loss", "TCP spinning 1 MiB bw loss"}
	return []figure{
		{id: 1, name: "64 B WRITE round trip", than: "kernel TCP, blocking", ours: on(p50, write), other: on(p50, "TCP blocking 64 B lat"), floor: 0.60, aim: 0.35},
		{id: 2, name: "64 B WRITE round trip", than: "kernel TCP, spinning", ours: on(p50, write), other: on(p50, "TCP spinning 64 B lat"), floor: 1.45, aim: 0.80},
		{id: 3, name: "64 B WRITE round trip", than: "raw frames, same backend", ours: on(p50, write), other: on(p50, "raw frames 64 B lat"), floor: 4.0, aim: 2.0},
		{id: 4, name: "64 B WRITE one way", than: "UCX tag_lat", ours: on(p50, write), other: on(p50, "UCX tag_lat 64 B"), scale: 0.5, floor: 1.0, aim: 0.50},
		{id: 5, name: "64 B SEND/RECV round trip", than: "64 B WRITE", ours: on(p50, "packet SEND 64 B lat"), other: on(p50, write), floor: 1.2, aim: 1.05},
		{id: 6, name: "64 B READ round trip", than: "64 B WRITE", ours: on(p50, "packet READ 64 B lat"), other: on(p50, write), floor: 1.2, aim: 1.0},
		{id: 7, name: "64 B WRITE round trip, p99.9", than: "kernel TCP, spinning", ours: on(p999, write), other: on(p999, "TCP spinning 64 B lat"), floor: 1.5, aim: 1.0},
		{id: 8, name: "1 MiB WRITE, CRC on", than: "kernel TCP", ours: on(rate, bw), other: on(rate, tcpBW...), floor: 1.15, aim: 1.60},
		{id: 9, name: "1 MiB WRITE, CRC off", than: "kernel TCP", ours: on(rate, "packet WRITE 1 MiB bw no CRC"), other: on(rate, tcpBW...), floor: 1.40, aim: 1.85},
		{id: 10, name: "1 MiB READ", than: "1 MiB WRITE", ours: on(rate, "packet READ 1 MiB bw"), other: on(rate, bw), floor: 0.90, aim: 1.0},
		{id: 11, name: "64 B WRITEs, batches of 32", ours: on(msgs, "packet WRITE 64 B rate"), floor: 1.0, aim: 5.0},
		{id: 12, name: "64 B WRITEs, batches of 32", than: "kernel TCP, bufio of 32", ours: on(msgs, "packet WRITE 64 B rate"), other: on(msgs, "TCP bufio 64 B rate"), floor: 0.4, aim: 1.0},
		{id: 13, name: "processor time, 1 MiB WRITE", than: "kernel TCP", ours: on(cpu, bw), other: on(cpu, tcpBW...), floor: 1.0, aim: 0.6},
		{id: 14, name: "processor time, idle connection", ours: on(idle, "packet idle"), floor: 1, aim: 0.1},
		{id: 15, name: "1 MiB WRITE, 1 % of frames lost", than: "kernel TCP", ours: on(rate, "packet WRITE 1 MiB bw loss"), other: on(rate, tcpLossBW...), floor: 0.5, aim: 1.2},
		{id: 16, name: "64 B WRITE p99, 1 % of frames lost", than: "kernel TCP", ours: on(p99, "packet WRITE 64 B lat loss"),
			other: on(p99, "TCP blocking 64 B lat loss", "TCP spinning 64 B lat loss"), floor: 5, aim: 1.0},
		{id: 17, name: "AF_XDP 1 MiB WRITE", than: "packet backend", ours: on(rate, "XDP native WRITE 1 MiB bw", "XDP generic WRITE 1 MiB bw"), other: on(rate, bw), floor: 0.3, aim: 0.7},
		{id: 18, name: "AF_XDP 64 B WRITE round trip", than: "packet backend", ours: on(p50, "XDP native WRITE 64 B lat", "XDP generic WRITE 64 B lat"), other: on(p50, write), floor: 1.3, aim: 1.0},

		{id: 19, name: "64 B WRITE one way", than: "UCX ucp_put_lat", ours: on(p50, write), other: on(p50, "UCX ucp_put_lat 64 B"), scale: 0.5},
		{id: 20, name: "64 B WRITE one way, mean", than: "fi_pingpong", ours: on(mean, write), other: on(mean, "fi_pingpong 64 B"), scale: 0.5},
		{id: 21, name: "1 MiB WRITE, CRC on", than: "UCX tag_bw", ours: on(rate, bw), other: on(rate, "UCX tag_bw 1 MiB")},
		{id: 22, name: "1 MiB WRITE, CRC on", than: "memory copy", ours: on(rate, bw), other: on(rate, "memory copy 1 MiB")},
		{id: 23, name: "64 B WRITEs, batches of 32", than: "kernel TCP, 2 KiB calls", ours: on(msgs, "packet WRITE 64 B rate"), other: on(msgs, "TCP 2 KiB calls rate")},
		{id: 24, name: "whole host's time, 1 MiB WRITE", than: "kernel TCP", ours: on(hostCPU, bw), other: on(hostCPU, tcpBW...)},
		{id: 25, name: "kernel backend, 64 B WRITE round trip", than: "kernel TCP, blocking", ours: on(p50, "kernel backend WRITE 64 B lat"), other: on(p50, "TCP blocking 64 B lat")},
		{id: 26, name: "kernel backend, 1 MiB WRITE", than: "kernel TCP", ours: on(rate, "kernel backend WRITE 1 MiB bw"), other: on(rate, tcpBW...)},
	}
}

package main

// metric is one thing that a measurement yields.
type metric int

const (
	p50     metric = iota // microseconds of a round trip
	p99                   // likewise
	p999                  // likewise
	mean                  // likewise
	rate                  // GB (10^9 octets) of payload a second
	msgs                  // millions of messages a second
	cpu                   // processor seconds a GB, both processes
	hostCPU               // likewise, the whole host
	idle                  // per cent of a processor, both processes
)

// higherIsBetter tells throughput from cost.
func (m metric) higherIsBetter() bool { return m == rate || m == msgs }

func (m metric) unit() string {
	switch m {
	case rate:
		return "GB/s"
	case msgs:
		return "M/s"
	case cpu, hostCPU:
		return "s/GB"
	case idle:
		return "%"
	}
	return "us"
}

// sample is what one measurement has yielded.
type sample map[metric]float64

// metricNames are those of -json.
var metricNames = map[metric]string{
	p50: "round_trip_p50_us", p99: "round_trip_p99_us", p999: "round_trip_p99.9_us", mean: "round_trip_mean_us",
	rate: "gb_per_s", msgs: "million_messages_per_s", cpu: "cpu_s_per_gb", hostCPU: "host_cpu_s_per_gb", idle: "idle_percent_of_a_core",
}

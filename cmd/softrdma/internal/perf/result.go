package perf

import (
	"math"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// Result is what a test measured.
type Result struct {
	Test        Test
	Messages    uint64 // sent, or rounds for latency
	Elapsed     time.Duration
	Times       *Times        // of the rounds; nil for bandwidth
	Peak        float64       // octets a second in the best interval of sampling; 0 if the test was too short for one
	Interrupted bool          // the context ended it early
	CPU         time.Duration // of all processors, this process; the time of all its threads
	PeerCPU     time.Duration // likewise, the server's process
	Wrong       uint64        // octets that were not what they should be; with Verify
	WrongAt     string        // the first of them, on either side
}

// Octets is the payload that was moved one way.
func (r *Result) Octets() uint64 { return r.Messages * uint64(r.Test.Size) }

// OctetsPerSecond is the average.
func (r *Result) OctetsPerSecond() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Octets()) / r.Elapsed.Seconds()
}

// MessagesPerSecond is the average.
func (r *Result) MessagesPerSecond() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Messages) / r.Elapsed.Seconds()
}

// share is the part of a round that counts as the latency: half of it, for a
// message one way. What is answered has no half.
func (r *Result) share() float64 {
	if r.Test.Op.Answered() {
		return 1
	}
	return 0.5
}

// Latency is the given percentile, 0 to 100, of the latency in nanoseconds: half the
// round trip of a Send or Write, all of a Read or atomic. 0 is the smallest, 100
// the largest one.
func (r *Result) Latency(percentile float64) float64 {
	return r.Times.at(percentile) * r.share()
}

// Mean and Stdev of the latency, in nanoseconds.
func (r *Result) Mean() float64  { return r.Times.mean() * r.share() }
func (r *Result) Stdev() float64 { return r.Times.hist.StdDev() * r.share() }

// Add joins the result of another run of the same test.
func (r *Result) Add(o *Result) {
	r.Messages += o.Messages
	r.Elapsed += o.Elapsed
	r.Peak = math.Max(r.Peak, o.Peak)
	r.CPU += o.CPU
	r.PeerCPU += o.PeerCPU
	if r.Wrong == 0 {
		r.WrongAt = o.WrongAt
	}
	r.Wrong += o.Wrong
	r.Interrupted = r.Interrupted || o.Interrupted
	if o.Times != nil {
		if r.Times == nil {
			r.Times = NewTimes()
		}
		r.Times.add(o.Times)
	}
}

// Times is the distribution of durations up to a minute, to three digits; the
// smallest, the largest and the sum are exact.
type Times struct {
	hist     *hdr.Histogram
	min, max int64
	sum      float64
	n        int64
}

const (
	longest = int64(time.Minute)
	digits  = 3
)

// NewTimes returns an empty distribution.
func NewTimes() *Times {
	return &Times{hist: hdr.New(1, longest, digits), min: math.MaxInt64}
}

// Record adds d. It does not allocate.
func (t *Times) Record(d time.Duration) {
	v := max(int64(d), 1)
	t.min, t.max = min(t.min, v), max(t.max, v)
	t.sum += float64(v)
	t.n++
	_ = t.hist.RecordValue(min(v, longest)) // its only error is a value that is out of range
}

// Histogram is the distribution in nanoseconds of whole rounds.
func (t *Times) Histogram() *hdr.Histogram { return t.hist }

func (t *Times) at(percentile float64) float64 {
	switch {
	case t.n == 0:
		return 0
	case percentile <= 0:
		return float64(t.min)
	case percentile >= 100:
		return float64(t.max)
	}
	v := t.hist.ValueAtQuantile(percentile)
	return float64(min(max(v, t.min), t.max)) // the histogram rounds
}

func (t *Times) mean() float64 {
	if t.n == 0 {
		return 0
	}
	return t.sum / float64(t.n)
}

func (t *Times) add(o *Times) {
	t.hist.Merge(o.hist)
	t.min, t.max = min(t.min, o.min), max(t.max, o.max)
	t.sum += o.sum
	t.n += o.n
}

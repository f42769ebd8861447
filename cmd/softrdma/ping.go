package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/rping"
)

type pingFlags struct {
	count    int
	size     int
	interval time.Duration
	port     uint16
	verbose  bool
	asJSON   bool
}

func (a *app) pingCommand() *cobra.Command {
	var p pingFlags
	c := &cobra.Command{
		Use:   "ping HOST",
		Short: "Ping over RDMA: softrdma serve, or rdma-core's rping -s",
		Long: `Pings by the wire protocol of rdma-core's rping: the server reads the ping out
of this side's memory by RDMA Read and writes it back by RDMA Write, and this
side compares. The time is that of the whole: three turns of the network.

  softrdma ping 10.77.0.1            pings softrdma serve, or rping -s
  rping -c -a 10.77.0.1 -v -C 10     pings softrdma serve, too`,
		Args: wantArgs("HOST"),
		RunE: func(c *cobra.Command, args []string) error { return a.ping(c.Context(), args[0], &p) },
	}
	f := c.Flags()
	f.IntVarP(&p.count, "count", "C", 5, "pings; 0 for as many as there is time")
	p.size = rping.DefaultSize
	f.VarP((*sizeFlag)(&p.size), "size", "S", fmt.Sprintf("octets of a ping, %d to %d", rping.MinSize, rping.MaxSize))
	f.DurationVarP(&p.interval, "interval", "i", 200*time.Millisecond, "from one ping to the next; 0 for none")
	f.Uint16VarP(&p.port, "port", "p", rping.Port, "port of the server")
	f.BoolVarP(&p.verbose, "verbose", "v", false, "print what comes back")
	f.BoolP("verify", "V", true, "compare what comes back; it is always done")
	jsonFlag(c, &p.asJSON)
	return c
}

// pingDocument is what --json prints.
type pingDocument struct {
	Schema   string     `json:"schema"`
	Peer     string     `json:"peer"`
	Size     int        `json:"size"`
	Received int        `json:"received"`
	Wrong    int        `json:"wrong"`
	MinUsec  float64    `json:"min_usec"`
	AvgUsec  float64    `json:"avg_usec"`
	MaxUsec  float64    `json:"max_usec"`
	Error    string     `json:"error,omitempty"`
	Pings    []pingLine `json:"pings"`
}

type pingLine struct {
	Seq  int     `json:"seq"`
	Usec float64 `json:"usec"`
}

// maxPingLines bounds what a long run keeps for --json.
const maxPingLines = 100_000

func (a *app) ping(ctx context.Context, host string, p *pingFlags) (err error) {
	switch {
	case p.size < rping.MinSize || p.size > rping.MaxSize:
		return usagef(fmt.Sprintf("take %d to %d", rping.MinSize, rping.MaxSize), "--size: a ping cannot have %d octets", p.size)
	case p.count < 0:
		return usagef("0 is until Ctrl-C", "--count: %d is less than none", p.count)
	case p.interval < 0:
		return usagef("0 is none", "--interval: %v is less than none", p.interval)
	}
	dev, closeDevice, err := a.openDevice(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDevice()) }()

	addr := net.JoinHostPort(host, strconv.Itoa(int(p.port)))
	s := pingStats{doc: pingDocument{Schema: "softrdma.ping/v1", Peer: addr, Size: p.size, Pings: []pingLine{}}}
	client := rping.Client{
		Device: dev, Size: p.size, Count: p.count, Interval: p.interval,
		OnPing: func(r rping.Ping) {
			s.add(r)
			if !p.asJSON {
				a.pingLine(addr, r, p.verbose)
			}
		},
	}
	err = client.Run(ctx, addr)
	var wrong *rping.Mismatch
	if errors.As(err, &wrong) {
		s.doc.Wrong++
	}
	if p.asJSON {
		return errors.Join(err, a.writeJSON(s.finish(err)))
	}
	if err == nil || s.doc.Received > 0 {
		d := s.finish(err)
		fmt.Fprintf(a.stdout, "%d pings of %d octets came back right, %d wrong; min/avg/max = %.1f/%.1f/%.1f us\n",
			d.Received, d.Size, d.Wrong, d.MinUsec, d.AvgUsec, d.MaxUsec)
	}
	return err
}

func (a *app) pingLine(addr string, r rping.Ping, verbose bool) {
	fmt.Fprintf(a.stdout, "%d octets from %s: seq=%d time=%.1f us\n", r.Size, addr, r.Seq, usec(r.Time))
	if verbose {
		fmt.Fprintf(a.stdout, "ping data: %s\n", strings.TrimRight(string(r.Text), "\x00"))
	}
}

type pingStats struct {
	doc pingDocument
	sum time.Duration
}

func (s *pingStats) add(r rping.Ping) {
	t := usec(r.Time)
	d := &s.doc
	if d.Received == 0 || t < d.MinUsec {
		d.MinUsec = t
	}
	d.MaxUsec = max(d.MaxUsec, t)
	d.Received++
	s.sum += r.Time
	if len(d.Pings) < maxPingLines {
		d.Pings = append(d.Pings, pingLine{r.Seq, t})
	}
}

func (s *pingStats) finish(err error) *pingDocument {
	if n := s.doc.Received; n > 0 {
		s.doc.AvgUsec = usec(s.sum) / float64(n)
	}
	if err != nil {
		s.doc.Error = err.Error()
	}
	return &s.doc
}

// usec is d in microseconds, to the nanosecond.
func usec(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

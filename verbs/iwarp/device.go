package iwarp

import (
	"sync"
	"sync/atomic"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/mempool"
	"github.com/softrdma/softrdma/netstack"
	"github.com/softrdma/softrdma/verbs"
)

// device joins the protocol column to the TCP/IP stack and runs the two
// goroutines.
type device struct {
	proto  Protocol
	model  Threads
	attr   verbs.DeviceAttr
	limits Limits
	log    limitedLog
	stack  *netstack.Stack
	claim  []*netstack.Claim // of our addresses
	table  *ddp.Table
	pool   *mempool.Pool // FPDUs on their way to TCP
	why    string        // see Explain
	bufs   []buffers     // see Memory
	txq    txQueue
	role   receiver       // who receives
	rx     sync.WaitGroup // the receive goroutine
	tx     sync.WaitGroup // the transmit goroutine
	stats  stats

	events eventQueue
	onStop func() error // ends what wraps the port

	mu      sync.Mutex // guards what follows
	qps     map[uint32]*qp
	srqs    map[uint32]*sharedQueue
	orphans int                // connections of closed queue pairs that still end
	cmds    []func()           // for the receive goroutine
	asked   atomic.Bool        // there are some; written under mu, read without
	closed  bool               // no new queue pair
	ended   bool               // the receive goroutine takes no commands any more
	live    map[*conn]struct{} // in FPDU mode, for the counters
	totals  streamTotals

	// The receive goroutine's own; guarded by role.mu.
	conns     map[*conn]struct{}
	listeners map[*netstack.Listener]*listener
	timers    timers
	again     []*conn         // had more to do when their turn ended
	before    []*conn         // memory for again's next list
	overrun   map[uint32]bool // completion queues that were reported
	slots     int             // inbound reads that all connections may have in flight
	stopping  bool
	dead      bool // the stack has lost its link for good
}

// txBuffers and txBufferSize bound the memory for FPDUs on their way to TCP: a
// buffer is in use only between the first FPDU of a burst and its flush, so a
// few serve any number of queue pairs, and one that is idle has touched none.
const (
	txBuffers    = 32
	txBufferSize = 256 << 10
)

func newDevice(s *netstack.Stack, c *Config, name string) (*device, error) {
	limits, err := c.Limits.withDefaults()
	if err != nil {
		return nil, err
	}
	pool, err := mempool.New(mempool.Config{Count: txBuffers, Size: txBufferSize, Pages: mempool.Huge})
	if err != nil {
		return nil, err
	}
	d := &device{
		proto: c.Protocol, model: c.Threads, limits: limits, log: limitedLog{to: c.Logger}, stack: s, pool: pool, table: ddp.NewTable(),
		attr: attr(name, s.MTU(), &c.Protocol),
		qps:  map[uint32]*qp{}, srqs: map[uint32]*sharedQueue{}, conns: map[*conn]struct{}{}, listeners: map[*netstack.Listener]*listener{},
		overrun: map[uint32]bool{}, live: map[*conn]struct{}{},
		bufs: []buffers{poolBuffers("transmit buffers", pool)},
	}
	limits.put(&d.attr)
	d.events.init()
	d.txq.init(c.Threads.leaves())
	d.role.init()
	d.rx.Go(d.rxLoop)
	if d.model == ThreadsIO {
		d.txq.wakeIO = s.Wake // the receive goroutine transmits, too
	} else {
		d.tx.Go(d.txLoop)
	}
	return d, nil
}

// provider is what package verbs reaches of a device.
func (d *device) provider() verbs.Provider {
	p := verbs.Provider{
		Attr:       d.attr,
		Info:       d.why,
		CreateQP:   d.createQP,
		CreateSRQ:  d.createSRQ,
		EventTaken: d.events.taken,
		Dial:       d.connect,
		Listen:     d.listen,
		Events:     d.events.c,
		Stats:      d.snapshot,
		Memory:     d.memory,
		Close:      d.close,
	}
	if d.model != ThreadsAdaptive {
		p.Info += "; threads " + d.model.String()
	}
	if d.model == ThreadsIO {
		p.Progress = d.giveWay
	} else {
		p.Progress, p.Parked = d.progress, d.parked
	}
	d.keys(&p)
	return p
}

// do runs f on the receive goroutine, soon; false when the device is closed.
func (d *device) do(f func()) bool {
	d.mu.Lock()
	if d.ended {
		d.mu.Unlock()
		return false
	}
	d.cmds = append(d.cmds, f)
	d.asked.Store(true)
	d.mu.Unlock()
	d.stack.Wake()
	if d.model == ThreadsRunToCompletion {
		d.parked() // who waits for f may be the only one that polls
	} else {
		d.role.rouse()
	}
	return true
}

// doWait runs f on the receive goroutine and waits; false, f not run, when the
// device is closed. Not for the receive goroutine itself.
func (d *device) doWait(f func()) bool {
	done := make(chan struct{})
	if !d.do(func() { f(); close(done) }) {
		return false
	}
	<-done
	return true
}

// event queues an asynchronous event. Any goroutine.
func (d *device) event(e verbs.AsyncEvent) { d.events.push(e) }

// close stops the device. verbs has closed all queue pairs before; of their
// connections those that end in order are given until their drain timeout.
func (d *device) close() error {
	d.mu.Lock()
	was := d.closed
	d.closed = true
	d.mu.Unlock()
	if was {
		return nil
	}
	d.doWait(func() {
		d.stopping = true
		for _, l := range d.listeners {
			l.shut()
		}
		for c := range d.conns {
			c.failDial(verbs.ErrClosed)
			if c.state != draining {
				c.reset(nil)
			}
		}
	})
	d.rx.Wait() // until all connections are gone, which takes the transmit goroutine
	d.txq.close()
	d.tx.Wait()
	err := d.stack.Close()
	for _, c := range d.claim {
		c.Close()
	}
	if e := d.pool.Close(); err == nil {
		err = e
	}
	if d.onStop != nil {
		if e := d.onStop(); err == nil {
			err = e
		}
	}
	d.events.close()
	return err
}

// attr describes the device to package verbs, whose defaults fill the rest.
func attr(name string, mtu int, p *Protocol) verbs.DeviceAttr {
	a := verbs.DeviceAttr{
		Name: name, NodeType: verbs.NodeRNIC, Transport: verbs.TransportIWARP, MTU: mtu,
		MaxQPRdAtom: MaxReadDepth, MaxQPInitRdAtom: MaxReadDepth,
		AtomicCap: verbs.AtomicHCA, Immediate: !p.NoImmediate,
	}
	if p.NoAtomics {
		a.AtomicCap = verbs.AtomicNone
	}
	return a
}

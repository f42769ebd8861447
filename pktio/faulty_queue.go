package pktio

import "time"

// now is the time on the clock that due times are in.
func (y *Faulty) now() time.Duration { return time.Since(y.epoch) }

// depart sends a frame on its way: at once, or into the queue if it is to be delayed. y.mu is held.
func (y *Faulty) depart(e entry) {
	f := &y.faults
	if f.Delay == 0 && f.Jitter == 0 {
		y.emit(e)
		return
	}
	y.delayed.Add(1)
	e.due = y.now() + f.Delay
	if f.Jitter > 0 {
		e.due += time.Duration(y.detail.Int64N(int64(f.Jitter)))
	}
	e.seq = y.seq
	y.seq++
	y.push(e)
	y.wake(e.due)
}

// emit hands a frame to the port and gives its buffer back. y.mu is held.
func (y *Faulty) emit(e entry) {
	defer e.buf.Release()
	if y.cut.Load() {
		y.cutTx.Add(1)
		return
	}
	f := &y.one[0]
	f.Data = append(f.Data[:0], e.buf.Bytes())
	f.Offload = e.off
	n, _ := y.port.Send(y.one[:])
	if n == 0 {
		y.noRoom.Add(1)
	}
	y.sent.Add(uint64(n))
	f.Data[0] = nil
}

// overtake tells the frames held back that another one went by. y.mu is held.
func (y *Faulty) overtake() {
	if len(y.held) == 0 {
		return
	}
	keep := y.held[:0]
	for _, e := range y.held {
		if e.after--; e.after > 0 {
			keep = append(keep, e)
		} else {
			y.depart(e)
		}
	}
	y.drop(keep)
}

// release lets those held back go whose time is over. It returns when the next one's is. y.mu is held.
func (y *Faulty) release(now, next time.Duration) time.Duration {
	keep := y.held[:0]
	for _, e := range y.held {
		if e.due <= now {
			y.depart(e)
			continue
		}
		keep = append(keep, e)
		next = min(next, e.due)
	}
	y.drop(keep)
	return next
}

// drop makes keep, a prefix's worth of y.held, all that is held.
func (y *Faulty) drop(keep []entry) {
	clear(y.held[len(keep):])
	y.held = keep
}

const never = time.Duration(1<<63 - 1)

// wake makes sure that the goroutine looks at due. y.mu is held.
func (y *Faulty) wake(due time.Duration) {
	if y.done == nil {
		y.kick = make(chan struct{}, 1)
		y.done = make(chan struct{})
		y.gone = make(chan struct{})
		y.armed = never
		go y.run()
	}
	if due < y.armed {
		y.armed = due
		select {
		case y.kick <- struct{}{}:
		default:
		}
	}
}

// run sends frames when they come due, until Close.
func (y *Faulty) run() {
	defer close(y.gone)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-y.kick:
		case <-y.done:
			return
		}
		y.mu.Lock()
		now := y.now()
		y.release(now, never)
		for len(y.queue) > 0 && y.queue[0].due <= now {
			y.emit(y.pop())
		}
		next := y.release(now, never) // what release moved into the queue is not due yet
		if len(y.queue) > 0 {
			next = min(next, y.queue[0].due)
		}
		y.armed = next
		y.mu.Unlock()
		if next != never {
			timer.Reset(next - now)
		} else {
			timer.Stop()
		}
	}
}

func (e *entry) before(o *entry) bool {
	return e.due < o.due || e.due == o.due && e.seq < o.seq
}

// push and pop keep y.queue a binary heap. (container/heap would allocate for each frame.)
func (y *Faulty) push(e entry) {
	q := append(y.queue, e)
	i := len(q) - 1
	for i > 0 {
		up := (i - 1) / 2
		if q[up].before(&e) {
			break
		}
		q[i] = q[up]
		i = up
	}
	q[i] = e
	y.queue = q
}

func (y *Faulty) pop() entry {
	q := y.queue
	first := q[0]
	last := len(q) - 1
	e := q[last]
	q[last] = entry{}
	q = q[:last]
	i := 0
	for {
		down := 2*i + 1
		if down >= last {
			break
		}
		if down+1 < last && q[down+1].before(&q[down]) {
			down++
		}
		if e.before(&q[down]) {
			break
		}
		q[i] = q[down]
		i = down
	}
	if last > 0 {
		q[i] = e
	}
	y.queue = q
	return first
}

package main

import (
	"math/rand/v2"

	"github.com/softrdma/softrdma/verbs"
)

// The areas of an end's memory on one lane, a region each. Source, sink, inbox and
// target have a slot for each round that may be under way.
const (
	areaSource = iota // what Sends and Writes take from here
	areaSink          // where Reads put their octets
	areaInbox         // receives
	areaTarget        // where the peer writes, and reads back
	areaExport        // what the peer reads
	areas
)

var areaNames = [areas]string{"source", "sink", "inbox", "target", "export"}

const (
	maxOps    = 32 // work requests of a round
	maxWindow = 2  // rounds under way in one direction
	maxSGEs   = 4
	maxGap    = 40 // untouched octets between neighbours
	maxSpare  = 64 // octets that a receive is longer than its message
	slack     = maxOps * (maxSGEs*maxGap + maxSpare)
	extra     = 128 << 10 // octets of a round beside one of the largest size
)

// opKind is what a work request does.
type opKind uint8

const (
	opSend      opKind = iota
	opWrite            // to untouched memory of the peer's target
	opRead             // of the peer's export
	opReadBack         // of what this round has written
	opSendRead         // what this round has read is sent, behind a fence
	opWriteRead        // what this round has read is written, behind a fence
	opKinds     = iota // how many there are
)

var opNames = [opKinds]string{"send", "write", "read", "readback", "sendread", "writeread"}

func (k opKind) verb() verbs.Opcode {
	return [opKinds]verbs.Opcode{verbs.OpSend, verbs.OpWrite, verbs.OpRead, verbs.OpRead, verbs.OpSend, verbs.OpWrite}[k]
}

func (k opKind) sends() bool  { return k.verb() == verbs.OpSend }
func (k opKind) writes() bool { return k.verb() == verbs.OpWrite }
func (k opKind) reads() bool  { return k.verb() == verbs.OpRead }

// piece is a run of octets in the slot of an area.
type piece struct{ off, n int }

// op is a work request, as both ends know it.
type op struct {
	kind  opKind
	flags verbs.SendFlags
	plain bool // its inline data come as SendWR.Inline
	n     int  // octets
	what  mark // that they are
	from  int  // which of them is the first
	area  int  // on this side: source or sink
	local []piece
	there int     // where in the peer's export or slot of its target
	recv  []piece // where the receive that it meets puts it, and more behind
}

// round is what one end does on a lane before the peer has to agree to more.
// Its last request is a Send: when that has come, all has.
type round struct {
	num     int
	ops     []op
	batches []int      // requests of each PostSend
	used    [areas]int // octets of each slot that the round touches, of either end
	sends   int
}

// draws makes a random round.
type draws struct {
	*rand.Rand
	o    *options
	side int
	lane int
	gen  uint32
	left int // octets that may still be moved
}

// planRound returns round num of one end; both ends get the same.
func planRound(o *options, g *genPlan, side, num int) *round {
	d := &draws{
		Rand: rand.New(rand.NewPCG(mix(o.Seed^uint64(g.lane)<<32^uint64(g.gen)), uint64(num)<<1|uint64(side))),
		o:    o, side: side, lane: g.lane, gen: g.gen, left: o.MaxSize + extra,
	}
	p := &round{num: num}
	n := 1 + d.IntN(maxOps-8)
	readBack := false
	for i := range n {
		x := op{kind: d.kind(p)}
		if i == n-1 {
			x.kind = opSend
		}
		if d.IntN(2) == 0 || i == n-1 {
			x.flags |= verbs.SendSignaled
		}
		if x.kind.sends() && d.IntN(3) == 0 {
			x.flags |= verbs.SendSolicited
		}
		if d.IntN(10) == 0 {
			x.flags |= verbs.SendFence
		}
		d.shape(p, &x, g.ends[side].inline)
		readBack = readBack || x.kind == opReadBack
		if x.kind.sends() {
			p.sends++
		}
		p.ops = append(p.ops, x)
	}
	last := &p.ops[n-1]
	last.flags |= verbs.SendSolicited
	if readBack { // or the peer would clean up what is still to be read
		last.flags |= verbs.SendFence
	}
	for n > 0 {
		k := min(n, 1+d.IntN(8))
		p.batches = append(p.batches, k)
		n -= k
	}
	return p
}

// kind draws what the next request does.
func (d *draws) kind(p *round) opKind {
	k := opKind([...]uint8{0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 5}[d.IntN(12)])
	switch {
	case k == opReadBack && d.earlier(p, opKind.writes) == nil:
		return opWrite
	case (k == opSendRead || k == opWriteRead) && d.earlier(p, opKind.reads) == nil:
		return opRead
	}
	return k
}

// earlier returns one of the round's requests that moves octets and is of a kind.
func (d *draws) earlier(p *round, kind func(opKind) bool) *op {
	var found []*op
	for i := range p.ops {
		if x := &p.ops[i]; kind(x.kind) && x.n > 0 {
			found = append(found, x)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return found[d.IntN(len(found))]
}

// size draws a number of octets, mostly a small one.
func (d *draws) size() (n int) {
	switch x := d.IntN(100); {
	case x < 2:
		n = 0
	case x < 32:
		n = 1 + d.IntN(64)
	case x < 57:
		n = 65 + d.IntN(1024-64)
	case x < 82:
		n = 1025 + d.IntN(8192-1024)
	case x < 98:
		n = 8193 + d.IntN(65536-8192)
	default:
		n = 1 + d.IntN(d.o.MaxSize)
	}
	if n = min(n, d.o.MaxSize); n > d.left {
		n = d.IntN(min(d.left, 2048) + 1)
	}
	d.left -= n
	return n
}

// shape says how much x moves, and from where to where.
func (d *draws) shape(p *round, x *op, inline int) {
	x.n = d.size()
	x.what = mark{markData, d.side, d.lane, d.gen, uint32(p.num*maxOps + len(p.ops))}
	switch x.kind {
	case opSend, opWrite:
		if x.n <= inline && d.IntN(3) > 0 {
			x.flags |= verbs.SendInline
			x.plain = d.IntN(2) == 0
		}
		sges := d.sges()
		if x.plain {
			sges = 1
		}
		x.local = d.place(p, areaSource, x.n, sges)
	case opRead:
		x.what = mark{kind: markExport, side: 1 - d.side, lane: d.lane, gen: d.gen}
		x.from = d.IntN(d.o.MaxSize - x.n + 1)
		x.there = x.from
	case opReadBack:
		w := d.earlier(p, opKind.writes)
		at := d.part(x, w)
		x.there = w.there + at
	case opSendRead, opWriteRead:
		r := d.earlier(p, opKind.reads)
		at := d.part(x, r)
		x.area = areaSink
		x.local = d.cut(r.local[0].off+at, x.n, d.sges())
		x.flags |= verbs.SendFence
	}
	switch {
	case x.kind.reads():
		x.area = areaSink
		x.local = d.place(p, areaSink, x.n, 1)
		if x.n == 0 {
			x.local = []piece{{}}
		}
	case x.kind.writes() && x.n > 0:
		x.there = d.place(p, areaTarget, x.n, 1)[0].off
	case x.kind.sends():
		room := x.n
		if d.IntN(2) == 0 {
			room += d.IntN(maxSpare + 1)
		}
		x.recv = d.place(p, areaInbox, room, d.sges())
	}
}

// part makes x move a part of what whole has moved, and returns where it begins.
func (d *draws) part(x, whole *op) int {
	d.left += x.n
	at := d.IntN(whole.n)
	x.n = min(1+d.IntN(whole.n-at), d.left)
	d.left -= x.n
	x.what, x.from = whole.what, whole.from+at
	return at
}

func (d *draws) sges() int { return max(1, d.IntN(2*maxSGEs)-maxSGEs+1) }

// place finds room in a slot for n octets in up to sges pieces, with gaps between them.
// The pieces lie in the slot in some order.
func (d *draws) place(p *round, area, n, sges int) []piece {
	list := d.cut(0, n, sges)
	for _, i := range d.Perm(len(list)) {
		p.used[area] += d.IntN(maxGap + 1)
		list[i].off = p.used[area]
		p.used[area] += list[i].n
	}
	return list
}

// cut cuts n octets from off on into up to k pieces.
func (d *draws) cut(off, n, k int) (list []piece) {
	for n > 0 {
		m := n
		if k > 1 && n > 1 {
			m = 1 + d.IntN(n-1)
		}
		list = append(list, piece{off, m})
		off, n, k = off+m, n-m, k-1
	}
	return list
}

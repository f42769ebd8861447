package ddp

// SGE names local memory: Len octets from Off in region STag. Len may be 0, then
// the rest is not looked at.
type SGE struct {
	STag STag
	Off  uint64 // octets from the start of the region
	Len  uint32
}

// Cursor walks through the memory of a scatter/gather list in order. Every
// piece is checked when it is taken, so that a region deregistered on the way
// is noticed and not touched. A Cursor belongs to one goroutine at a time and
// keeps its scratch space from list to list: walking does not allocate.
type Cursor struct {
	table *Table
	pd    PD
	sgl   []SGE
	size  uint64 // octets of the whole list
	used  uint32 // octets taken of sgl[0]
	last  Lease  // of the last piece that was taken alone
	one   [1][]byte
	held  []Region // what was taken together
	parts [][]byte // of the same
}

// Reset begins a new list for protection domain pd. It keeps sgl until the
// following Reset.
func (c *Cursor) Reset(t *Table, pd PD, sgl []SGE) {
	c.table, c.pd, c.sgl, c.used, c.size = t, pd, sgl, 0, 0
	for i := range sgl {
		c.size += uint64(sgl[i].Len)
	}
}

// Size returns the octets of the whole list.
func (c *Cursor) Size() uint64 { return c.size }

// Check looks at the whole list with the eyes of Take, without moving.
func (c *Cursor) Check(need Access) error {
	for i := range c.sgl {
		e := &c.sgl[i]
		if e.Len == 0 {
			continue
		}
		r := c.last.find(c.table, e.STag)
		if kind := r.look(e.STag, c.pd, e.Off, uint64(e.Len), need); kind != 0 {
			return &Fault{kind, e.STag}
		}
	}
	return nil
}

// Take returns the next n octets as pieces that stay usable until the next Take or
// Release. In between the Cursor has a [Lease]. Take does all checks before it returns
// anything; an error is a *[Fault] and leaves nothing held. To take more than the list
// holds is misuse and panics.
func (c *Cursor) Take(n int, need Access) ([][]byte, error) {
	if len(c.held) > 0 {
		c.drop()
	}
	if n <= 0 {
		return nil, nil
	}
	if len(c.sgl) == 0 || n > int(c.sgl[0].Len-c.used) {
		return c.gather(n, need)
	}
	e := &c.sgl[0]
	mem, err := c.last.local(c.table, e.STag, c.pd, e.Off+uint64(c.used), uint64(n), need)
	if err != nil {
		return nil, err
	}
	c.pass(n)
	c.one[0] = mem
	return c.one[:], nil
}

// gather is Take for octets of several elements.
func (c *Cursor) gather(n int, need Access) ([][]byte, error) {
	for n > 0 {
		if len(c.sgl) == 0 {
			panic("ddp: more taken than the scatter/gather list holds")
		}
		e := &c.sgl[0]
		k := min(n, int(e.Len-c.used))
		if k > 0 {
			g, err := c.table.Local(e.STag, c.pd, e.Off+uint64(c.used), uint64(k), need)
			if err != nil {
				c.Release()
				return nil, err
			}
			c.held = append(c.held, g)
			c.parts = append(c.parts, g.Bytes())
			n -= k
		}
		c.pass(k)
	}
	return c.parts, nil
}

// pass moves on by n octets of the first element.
func (c *Cursor) pass(n int) {
	if c.used += uint32(n); c.used == c.sgl[0].Len {
		c.sgl, c.used = c.sgl[1:], 0
	}
}

// Release ends the use of what Take returned last, and the Lease.
func (c *Cursor) Release() {
	c.last.End()
	c.one[0] = nil
	if len(c.held) > 0 {
		c.drop()
	}
}

// drop ends the use of what gather returned.
func (c *Cursor) drop() {
	for i := range c.held {
		c.held[i].Release()
	}
	clear(c.parts)
	c.held, c.parts = c.held[:0], c.parts[:0]
}

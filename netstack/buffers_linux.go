//go:build !netstack_portable

package netstack

import "sync"

// buffers hands out the memory of rings, a bounded number, so that idle connections cost none.
type buffers struct {
	mu     sync.Mutex
	spare  [][]byte
	made   int
	most   int
	hungry []*Conn // found none, to be told
}

// get returns memory for a ring of c, or nil; then c gets an event when there may be some.
func (b *buffers) get(c *Conn) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.spare); n > 0 {
		buf := b.spare[n-1]
		b.spare = b.spare[:n-1]
		return buf
	}
	if b.made < b.most {
		b.made++
		return make([]byte, ringSize)
	}
	b.hungry = append(b.hungry, c)
	return nil
}

func (b *buffers) put(buf []byte) {
	b.mu.Lock()
	b.spare = append(b.spare, buf)
	hungry := b.hungry
	b.hungry = nil
	b.mu.Unlock()
	for _, c := range hungry {
		c.st.ready.push(Event{Conn: c})
	}
}

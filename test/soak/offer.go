package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/softrdma/softrdma/verbs"
)

// The private data of Request and Reply: who calls, what memory the other end may use,
// and filling of random length.
const (
	offerMagic = 0x536f616b
	offerHead  = 4 + 2 + 4 + 2*verbs.RemoteBufSize
	offerMost  = 250
)

// offer is what this end says in its Request or Reply.
func (g *generation) offer() []byte {
	b := binary.BigEndian.AppendUint32(nil, offerMagic)
	b = binary.BigEndian.AppendUint16(b, uint16(g.num))
	b = binary.BigEndian.AppendUint32(b, g.plan.gen)
	for _, a := range []int{areaTarget, areaExport} {
		b, _ = g.memory.mr[a].Remote().AppendBinary(b) // has no error
	}
	return append(b, g.filling(g.side)...)
}

// filling is the rest of an end's private data.
func (g *generation) filling(side int) []byte {
	r := rand.New(rand.NewPCG(g.o.Seed, uint64(side)<<63|uint64(g.num)<<32|uint64(g.plan.gen)))
	b := make([]byte, r.IntN(offerMost-offerHead+1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// callOf returns which generation of the lane private data are for.
func callOf(b []byte, lane int) (uint32, error) {
	if len(b) < offerHead || binary.BigEndian.Uint32(b) != offerMagic {
		return 0, fmt.Errorf("private data are not ours: % x", b)
	}
	if n := int(binary.BigEndian.Uint16(b[4:])); lane >= 0 && n != lane {
		return 0, fmt.Errorf("private data of lane %d on lane %d", n, lane)
	}
	return binary.BigEndian.Uint32(b[6:]), nil
}

// accepted takes the private data of the peer.
func (g *generation) accepted(b []byte) error {
	num, err := callOf(b, g.num)
	switch {
	case err != nil:
		return err
	case num != g.plan.gen:
		return fmt.Errorf("private data of generation %d", num)
	case string(b[offerHead:]) != string(g.filling(1-g.side)):
		return fmt.Errorf("the private data are not what was sent: % x", b)
	}
	for i, a := range []int{areaTarget, areaExport} {
		g.peer[a], err = verbs.ParseRemoteBuf(b[10+i*verbs.RemoteBufSize:])
		if err != nil {
			return err
		}
		if want := g.memory.len(a); int(g.peer[a].Len) != want {
			return fmt.Errorf("the peer offers a %s of %d octets, not %d", areaNames[a], g.peer[a].Len, want)
		}
	}
	return nil
}

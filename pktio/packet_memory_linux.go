package pktio

// Rings tells of the receive rings, that of frames up to the MTU and that of longer ones if there is one, how many
// frames each has room for, how many octets a frame may take there, header included, and how many all of it takes. The
// kernel has allocated them, in pieces of up to ringBlock octets that it maps page by page: all of it is there as long as
// the port is open, and it is never swapped out.
func (p *Packet) Rings() (rings []RingSize) {
	rings = append(rings, p.rx.short.size())
	if p.rx.long != nil {
		rings = append(rings, p.rx.long.size())
	}
	return rings
}

func (r *packetRing) size() RingSize {
	return RingSize{Frames: r.slots, Slot: r.slot, Octets: r.slots / r.perBlock * r.block}
}

package pktio

// Ring tells how many frames the receive ring has room for, how many octets each may take there, header included, and
// how many all of it takes. The kernel has allocated it, in pieces of up to ringBlock octets that it maps page by
// page: all of it is there as long as the port is open, and it is never swapped out.
func (p *Packet) Ring() (frames, size, octets int) {
	r := &p.rx
	return r.slots, r.slot, r.slots / r.perBlock * r.block
}

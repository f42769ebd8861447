package capture

import (
	"encoding/binary"
	"fmt"

	"github.com/google/gopacket"
)

// DDP is the header of one DDP segment (RFC 5041, Section 4): 14 octets in the
// tagged model, 18 in the untagged one.
//
//	tagged     T L Rsvd DV | RsvdULP(1) | STag(4) | TO(8)
//	untagged   T L Rsvd DV | RsvdULP(5)           | QN(4) | MSN(4) | MO(4)
type DDP struct {
	Contents []byte // the header
	Payload  []byte // what follows it

	Tagged, Last bool
	Rsvd         uint8 // the four reserved bits
	Version      uint8 // DV
	Control      uint8 // first octet of RsvdULP: RDMAP's control octet
	InvSTag      uint32

	STag uint32 // tagged
	TO   uint64

	QN, MSN, MO uint32 // untagged
}

const taggedLen, untaggedLen = 14, 18

func (d *DDP) decode(b []byte) error {
	if len(b) == 0 {
		return fmt.Errorf("ULPDU_Length is 0: %w for a DDP header", errShort)
	}
	*d = DDP{Tagged: b[0]&0x80 != 0, Last: b[0]&0x40 != 0, Rsvd: b[0] >> 2 & 0x0f, Version: b[0] & 3}
	n := untaggedLen
	if d.Tagged {
		n = taggedLen
	}
	if len(b) < n {
		return fmt.Errorf("ULPDU_Length is %d: %w for a DDP header of %d", len(b), errShort, n)
	}
	d.Contents, d.Payload = b[:n], b[n:]
	d.Control = b[1]
	be := binary.BigEndian
	if d.Tagged {
		d.STag, d.TO = be.Uint32(b[2:]), be.Uint64(b[6:])
	} else {
		d.InvSTag, d.QN, d.MSN, d.MO = be.Uint32(b[2:]), be.Uint32(b[6:]), be.Uint32(b[10:]), be.Uint32(b[14:])
	}
	if d.Version != 1 {
		return fmt.Errorf("DDP version is %d", d.Version)
	}
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (d *DDP) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	n := untaggedLen
	if d.Tagged {
		n = taggedLen
	}
	h, err := b.PrependBytes(n)
	if err != nil {
		return err
	}
	h[0] = bit(d.Tagged, 0x80) | bit(d.Last, 0x40) | d.Rsvd&0x0f<<2 | d.Version&3
	h[1] = d.Control
	be := binary.BigEndian
	if d.Tagged {
		be.PutUint32(h[2:], d.STag)
		be.PutUint64(h[6:], d.TO)
		return nil
	}
	be.PutUint32(h[2:], d.InvSTag)
	be.PutUint32(h[6:], d.QN)
	be.PutUint32(h[10:], d.MSN)
	be.PutUint32(h[14:], d.MO)
	return nil
}

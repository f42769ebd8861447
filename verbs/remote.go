package verbs

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Key names a memory region, on this side and to peers: local and remote key
// are one number, on iWARP the STag. Key 0 is never given out.
type Key uint32

func (k Key) String() string { return fmt.Sprintf("0x%08x", uint32(k)) }

// Inc returns k with the next last octet (ibv_inc_rkey): for binds of a memory
// window of type 2 and for fast registrations, whose users choose that octet. An
// octet that was not used lately keeps out who still knows an old key.
func (k Key) Inc() Key { return k&^0xff | (k+1)&0xff }

// next returns the key that follows k in the use of a window or region: want, or
// for 0 the next one.
func (k Key) next(want Key) (Key, error) {
	switch {
	case want == 0:
		return k.Inc(), nil
	case want>>8 != k>>8:
		return 0, invalidf("key %v: only the last octet of %v can be chosen", want, k)
	}
	return want, nil
}

// RemoteBuf names memory of a peer: what the peer must tell before an RDMA Write
// or Read. It is comparable and holds no resources.
type RemoteBuf struct {
	Addr uint64 // address at the peer (tagged offset)
	RKey Key
	Len  uint32 // octets
}

// RemoteBufSize is the size of the wire form of a [RemoteBuf], in octets.
const RemoteBufSize = 16

// Slice returns the n octets of b from octet off on. A range that is not inside
// b gives the zero RemoteBuf, which no work request accepts: b may come from a
// peer, so a range that does not fit is an input, not a reason to panic.
func (b RemoteBuf) Slice(off, n int) RemoteBuf {
	if off < 0 || n < 0 || uint64(off) > uint64(b.Len) || uint64(n) > uint64(b.Len)-uint64(off) ||
		uint64(off) > math.MaxUint64-b.Addr {
		return RemoteBuf{}
	}
	return RemoteBuf{Addr: b.Addr + uint64(off), RKey: b.RKey, Len: uint32(n)}
}

// AppendBinary appends the 16 octets that rping and many other programs send:
// address, key and length, each in network byte order. The error is always nil.
func (b RemoteBuf) AppendBinary(p []byte) ([]byte, error) {
	p = binary.BigEndian.AppendUint64(p, b.Addr)
	p = binary.BigEndian.AppendUint32(p, uint32(b.RKey))
	return binary.BigEndian.AppendUint32(p, b.Len), nil
}

// MarshalBinary returns what AppendBinary appends.
func (b RemoteBuf) MarshalBinary() ([]byte, error) {
	return b.AppendBinary(make([]byte, 0, RemoteBufSize))
}

// UnmarshalBinary reads what AppendBinary wrote. The error, for a wrong length,
// matches syscall.EINVAL.
func (b *RemoteBuf) UnmarshalBinary(p []byte) error {
	if len(p) != RemoteBufSize {
		return invalidf("remote buffer of %d octets, want %d", len(p), RemoteBufSize)
	}
	r, err := ParseRemoteBuf(p)
	if err != nil {
		return err
	}
	*b = r
	return nil
}

// ParseRemoteBuf reads the first 16 octets of p, which may be longer. The error,
// for a shorter one, matches syscall.EINVAL. The values are the peer's word.
func ParseRemoteBuf(p []byte) (RemoteBuf, error) {
	if len(p) < RemoteBufSize {
		return RemoteBuf{}, invalidf("remote buffer of %d octets, want %d", len(p), RemoteBufSize)
	}
	return RemoteBuf{
		Addr: binary.BigEndian.Uint64(p[0:8]),
		RKey: Key(binary.BigEndian.Uint32(p[8:12])),
		Len:  binary.BigEndian.Uint32(p[12:16]),
	}, nil
}

func (b RemoteBuf) String() string {
	return fmt.Sprintf("addr 0x%x rkey %v len %d", b.Addr, b.RKey, b.Len)
}

package rping

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
)

const (
	// Port is where rping listens unless told otherwise.
	Port = 7174
	// DefaultSize, MinSize and MaxSize are rping's, in octets of a ping.
	DefaultSize = 64
	MinSize     = 26
	MaxSize     = 65535

	// infoLen is the length of every Send.
	infoLen = 16

	// The characters after the number go round from 'A' to 'z'.
	firstChar = 'A'
	lastChar  = 'z'
	numChars  = lastChar - firstChar + 1
)

// Text fills b with the text of ping number n: its number, characters that
// start one later each time, and a zero octet at the end.
func Text(b []byte, n int) {
	at := copy(b, "rdma-ping-")
	at += copy(b[at:], strconv.AppendInt(nil, int64(n), 10))
	at += copy(b[at:], ": ")
	c := n % numChars
	for i := at; i < len(b); i++ {
		b[i] = byte(firstChar + c)
		c = (c + 1) % numChars
	}
	b[len(b)-1] = 0
}

// textLen is the number of octets up to and with the first zero of b, all of
// b if there is none.
func textLen(b []byte) int {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return i + 1
	}
	return len(b)
}

// info is what the client's Sends carry: the name of a piece of its memory.
type info struct {
	addr uint64
	key  uint32
	size uint32
}

func parseInfo(b []byte) (info, error) {
	if len(b) != infoLen {
		return info{}, fmt.Errorf("the peer sent %d octets where rping sends %d", len(b), infoLen)
	}
	return info{
		addr: binary.BigEndian.Uint64(b),
		key:  binary.BigEndian.Uint32(b[8:]),
		size: binary.BigEndian.Uint32(b[12:]),
	}, nil
}

func (i info) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, i.addr)
	b = binary.BigEndian.AppendUint32(b, i.key)
	return binary.BigEndian.AppendUint32(b, i.size)
}

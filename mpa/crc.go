package mpa

import "encoding/binary"

// putCRC stores a CRC value, or zero with CRC off, least significant octet
// first: the one little-endian field of the protocol.
func putCRC(b []byte, crc uint32) { binary.LittleEndian.PutUint32(b, crc) }

func getCRC(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

package mpa

import (
	"encoding/binary"
	"hash/crc32"
)

// castagnoli is the polynomial of CRC32c, RFC 5044, Section 4.4. The standard
// library uses the processor's CRC instructions for this very table.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// putCRC stores a CRC value, or zero with CRC off, least significant octet
// first: the one little-endian field of the protocol.
func putCRC(b []byte, crc uint32) { binary.LittleEndian.PutUint32(b, crc) }

func getCRC(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

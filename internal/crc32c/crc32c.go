// Package crc32c computes CRC32c, the CRC with the Castagnoli polynomial of RFC
// 5044, Section 4.4. hash/crc32 is at its best from 4 KiB on, and few FPDUs are
// that long; this package, on amd64, is from 1 KiB on. Other processors are left
// to hash/crc32.
package crc32c

import "hash/crc32"

// poly is the polynomial without x^32, bit-reflected.
const poly = crc32.Castagnoli

var table = crc32.MakeTable(poly)

// method is a way to compute the CRC.
type method uint8

const (
	methodStd    method = iota // hash/crc32
	methodSSE                  // crc32q, and pclmulqdq on 128 bits
	methodAVX512               // crc32q, and vpclmulqdq on 512 bits
)

// Update returns the CRC of b behind octets with the CRC crc, 0 if there are
// none. It borrows b.
func Update(crc uint32, b []byte) uint32 { return best.update(crc, b) }

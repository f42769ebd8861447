//go:build !amd64

package crc32c

import "hash/crc32"

const best = methodStd

func (m method) available() bool { return m == methodStd }

func (m method) update(crc uint32, b []byte) uint32 { return crc32.Update(crc, table, b) }

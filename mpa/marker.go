package mpa

// Markers, RFC 5044, Section 4.3: an octet of FPDU mode whose position in its
// direction is a multiple of 512 begins one, so that they lie 512 octets apart
// from first octet to first octet. The first stands before the first FPDU.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+-------------------------------+
//	|        Reserved (zero)        |            FPDUPTR            |
//	+-------------------------------+-------------------------------+
//
// FPDUPTR counts the octets of the stream from ULPDU_Length of the FPDU around
// the marker to the marker. One that stands between two FPDUs has FPDUPTR 0 and
// is the first thing of the latter, for the CRC too. As FPDUs and markers are
// multiples of four octets, none is ever cut by a marker's neighbour: a marker
// cannot fall into the length field or into the CRC.
const (
	markerGap = 512
	markerLen = 4
)

// toMarker returns how many octets follow stream position pos until a marker is
// due, 0 if one is due there. Positions may wrap: 512 divides 2^64.
func toMarker(pos uint64) int { return int(-pos % markerGap) }

// markedSize returns the octets an FPDU with n ULPDU octets takes in a stream
// with markers, from position pos on.
func markedSize(pos uint64, n int) int {
	const between = markerGap - markerLen
	size := FPDUSize(n)
	if over := size - toMarker(pos); over > 0 {
		size += (over + between - 1) / between * markerLen
	}
	return size
}

// markerFor is the value of a marker that stands at octets behind the begin of
// an FPDU whose ULPDU_Length stands head octets behind it. For the longest
// ULPDUs of a peer the distance does not fit in 16 bits; it is cut to them.
func markerFor(at, head int) uint32 { return uint32(uint16(max(0, at-head))) }

// markedMULPDUFor is mulpduFor in a stream with markers.
func markedMULPDUFor(mss int) int {
	marks := (mss + markerGap - 1) / markerGap
	return max(MinMULPDU, min(MaxULPDU, mss-(lengthLen+crcLen+markerLen*marks+mss%4)))
}

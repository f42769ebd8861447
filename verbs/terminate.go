package verbs

import "fmt"

// TerminateError reports that a stream ended with a Terminate message (RFC
// 5040, Section 4.8). The three numbers together say what went wrong; Error
// prints their name in the RFCs.
type TerminateError struct {
	Remote bool  // received from the peer; else sent by this side
	Layer  uint8 // 0 RDMA, 1 DDP, 2 LLP (MPA and below)
	Type   uint8 // error type within the layer
	Code   uint8 // error code within the type
}

// Value returns the numbers in one, as in 0x1202: the form that WC.VendorErr has.
func (e *TerminateError) Value() uint16 {
	return uint16(e.Layer&15)<<12 | uint16(e.Type&15)<<8 | uint16(e.Code)
}

func (e *TerminateError) Error() string {
	by := "stream terminated by this side"
	if e.Remote {
		by = "stream terminated by the peer"
	}
	s := fmt.Sprintf("%s: %s (0x%04x)", by, e.name(), e.Value())
	if e.Value() == 0x1202 {
		s += ": a Send met no posted receive; iWARP has no retry, post receives before the peer may send"
	}
	return s
}

// terminateTypes and terminateCodes hold the IANA rddp registry (RFC 5040,
// Section 4.8; RFC 5041, Section 7.2; RFC 5044, Section 8; RFC 6581).
var terminateTypes = map[uint16]string{
	0x00: "RDMA local catastrophic error",
	0x01: "RDMA remote protection error",
	0x02: "RDMA remote operation error",
	0x10: "DDP local catastrophic error",
	0x11: "DDP tagged buffer error",
	0x12: "DDP untagged buffer error",
	0x13: "DDP error of the lower layer",
	0x20: "MPA error",
}

var terminateCodes = map[uint16]string{
	0x0100: "invalid STag",
	0x0101: "base or bounds violation",
	0x0102: "access rights violation",
	0x0103: "STag not associated with the RDMAP stream",
	0x0104: "TO wrap",
	0x0109: "STag cannot be invalidated",
	0x01ff: "unspecified",
	0x0205: "invalid RDMAP version",
	0x0206: "unexpected opcode",
	0x0207: "catastrophic error, localized to the RDMAP stream",
	0x0208: "catastrophic error, global",
	0x0209: "STag cannot be invalidated",
	0x02ff: "unspecified",
	0x1100: "invalid STag",
	0x1101: "base or bounds violation",
	0x1102: "STag not associated with the DDP stream",
	0x1103: "TO wrap",
	0x1104: "invalid DDP version",
	0x1201: "invalid QN",
	0x1202: "invalid MSN, no buffer available",
	0x1203: "invalid MSN, MSN range is not valid",
	0x1204: "invalid MO",
	0x1205: "DDP message too long for the available buffer",
	0x1206: "invalid DDP version",
	0x2001: "TCP connection closed, terminated or lost",
	0x2002: "CRC mismatch",
	0x2003: "marker and ULPDU length disagree",
	0x2004: "invalid MPA Request or Reply frame",
	0x2005: "local catastrophic error",
	0x2006: "insufficient IRD resources",
	0x2007: "no matching RTR option",
}

func (e *TerminateError) name() string {
	t, ok := terminateTypes[e.Value()>>8]
	if !ok {
		return "unknown error"
	}
	if c, ok := terminateCodes[e.Value()]; ok {
		return t + ": " + c
	}
	return t
}

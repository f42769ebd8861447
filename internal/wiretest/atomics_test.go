package wiretest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAtomicVectors(t *testing.T) {
	for _, v := range AtomicFPDUs() {
		t.Run("RDM-72 RDM-65 "+v.Name+" is sound", func(t *testing.T) {
			require.Equal(t, v.Octets, Frame(v.ULPDU(), true))
			require.Equal(t, v.Opcode, v.ULPDU()[1]&0x0f)
		})
	}
}

func TestAtomicBuilders(t *testing.T) {
	byName := map[string][]byte{}
	for _, v := range append(FPDUs(), AtomicFPDUs()...) {
		byName[v.Name] = v.Octets
	}
	const all = ^uint64(0)
	base := Atomic{STag: RegionAll, TO: HostileBase}
	with := func(f func(a *Atomic)) Atomic {
		a := base
		f(&a)
		return a
	}
	for name, got := range map[string][]byte{
		"IMM":    Immediate(false, 1, 0, 0, 0, 0, 0xde, 0xad, 0xbe, 0xef),
		"IMM-SE": Immediate(true, 2, 0, 0, 0, 0, 0xde, 0xad, 0xbe, 0xef),
		"IMM-32": Immediate(false, 1, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0),
		"ATOMIC-FETCHADD": with(func(a *Atomic) {
			a.Ident, a.Val, a.CompareMask = 7, 1, all
		}).Segment(1),
		"ATOMIC-CMPSWAP": with(func(a *Atomic) {
			a.Code, a.Ident, a.TO = AtomicCompareSwap, 8, HostileBase+8
			a.Val, a.ValMask, a.Compare, a.CompareMask = 0x1122334455667788, all, 0x41, all
		}).Segment(2),
		"ATOMIC-FETCHADD-FIELDS": with(func(a *Atomic) {
			a.Code, a.Ident, a.TO = AtomicFetchAdd, 0xffffffff, HostileBase+16
			a.Val, a.ValMask, a.CompareMask = 0x1ffffffff, 0x8000000080000000, all
		}).Segment(1),
		"ATOMIC-SWAP": with(func(a *Atomic) {
			a.Code, a.TO, a.Val, a.ValMask = AtomicCompareSwap, HostileBase+8, 0x0102030405060708, all
		}).Segment(3),
		"ATOMIC-RESP":   AtomicResponse(1, 7, 41),
		"ATOMIC-RESP-2": AtomicResponse(2, 0xffffffff, 0x0102030405060708),
	} {
		require.Equal(t, byName[name], Frame(got, true), name)
	}
}

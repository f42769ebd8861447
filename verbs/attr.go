package verbs

import (
	"fmt"
	"strings"
)

// NodeType is the kind of a device (ibv_node_type).
type NodeType uint8

const (
	NodeCA   NodeType = 1 // InfiniBand or RoCE
	NodeRNIC NodeType = 4 // iWARP
)

func (n NodeType) String() string {
	switch n {
	case NodeCA:
		return "CA"
	case NodeRNIC:
		return "RNIC"
	}
	return fmt.Sprintf("NODE(%d)", uint8(n))
}

// Transport is the wire protocol of a device (ibv_transport_type).
type Transport uint8

const (
	TransportIB    Transport = 0
	TransportIWARP Transport = 1
)

func (t Transport) String() string {
	switch t {
	case TransportIB:
		return "InfiniBand"
	case TransportIWARP:
		return "iWARP"
	}
	return fmt.Sprintf("TRANSPORT(%d)", uint8(t))
}

// AtomicCap says how atomic remote atomics are (ibv_atomic_cap).
type AtomicCap uint8

const (
	AtomicNone AtomicCap = 0 // no atomics
	AtomicHCA  AtomicCap = 1 // with respect to other atomics of this device
	AtomicGlob AtomicCap = 2 // with respect to everything
)

func (a AtomicCap) String() string {
	switch a {
	case AtomicNone:
		return "NONE"
	case AtomicHCA:
		return "HCA"
	case AtomicGlob:
		return "GLOB"
	}
	return fmt.Sprintf("ATOMIC(%d)", uint8(a))
}

// DeviceAttr describes a device and its limits, as ibv_device_attr. Asking for
// more than a limit of one object gives syscall.EINVAL, making more objects than
// there may be gives syscall.ENOMEM.
type DeviceAttr struct {
	Name      string // "pipe0", "eth1"
	NodeType  NodeType
	Transport Transport
	AtomicCap AtomicCap
	Immediate bool // RDMA Write with Immediate
	MTU       int  // of the link, in octets; 0: unknown

	// In a Provider 0 in these means the default in brackets.
	MaxQP               int   // queue pairs [65536]
	MaxQPWR             int   // work requests in a queue [32768]
	MaxSGE              int   // SGEs of a Send, Write or receive, at least 4 [16]
	MaxSGERd            int   // SGEs of a read [1]
	MaxInline           int   // octets of inline data [1024]
	MaxCQ               int   // completion queues [65536]
	MaxCQE              int   // entries of a completion queue [4194304]
	MaxMR               int   // memory regions [16777216]
	MaxMRSize           int64 // octets of a memory region [2^40]
	MaxPD               int   // protection domains [65536]
	MaxQPRdAtom         int   // reads and atomics a peer may have in flight on a queue pair, IRD [128]
	MaxQPInitRdAtom     int   // reads and atomics a queue pair may have in flight, ORD [128]
	MaxMW               int   // memory windows; 0: none
	MaxSRQ              int   // shared receive queues; 0: none
	MaxSRQWR, MaxSRQSGE int   // receives of one, and SGEs of a receive; as for a queue pair where there are any [MaxQPWR, MaxSGE]

	// What all objects of the device may take together. Beyond it making one more
	// gives syscall.ENOMEM, and the others go on.
	MaxMRBytes    int64 // octets in memory regions [2^46, more than a host has]
	MaxQueueBytes int64 // octets in work and completion queues [2^32, which serves 65536 queue pairs of default size]
}

// withDefaults fills the limits that were left 0.
func (a DeviceAttr) withDefaults() DeviceAttr {
	for _, l := range []struct {
		v   *int
		def int
	}{
		{&a.MaxQP, 1 << 16}, {&a.MaxQPWR, 1 << 15}, {&a.MaxSGE, 16}, {&a.MaxSGERd, 1}, {&a.MaxInline, 1024},
		{&a.MaxCQ, 1 << 16}, {&a.MaxCQE, 1 << 22}, {&a.MaxMR, 1 << 24}, {&a.MaxPD, 1 << 16},
		{&a.MaxQPRdAtom, 128}, {&a.MaxQPInitRdAtom, 128},
	} {
		if *l.v == 0 {
			*l.v = l.def
		}
	}
	for _, l := range []struct {
		v   *int64
		def int64
	}{{&a.MaxMRSize, 1 << 40}, {&a.MaxMRBytes, 1 << 46}, {&a.MaxQueueBytes, 1 << 32}} {
		if *l.v == 0 {
			*l.v = l.def
		}
	}
	if a.MaxSRQ > 0 {
		if a.MaxSRQWR == 0 {
			a.MaxSRQWR = a.MaxQPWR
		}
		if a.MaxSRQSGE == 0 {
			a.MaxSRQSGE = a.MaxSGE
		}
	}
	return a
}

// String lists the attributes, one a line, in the words of ibv_devinfo.
func (a DeviceAttr) String() string {
	var b strings.Builder
	for _, l := range []struct {
		name string
		v    any
	}{
		{"hca_id", a.Name}, {"transport", a.Transport}, {"node_type", a.NodeType}, {"mtu", a.MTU},
		{"max_qp", a.MaxQP}, {"max_qp_wr", a.MaxQPWR}, {"max_sge", a.MaxSGE}, {"max_sge_rd", a.MaxSGERd},
		{"max_inline_data", a.MaxInline}, {"max_cq", a.MaxCQ}, {"max_cqe", a.MaxCQE}, {"max_mr", a.MaxMR},
		{"max_mr_size", a.MaxMRSize}, {"max_pd", a.MaxPD}, {"max_qp_rd_atom", a.MaxQPRdAtom},
		{"max_qp_init_rd_atom", a.MaxQPInitRdAtom}, {"atomic_cap", a.AtomicCap}, {"write_with_imm", a.Immediate}, {"max_mw", a.MaxMW},
		{"max_srq", a.MaxSRQ}, {"max_srq_wr", a.MaxSRQWR}, {"max_srq_sge", a.MaxSRQSGE},
		{"max_mr_bytes", a.MaxMRBytes}, {"max_queue_bytes", a.MaxQueueBytes},
	} {
		fmt.Fprintf(&b, "%s: %v\n", l.name, l.v)
	}
	return b.String()
}

package verbs

import (
	"context"
	"net/netip"

	"github.com/softrdma/softrdma/internal/ring"
)

// Provider is the seam between this package and a transport: a struct of
// functions that the transport fills in and hands to [NewDevice]. Applications
// do not use it. Unless said otherwise a function may be called by any
// goroutine, must not block for long, and no field may change after NewDevice.
//
// Data never passes through it. Work requests and completions travel in the
// rings of [QPSetup]; the one call that a post makes is [QPOps.Doorbell].
type Provider struct {
	// Attr describes the device. Zero limits of things every device has get this
	// package's defaults; see DeviceAttr.
	Attr DeviceAttr
	// Info says in one line what the device runs on and why; for people.
	Info string
	// RegMR makes mem, which it keeps until DeregMR, reachable under the key it
	// returns, for queue pairs of the protection domain pd. Addr is what peers
	// use for the first octet: 0 with AccessZeroBased, else the address of mem.
	// Access was checked. ErrNotShareable where the provider cannot reach mem.
	RegMR func(pd uint32, mem []byte, a Access) (key Key, addr uint64, err error)
	// DeregMR undoes RegMR. After it returned nil nothing touches the memory any
	// more. On an error nothing has changed; with memory windows bound to it that is
	// a *BusyError, whose Users this package fills in if they are nil.
	DeregMR func(Key) error
	// AllocFastMR is RegMR of a region that is invalid until an OpRegMR; a is 0.
	// DeregMR undoes it too, by any of the keys it has had. May be nil.
	AllocFastMR func(pd uint32, mem []byte, a Access) (key Key, addr uint64, err error)
	// AllocMW makes a memory window, and DeallocMW ends it as DeregMR does, by any of
	// the keys it has had. May be nil where Attr.MaxMW is 0.
	AllocMW   func(pd uint32, t MWType) (Key, error)
	DeallocMW func(Key) error
	// KeyValid reports whether a key of AllocFastMR, AllocMW, OpRegMR or OpBindMW can
	// be used at this moment. Nil only where AllocFastMR and AllocMW are.
	KeyValid func(Key) bool
	// CreateQP makes a queue pair on the rings of the setup.
	CreateQP func(QPSetup) (QPOps, error)
	// CreateSRQ makes a shared receive queue on the ring of the setup. May be nil:
	// then there are none.
	CreateSRQ func(SRQSetup) (SRQOps, error)
	// Dial connects the queue pair qp and returns once it is in QPSRTS, or has
	// failed. It honours ctx.
	Dial func(ctx context.Context, qp uint32, p ConnParams) (ConnInfo, error)
	// Listen opens a listener; port 0 picks one.
	Listen func(ctx context.Context, addr netip.AddrPort, backlog int, p ListenParams) (ListenerOps, error)
	// Events delivers asynchronous events. The provider bounds the channel and
	// drops or merges what does not fit. It may close it when the device dies.
	Events <-chan AsyncEvent
	// EventTaken, if not nil, is told of each event that was taken from Events,
	// before the application sees it.
	EventTaken func(AsyncEvent)
	// Stats returns what the provider counts; this package adds the objects. May
	// be nil.
	Stats func() Stats
	// Memory describes the memory that the provider has allocated for its own use,
	// as of now; it may take milliseconds. May be nil.
	Memory func() []Memory
	// Close ends the device. All queue pairs and regions are gone by then; open
	// listeners and dials are the provider's to end. Called once.
	Close func() error

	// Progress, if not nil, does the transport's pending work in the caller's
	// goroutine, without blocking; it returns at once where another goroutine is
	// at it. CQ.Poll and CQ.Wait call it when they find no completion. It may be
	// called while Close runs and after.
	Progress func()
	// Parked, if not nil, is called when CQ.Wait goes to sleep: from now on the
	// transport has to do its work itself.
	Parked func()
	// Leaked, if not nil, is told of an object that became unreachable without
	// Close. It runs on a goroutine of the runtime and must not block.
	Leaked func(Leak)
	// TraceLeaks adds the stack of its creation to every Leak, at some cost.
	TraceLeaks bool
}

// Memory describes a piece of memory that a provider has allocated for its own
// use, such as packet buffers; for people.
type Memory struct {
	Purpose  string // "transmit buffers"
	Count    int    // buffers
	Size     int    // octets of each
	Octets   int    // of all, with what lies between them
	Pages    string // "huge", "transparent huge", "plain" or "Go's heap"
	PageSize int    // octets
	Locked   bool   // never swapped out
	Resident int    // octets that take memory at this moment; -1: unknown
	InHuge   int    // octets of those in huge pages
	Text     string // all from Octets on, in one line
	Why      string // why it is not better, and what would help; empty if nothing would
}

// QPSetup is what a provider gets to make a queue pair. Slots of SQ and RQ are
// released (ring.Queue.Release) before the completion that frees them is pushed,
// so that who polled it can post again.
type QPSetup struct {
	Num uint32 // unique in the device, 24 bits
	PD  uint32 // protection domain
	// Config after defaults and limits; the caps are what the rings really hold.
	// Its SendCQ, RecvCQ and SRQ are nil: use the fields below.
	Config QPConfig
	// SQ and RQ hold WQEs; the provider is the consumer. Where the queue pair
	// signals all, every WQE carries the Signaled flag.
	SQ, RQ *ring.Queue
	// SRQ is the number of the shared receive queue that takes the place of RQ,
	// which is then nil; 0: none.
	SRQ uint32
	// SendCQ and RecvCQ may be the same. When Push returns false the completion
	// queue overran: the provider raises EventCQErr with its number and ends all
	// queue pairs that use it.
	SendCQ, RecvCQ       *ring.CQ
	SendCQNum, RecvCQNum uint32
	// MayOverrun says that one of them is smaller than all work queues that
	// complete into it together. That is allowed, and worth a warning.
	MayOverrun bool
}

// SRQSetup is all that a provider needs to make a shared receive queue.
type SRQSetup struct {
	Num    uint32    // unique in the device
	PD     uint32    // whose keys the receives use, whatever queue pair takes them
	Config SRQConfig // after defaults and limits; Limit is armed from the start
	// RQ holds WQEs. The provider is the consumer: it copies a record and releases
	// it when the first octet of a message arrives, in the order of the ring.
	RQ *ring.Queue
}

// SRQOps are a provider's functions for one shared receive queue.
type SRQOps struct {
	// Modify arms the limit anew; 0 disarms it.
	Modify func(limit int) error
	// Close frees the queue, which no queue pair uses any more. Called once.
	Close func() error
}

// QPOps are a provider's functions for one queue pair. A post that is just ending
// may call Doorbell and Posted while Close runs and shortly after; State and Err
// are called at any time, also long after.
type QPOps struct {
	// Doorbell tells that the send queue has new records. It does not block. In
	// QPSErr it flushes them, and also those of the receive queue.
	Doorbell func()
	// Posted tells that the receive queue has new records; in QPSErr and QPSSQE it
	// sees to their flush. May be nil: then Doorbell is rung in those two states.
	Posted func()
	// State returns the current state. It is called once a post. A provider that
	// moves to QPSErr stores the state first, then flushes up to the tails.
	State func() QPState
	// Done is closed when the connection is over and everything posted so far was
	// flushed.
	Done <-chan struct{}
	// SharedRecvs returns what QP.SharedRecvs does. May be nil.
	SharedRecvs func() (held int, taken uint64)
	// Err returns why the connection is over; nil before, and after a close in
	// good order by either side.
	Err func() error
	// Close aborts the connection if it is not over, flushes, and returns when
	// nothing touches the rings and the memory of pending requests any more.
	// Called once.
	Close func() error
	// Modify moves the queue pair to QPSSQD (disconnect in good order; returns
	// when the connection is over), QPSSQE (send a Terminate) or QPSErr (abort;
	// returns when the memory of pending requests is no longer touched), or to
	// another state that CanBecome allows. Errors match errors.ErrUnsupported for
	// what the provider leaves to its connection manager. May be nil.
	Modify func(ctx context.Context, to QPState) error
}

// ConnParams are the parameters of one side of a connection.
type ConnParams struct {
	Remote      netip.AddrPort // Dial only
	Local       netip.Addr     // Dial only; zero: the provider chooses
	PrivateData []byte         // borrowed for the call
	IRD, ORD    int            // reads and atomics in flight, towards us and from us; -1: device maximum
}

// ListenParams are the parameters of a listener.
type ListenParams struct{}

// ConnInfo describes an established connection.
type ConnInfo struct {
	Local, Remote netip.AddrPort
	PrivateData   []byte // the peer's; the caller's own copy
	IRD, ORD      int    // as agreed
}

// ListenerOps are a provider's functions for one listener.
type ListenerOps struct {
	Addr   netip.AddrPort // with the port that was picked
	Accept func(ctx context.Context) (RequestOps, error)
	Close  func() error // wakes Accept; rejects what waits
}

// RequestOps are a provider's functions for one connection request. Exactly one
// of Accept and Reject is called, once.
type RequestOps struct {
	Local, Remote netip.AddrPort
	PrivateData   []byte // the caller's own copy
	IRD, ORD      int    // the peer's, seen from us: reads it allows us are ORD; -1: unknown
	Accept        func(ctx context.Context, qp uint32, p ConnParams) (ConnInfo, error)
	Reject        func(ctx context.Context, private []byte) error
}

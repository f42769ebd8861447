package mpa

// ByteStream is what this package needs from TCP. The calls never block.
//
// Peek, Discard and Abort are used by the receive half of a [Conn], Room,
// Writev, Stage, Commit, MSS and CloseWrite by its send half; the two may run at the same
// time.
type ByteStream interface {
	// Peek returns the octets that have arrived and were not yet discarded, in
	// order and in one or more pieces of any size. A piece stays valid until
	// Discard has passed it, the slice of pieces until the next call of Peek or
	// Discard. Without octets and with the stream intact it returns nil, nil.
	//
	// Once the stream has ended the error says how: io.EOF after the peer's
	// FIN, an error matching syscall.ECONNRESET after a reset, and so on. It
	// may come together with the octets that precede the end, and has to, for
	// an FPDU cut short to be noticed: nothing else would tell that the rest
	// will not follow.
	Peek() ([][]byte, error)

	// Discard drops the first n octets of what Peek returned.
	Discard(n int)

	// Room returns how many octets Writev takes now. Only Writev makes it
	// smaller.
	Room() int

	// Writev appends the parts, in order, to what is sent: all of it or
	// nothing. It borrows the parts for the call. It fails if they do not fit
	// or the stream is dead.
	Writev(parts [][]byte) error

	// Stage lends memory in which to put octets together that Commit then sends
	// without a further copy, or nil if the stream has none.
	Stage() []byte

	// Commit sends the first n octets of what Stage lent, as Writev would, and
	// ends the loan. With n 0 it does only that.
	Commit(n int) error

	// MSS returns the effective maximum segment size in octets, after TCP
	// options. It may change during the life of the stream.
	MSS() int

	// CloseWrite sends FIN after what was written.
	CloseWrite() error

	// Abort resets the stream. It may be called more than once.
	Abort()
}

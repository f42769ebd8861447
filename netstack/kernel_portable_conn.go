//go:build !linux || netstack_portable

package netstack

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
)

// kernelConn is a Conn over net.Conn: a goroutine reads into a ring, another writes from one.
type kernelConn struct {
	c *Conn
	k *kernelStack

	fresh atomic.Bool // something happened since the last look

	// Receive half.
	up  bool
	err error

	cancel func() // ends the attempt to connect

	mu      sync.Mutex // guards what follows
	changed *sync.Cond
	conn    *net.TCPConn
	dialErr error
	in, tx  ring
	inErr   error // how the stream ended, after what is in the ring
	txFull  bool  // write found the ring full
	fin     bool  // FIN after what is in the ring
	drain   bool  // released: close after what is in the ring
	over    bool
	mssNow  int
}

func newKernelConn(c *Conn, k *kernelStack) *kernelConn {
	kc := &kernelConn{c: c, k: k}
	kc.changed = sync.NewCond(&kc.mu)
	c.out.pool = &k.st.spare
	c.out.tcp = sender{write: kc.write, finish: kc.finish, release: func() { kc.release(false) }}
	return kc
}

func (kc *kernelConn) happened() bool { return kc.fresh.Load() }

// tell makes an event.
func (kc *kernelConn) tell() {
	kc.fresh.Store(true)
	kc.c.st.ready.push(Event{Conn: kc.c})
}

// dialled takes the outcome of an attempt to connect.
func (kc *kernelConn) dialled(conn net.Conn, err error) {
	kc.mu.Lock()
	over := kc.over
	if err != nil {
		kc.dialErr = cause(err)
	}
	kc.mu.Unlock()
	switch {
	case err == nil && over:
		reset(conn.(*net.TCPConn))
	case err == nil:
		kc.start(conn.(*net.TCPConn))
	}
	kc.tell()
}

// start runs the two goroutines of an established connection.
func (kc *kernelConn) start(conn *net.TCPConn) {
	_ = conn.SetNoDelay(true)
	kc.k.conf.Keepalive.set(conn)
	if n := kc.k.conf.SendBuffer; n > 0 {
		_ = conn.SetWriteBuffer(n)
	}
	if n := kc.k.conf.RecvBuffer; n > 0 {
		_ = conn.SetReadBuffer(n)
	}
	kc.k.begin(kc)
	kc.k.begin(kc)
	kc.mu.Lock()
	if kc.over {
		kc.mu.Unlock()
		reset(conn)
		kc.k.ended(kc)
		kc.k.ended(kc)
		return
	}
	defer kc.mu.Unlock()
	kc.conn = conn
	kc.mssNow = maxseg(conn)
	kc.in.buf = make([]byte, ringSize)
	kc.tx.buf = make([]byte, ringSize)
	go kc.reader(conn)
	go kc.writer(conn)
}

func (kc *kernelConn) reader(conn *net.TCPConn) {
	defer kc.k.ended(kc)
	kc.mu.Lock()
	defer kc.mu.Unlock()
	for kc.inErr == nil {
		room, _ := kc.in.free()
		if len(room) == 0 {
			if kc.over {
				return
			}
			kc.changed.Wait()
			continue
		}
		kc.mu.Unlock()
		n, err := conn.Read(room)
		kc.mu.Lock()
		kc.in.n += n
		switch {
		case err == nil || kc.inErr != nil: // the writer may have found the end meanwhile
		case err != io.EOF:
			kc.inErr = streamError(kc.c.remote, cause(err))
		case !kc.fin && disconnected(conn):
			// A reset of which a write was told already: the system tells it once.
			kc.inErr = streamError(kc.c.remote, syscall.ECONNRESET)
		default:
			kc.inErr = io.EOF
		}
		kc.tell()
	}
}

func (kc *kernelConn) writer(conn *net.TCPConn) {
	defer kc.k.ended(kc)
	kc.mu.Lock()
	defer kc.mu.Unlock()
	for sent := false; ; {
		switch p := kc.tx.pieces(); {
		case kc.over:
			return
		case len(p) > 0:
			kc.mu.Unlock()
			n, err := conn.Write(p[0])
			kc.mu.Lock()
			if err != nil {
				kc.broke(err)
				return
			}
			kc.tx.drop(n)
			if kc.txFull && kc.tx.n <= ringSize/2 {
				kc.txFull = false
				kc.c.out.writable.Store(true)
				kc.tell()
			}
		case kc.fin && !sent:
			sent = true
			_ = conn.CloseWrite()
		case kc.drain:
			kc.over = true
			_ = conn.Close()
			kc.changed.Broadcast()
			return
		default:
			kc.changed.Wait()
		}
	}
}

// broke notes that writing failed. Caller holds mu.
func (kc *kernelConn) broke(err error) {
	if kc.drain && !kc.over {
		kc.over = true
		_ = kc.conn.Close()
		kc.changed.Broadcast()
		return
	}
	if kc.inErr == nil || errors.Is(kc.inErr, io.EOF) {
		kc.inErr = streamError(kc.c.remote, cause(err))
	}
	kc.txFull = false
	kc.c.out.writable.Store(true)
	kc.tell()
}

func (kc *kernelConn) connected() (bool, error) {
	if kc.up || kc.err != nil {
		return kc.up, kc.err
	}
	kc.mu.Lock()
	conn, err := kc.conn, kc.dialErr
	kc.mu.Unlock()
	if conn == nil && err == nil && kc.c.late.Load() {
		err = syscall.ETIMEDOUT
		kc.cancel()
	}
	switch {
	case err != nil:
		kc.err = dialError(kc.c.remote, err)
		kc.c.out.fail(kc.err)
		return false, kc.err
	case conn == nil:
		return false, nil
	}
	kc.c.local = addrPort(conn.LocalAddr())
	kc.k.opened.Add(1)
	kc.up = true
	kc.c.out.open()
	return true, nil
}

func (kc *kernelConn) peek() ([][]byte, error) {
	if !kc.up {
		if _, err := kc.connected(); !kc.up {
			return nil, err
		}
	}
	kc.fresh.Store(false)
	kc.mu.Lock()
	pieces, err := kc.in.pieces(), kc.inErr
	kc.mu.Unlock()
	if err != nil && err != io.EOF {
		kc.c.out.fail(err) // the same reason for both halves
		if kc.err == nil {
			kc.err = err
			kc.c.st.lost(err)
		}
	}
	return pieces, err
}

func (kc *kernelConn) discard(n int) {
	kc.mu.Lock()
	defer kc.mu.Unlock()
	// The reader may be filling the room behind first+n: keep the ring where it is.
	first := kc.in.first + n
	kc.in.drop(n)
	if kc.in.first = first; first >= len(kc.in.buf) {
		kc.in.first = first - len(kc.in.buf)
	}
	kc.changed.Broadcast()
}

// write is sender.write.
func (kc *kernelConn) write(parts [][]byte, n int) (took int, err error) {
	kc.mu.Lock()
	defer kc.mu.Unlock()
	if kc.inErr != nil && !errors.Is(kc.inErr, io.EOF) {
		return 0, kc.inErr
	}
	for _, p := range parts {
		for len(p) > 0 {
			room, _ := kc.tx.free()
			if len(room) == 0 {
				kc.txFull = true
				kc.changed.Broadcast()
				return took, nil
			}
			k := copy(room, p)
			kc.tx.n += k
			took += k
			p = p[k:]
		}
	}
	kc.changed.Broadcast()
	return took, nil
}

// finish is sender.finish.
func (kc *kernelConn) finish() error {
	kc.mu.Lock()
	defer kc.mu.Unlock()
	kc.fin = true
	kc.changed.Broadcast()
	return nil
}

func (kc *kernelConn) mss() int {
	kc.mu.Lock()
	defer kc.mu.Unlock()
	return max(kc.mssNow, 536)
}

func (kc *kernelConn) end(abort bool) {
	kc.mu.Lock()
	abort = abort || kc.in.n > 0 || kc.conn == nil
	kc.mu.Unlock()
	if abort || kc.c.out.let() {
		kc.release(abort)
	}
}

func (kc *kernelConn) release(abort bool) {
	kc.c.out.shut()
	kc.c.gone()
	if kc.cancel != nil {
		kc.cancel()
	}
	if abort {
		kc.stop()
		return
	}
	kc.mu.Lock()
	kc.drain = true
	kc.changed.Broadcast()
	kc.mu.Unlock()
}

// stop resets the connection and ends its goroutines.
func (kc *kernelConn) stop() {
	kc.mu.Lock()
	defer kc.mu.Unlock()
	if kc.over {
		return
	}
	kc.over = true
	if kc.conn != nil {
		reset(kc.conn)
	}
	kc.changed.Broadcast()
}

// kill ends the connection with its Stack.
func (kc *kernelConn) kill() { kc.release(true) }

// disconnected reports whether the socket has a peer no longer, which a FIN alone does not do.
func disconnected(conn *net.TCPConn) bool {
	var perr error
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _, perr = syscall.Getpeername(int(fd)) })
	}
	return perr != nil
}

// maxseg asks for the segment size.
func maxseg(conn *net.TCPConn) int {
	n := 0
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			n, _ = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG)
		})
	}
	return n
}

package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// readBuffer of the receiver: large, so that it makes few system calls.
const readBuffer = 64 << 10

// take is the receiver of gathered messages. It takes one connection, counts the messages
// on it, and answers with their number when the sender has come to its end.
func take(address string, size int, out io.Writer) error {
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Fprintln(out, "ready", l.Addr())
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	r := bufio.NewReaderSize(conn, readBuffer)
	message := make([]byte, size)
	n := uint64(0)
	for {
		_, err := io.ReadFull(r, message)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if got := binary.BigEndian.Uint64(message); got != n {
			return fmt.Errorf("message %d came where %d was due", got, n)
		}
		n++
	}
	_, err = conn.Write(binary.BigEndian.AppendUint64(nil, n))
	return err
}

// gather sends numbered messages for a while, batch of them with one system call, and
// prints how many there were and how long it took until the receiver had them.
func gather(address string, size, batch int, each time.Duration, out io.Writer) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	w := bufio.NewWriterSize(conn, size*batch)
	message := make([]byte, size)
	n := uint64(0)
	start := time.Now()
	for time.Since(start) < each {
		for range batch {
			binary.BigEndian.PutUint64(message, n)
			if _, err := w.Write(message); err != nil {
				return err
			}
			n++
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	var answer [8]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	took := time.Since(start)
	if got := binary.BigEndian.Uint64(answer[:]); got != n {
		return fmt.Errorf("the receiver has %d messages of %d", got, n)
	}
	_, err = fmt.Fprintf(out, "%d messages in %d ns\n", n, took.Nanoseconds())
	return err
}

// parseCount reads what gather prints.
func parseCount(s string) (n uint64, took time.Duration, err error) {
	if _, err := fmt.Sscanf(strings.TrimSpace(s), "%d messages in %d ns", &n, (*int64)(&took)); err != nil || n == 0 || took <= 0 {
		return 0, 0, fmt.Errorf("%.200q is no count: %w", s, err)
	}
	return n, took, nil
}

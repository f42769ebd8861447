package main

import (
	"bufio"
	"errors"
	"os"

	"github.com/softrdma/softrdma/internal/capture"
	"github.com/softrdma/softrdma/pktio"
)

// captureFile takes the frames of a port. A nil one does nothing.
type captureFile struct {
	f *os.File
	w *bufio.Writer
}

func openCapture(path string) (*captureFile, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &captureFile{f, bufio.NewWriterSize(f, 1<<20)}, nil
}

// tap returns what wraps the port.
func (c *captureFile) tap() func(pktio.Port) (pktio.Port, error) {
	if c == nil {
		return nil
	}
	return func(p pktio.Port) (pktio.Port, error) { return capture.NewTap(p, c.w) }
}

// close writes out what is left, when the device is closed.
func (c *captureFile) close() error {
	if c == nil {
		return nil
	}
	return errors.Join(c.w.Flush(), c.f.Close())
}

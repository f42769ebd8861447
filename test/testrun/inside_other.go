//go:build !linux

package main

import (
	"errors"
	"io"
)

func runInside([]string, options, io.Writer) (int, error) { return 0, errors.ErrUnsupported }

func prepareInside() error { return errors.ErrUnsupported }

//go:build !linux

package lab

import (
	"errors"
	"fmt"
	"time"
)

var errNotLinux = fmt.Errorf("network namespaces are Linux's: %w", errors.ErrUnsupported)

// NoLoss tells that there are no frames to lose here.
func NoLoss() error { return errNotLinux }

func inNamespace(string, func() error) error { return errNotLinux }

func hurry() {}

type metronome struct{}

func newMetronome(time.Duration) (*metronome, error) { return nil, nil }

func (*metronome) frame() {}

func (*metronome) close() {}

func offloadsOff(string, string) error { return errNotLinux }

func (*Host) attachLoss(*Impairment) error { return errNotLinux }

func (*Host) losses() ([]Direction, error) { return nil, errNotLinux }

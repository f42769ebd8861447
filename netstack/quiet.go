package netstack

import (
	"time"

	"gvisor.dev/gvisor/pkg/log"
)

// silence takes what gVisor would write to standard error. Peers can make it write, for instance with a SYN that has no
// way back, and what this package has to say it returns or counts.
type silence struct{}

// Emit is log.Emitter.
func (silence) Emit(int, log.Level, time.Time, string, ...any) {}

// Some parts of gVisor keep the logger that there was when they were initialized, which is before this: so it is changed
// rather than replaced. A program that uses gVisor for something else, too, may set a target of its own in main: it comes
// after this.
func init() { log.Log().Emitter = silence{} }

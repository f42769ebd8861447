package netstack

import "golang.org/x/sys/unix"

// osRest sleeps for as short as the kernel lets a thread sleep: some 50 microseconds, by its timer slack.
func osRest() { _ = unix.Nanosleep(&unix.Timespec{Nsec: 1}, nil) }

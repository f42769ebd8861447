package netstack

import "golang.org/x/sys/unix"

// osYield lets another thread have the CPU if one waits for it.
func osYield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

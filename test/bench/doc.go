// Command bench compares softrdma with what else there is on the same wire: the
// kernel's TCP from Go, UCX and libfabric over the kernel's TCP, frames without any
// protocol, and a copy in memory.
//
//	make bench                                ten rounds, a table
//	make bench ARGS="-rounds 3 -seconds 1"    less of it
//	make bench ARGS="-quick"                  one short round: does it run at all?
//	make bench ARGS="-figures '64 B WRITE'"   the rows whose number and name match
//	make bench ARGS="-json FILE -svg DIR"     the same for programs, and plots by message size
//	make bench ARGS="-figures none -models all -svg DIR"  the threading models alone
//
// It needs root: `softrdma lab up` builds two network namespaces joined by a veth pair
// (MTU 1500), and for the rows with loss once more with a bridge between them that
// loses one frame in a hundred in each direction. A frame there is what the kernel
// passes along, for TCP a super-frame of up to 64 KiB. All traffic stays inside, and the
// namespaces go away at the end. -v prints each command, which can be run by hand.
//
// # How it is made fair
//
// Every measurement is a pair of fresh processes, one in each namespace, and nothing
// else is on the wire: a packet socket of an idle softrdma would be handed a copy of
// every frame of the kernel's TCP, which costs that a third of its throughput. That is
// why the baselines are not measured by plain `softrdma perf --baseline tcp`, which has both
// in one process.
//
// A round runs all measurements one after the other, and every second round runs them
// backwards, so that what grows warm or noisy in the course of a round favours nobody. The
// table shows medians of rounds, the range, the ratio of the medians, and the range of
// the ratios within each round.
//
// Where the host has two processors, softrdma with its own stack lets Go have one of them
// (GOMAXPROCS=1), as it does for everybody who runs it; the kernel's TCP from Go has both, as
// Go does by itself.
//
// Where the other side has a choice, all of it is measured and the better one counts, by
// its median: TCP's socket buffers as the kernel sizes them and of 16 MiB, blocking and
// spinning for throughput; the better mode of AF_XDP is ours. Where softrdma has a choice
// the row's name tells which one it is. Both ends of a pair have the same settings.
// Latency stands beside blocking and beside spinning sockets, as softrdma spins.
//
// A round trip is from a message to its answer. Where a tool halves it (softrdma perf, UCX,
// libfabric), it is doubled again or both sides are halved. Times of UCX are medians as
// ours are; libfabric has only a mean.
//
// Messages of 64 octets go in batches of 32: softrdma posts at most 32 work requests at
// once, TCP has a bufio.Writer of 32 messages that is flushed when full, and its reader
// takes messages one by one from a bufio.Reader. That TCP can do more for a program that
// gathers its messages itself, 2 KiB a call and without a look at them, is a row of its own.
//
// # Threading models
//
// -models measures Writes under the threading models of the SoftRDMA paper (package
// verbs/iwarp, Threads), c3 also with one copy less on receive: the round trip for 64 octets to 64 KiB, the throughput for 64
// octets to 1 MiB with up to 128 at once, on the packet backend, both sides under the
// same model, medians of up to three passes. Of throughput, the side that is written to has an
// application that does not poll: there the device's goroutines work in any model. With
// c1 and c3 each side keeps two processors busy, so on a host with fewer than four a
// comparison of latency is one of how well threads share processors.
//
// # Processor time
//
// Processor seconds a GB are user and system time of both processes, from their start to
// their end (wait4), over the octets that arrived; there is no warm-up. Starting and connecting
// takes some hundredths of a second of it, softrdma a little more than TCP. On a veth pair the
// receiving half of the kernel's work runs as a softirq at the end of the sender's system
// call, on its processor: the way of a frame to the receiver's packet socket, with a copy into
// its ring unless it is a super-frame, and TCP up to the receiver's socket buffer, are charged
// to the sender. What ksoftirqd takes over when there
// is too much of it is charged to no process, and with CONFIG_IRQ_TIME_ACCOUNTING no
// softirq is. So the same figure stands once more for the whole host, from /proc/stat, which
// has all of it, and whatever else the host did.
//
// An idle connection's processor time is read from the processes' clocks, beginning two
// seconds after its last message.
//
// # Data
//
// Before anything is measured each kind of softrdma's measurements runs once with all data
// compared (perf --verify), on every backend that is measured and over the bad wire. One
// wrong octet ends the program.
//
// # Whether to believe it
//
// Load and stolen time stand before each round, and after it what processes other than
// the measured ones took. A round that was not quiet is marked, and so is the whole table.
// So stands how much of the memory is in the lists of free pages that each processor keeps:
// bulk data varies with it, see docs/performance.md.
//
// The exit code is 1 if a measurement failed, and 3 if a figure misses its floor; with -quick
// no floor counts. A baseline that is not there and cannot be installed is left out, and
// the table says why.
package main

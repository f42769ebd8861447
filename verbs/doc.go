// Package verbs holds the objects of the RDMA verbs and their hot path: devices,
// protection domains, memory regions, completion queues and queue pairs. It
// knows no transport. Package verbs/iwarp opens devices, package verbs/rdmacm
// connects queue pairs.
//
//	Device ── PD ─┬─ MR
//	   │          └─ QP ── uses two CQs
//	   └───── CQ
//
// # Threads
//
// Every method of every type may be called by any goroutine at any time. Posts
// to one queue are put into some order; so are polls of one completion queue.
//
// # Memory
//
// A work request lends its memory from the post until its completion has come
// out of [CQ.Poll], [CQ.Wait] or [CQ.All]. The work request itself, its list of
// [SGE] and inline data are copied before the post returns. Memory that a peer
// may write changes at any time; code that watches it goes through [MR.Uint64].
//
// # Closing
//
// Closing a parent closes its children, queue pairs first; their pending work
// requests complete with [WCWRFlushErr]. A [CQ] still in use is not closed:
// [CQ.Close] names its queue pairs in a [BusyError]. A second Close returns nil.
// Nothing is freed by the garbage collector: an object that becomes unreachable
// without Close is only counted and reported as a leak.
//
// # Errors
//
// A caller's mistake is an error from the call. After a work request has been
// accepted its fate is told by the status of its completion, never by both.
// Errors match the errno that the C verbs would give: [syscall.EINVAL] for bad
// arguments, [syscall.ENOMEM] for full queues and used-up resources,
// [syscall.EBUSY], [errors.ErrUnsupported], [net.ErrClosed].
//
// # Limits of this package
//
// The only queue pair type is the reliable connection; asking for another gives an
// error that matches [errors.ErrUnsupported]. A region cannot be changed by a call:
// close it and register anew, or see [PD.AllocFastMR].
package verbs

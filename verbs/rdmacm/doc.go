// Package rdmacm connects queue pairs: Dial and Listen, accept and reject,
// with private data, as librdmacm does on iWARP.
//
// A message that meets no posted receive ends an iWARP connection: there is no
// retry. So receives have to stand before the peer can send, which is what
// Prepare is for: it runs when the queue pair exists and before the MPA
// Request or Reply leaves.
//
// Whoever leaves the completion queues out of the queue pair's configuration
// gets the easy path: Conn.Send, Recv, Write and Read, each one operation that
// waits for its completion, on queues and receive buffers that the connection
// owns. Its errors match what ended the connection ([verbs.QP.Err]), if that is
// so, and the status of the completion ([verbs.WCStatus]).
package rdmacm

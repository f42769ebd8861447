//go:build softrdma_handoff

package netstack

import (
	"unsafe"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// canInline is false: this program asked for a gVisor nobody interferes with. Nothing below is ever called.
func canInline() bool { return false }

func uncleared() *buffer.View { return buffer.NewViewSize(buffer.MaxChunkSize) }

func handleConnected(*tcp.Endpoint)                                       {}
func handleSegments(*tcp.Endpoint) tcpip.Error                            { return nil }
func handleSegment(*tcp.Endpoint, unsafe.Pointer) (bool, tcpip.Error)     { return false, nil }
func receiveSegment(*tcp.Endpoint, unsafe.Pointer) (bool, tcpip.Error)    { return false, nil }
func acknowledged(*tcp.Endpoint, unsafe.Pointer)                          {}
func keepWindow(*tcp.Endpoint, unsafe.Pointer)                            {}
func dequeue(unsafe.Pointer) unsafe.Pointer                               { return nil }
func queueEmpty(unsafe.Pointer) bool                                      { return false }
func release(unsafe.Pointer)                                              {}
func queueOf(*tcp.Endpoint) unsafe.Pointer                                { return nil }
func queueChunk(*userConn, tcpip.Clock, *buffer.View) (bool, tcpip.Error) { return false, nil }

func fluent(*tcp.Endpoint) bool                                         { return false }
func markSent(unsafe.Pointer, seqnum.Value, tcpip.MonotonicTime)        {}
func segmentData(unsafe.Pointer) *stack.PacketBuffer                    { return nil }
func sendParams(*tcp.Endpoint) (seqnum.Value, seqnum.Size)              { return 0, 0 }
func sentData(*tcp.Endpoint)                                            {}
func timestamps(*tcp.Endpoint) (mine, theirs uint32)                    { return 0, 0 }
func senderOf(*tcp.Endpoint) (*tcp.TCPSenderState, *tcp.SACKScoreboard) { return nil, nil }

// Command soak runs mixed traffic on many queue pairs between two devices for a
// while and compares every octet.
//
//	go run ./test/soak                                    in memory, 16 queue pairs, five minutes
//	go run ./test/soak --loss 1% --reorder 1%             the same over a bad link
//	go run ./test/soak --link netns --backend packet      two processes in two network namespaces (root)
//	go run ./test/soak matrix --each 30s                  every backend with every kind of trouble (root)
//
// Both ends derive from the seed what each queue pair does: which requests, how
// long, from where to where, with which flags. So the receiving end knows what
// every octet of its memory has to be, without being told: the contents name
// the operation they belong to and their place in it, and what no operation may
// touch holds a pattern of its own. An octet that is misplaced shows, and tells
// where it should have gone.
//
// Each completion is held against the work requests: once, in order, with the
// right status and length. Connections end and come back all the while: in order
// when both directions are through, or in the midst of traffic by a reset, a
// Terminate, a FIN or a region that is taken away. What arrived before such an
// end must be a prefix of what was sent.
//
// The race detector goes well with the links of one process. With two it does not
// see that what one end tells the other puts accesses in an order.
//
// A queue pair that makes no progress is a hang: its state, the counters of the
// device and all goroutines go to a file. At the end everything is closed, and
// goroutines, memory and the objects of the devices must be back where they began.
package main

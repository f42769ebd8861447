package main

import (
	"fmt"
	"slices"
	"strings"
)

// The values of the axes, but for the loads.
var (
	kinds    = []string{"siw", "siw-strict"} // the two builds of siw in the guest
	programs = []string{"rping", "ucmatose", "rdma_client"}
	backends = []string{"packet", "xdp-native", "xdp-generic", "kernel"}
	roles    = []string{"client", "server"}
	families = []int{4, 6}
	mtus     = []int{1500, 9000}
)

// Load is what one run carries: Count messages of Size octets each way on each of Conns
// connections. For rping a message is a ping, of which Size is the size.
type Load struct{ Conns, Count, Size int }

func (l Load) String() string { return fmt.Sprintf("%dx%dx%d", l.Conns, l.Count, l.Size) }

// Row is one run of the matrix.
type Row struct {
	Kind    string // of the guest
	Program string // the guest's; rdma_client stands for rdma_server too
	Backend string // softrdma's
	Role    string // softrdma's: client or server
	Family  int    // of the addresses: 4 or 6
	MTU     int    // of the link, in octets
	CRC     bool   // softrdma asks for the CRC
	Load    Load
}

// loads are what a program is run with on a link of an MTU.
func loads(program string, mtu, pings int) []Load {
	switch {
	case program == "rping" && mtu == 1500: // the smallest it takes, one segment, three, the largest
		return []Load{{1, pings, 26}, {1, pings, 100}, {1, pings, 4096}, {1, pings, 65535}}
	case program == "rping": // one segment instead of three; eight instead of 46
		return []Load{{1, pings, 4096}, {1, pings, 65535}}
	case program == "ucmatose" && mtu == 1500: // many connections; more of them and of messages; many segments
		// siw's user library takes the mmap offset of a process's 145th page of queues for
		// a failure. With up to 32 messages a queue has one page, and the 37th connection
		// of ucmatose begins there; with 130 none does.
		return []Load{{30, 10, 100}, {50, 130, 100}, {8, 20, 20000}}
	case program == "ucmatose":
		return []Load{{8, 20, 20000}}
	case program == "rdma_client" && mtu == 1500: // it knows one load alone
		return []Load{{1, 1, 16}}
	}
	return nil
}

// rows lists the whole matrix, grouped by guest and link. pings is how many rping does
// in a run.
func rows(pings int) []Row {
	var out []Row
	for _, kind := range kinds {
		for _, mtu := range mtus {
			for _, program := range programs {
				for _, backend := range backends {
					for _, role := range roles {
						for _, family := range families {
							for _, load := range loads(program, mtu, pings) {
								for _, crc := range []bool{true, false} {
									r := Row{kind, program, backend, role, family, mtu, crc, load}
									if r.possible() {
										out = append(out, r)
									}
								}
							}
						}
					}
				}
			}
		}
	}
	return out
}

// possible is false for what the guest's programs cannot do: rdma_server takes no
// address and listens on IPv4 alone. Where nothing is sent, one load is enough.
func (r Row) possible() bool {
	switch {
	case r.Program == "rdma_client":
		return r.Role == "server" || r.Family == 4
	case r.Held():
		return r.Load.Conns == 30
	}
	return true
}

// WantCRC tells whether the CRC must be in use (RFC 5044: when either side asks for it).
// The strict guest asks for it as initiator; as responder every siw repeats what it was
// asked for.
func (r Row) WantCRC() bool { return r.CRC || r.Role == "server" && r.Kind == "siw-strict" }

// Held tells whether nothing may be sent: the plain guest's ucmatose is an initiator in
// the client/server model, and waits for us to speak first. The responder must not (RFC
// 5044, Section 7.1.2); that it does not is what the run shows.
func (r Row) Held() bool {
	return r.Program == "ucmatose" && r.Role == "server" && r.Kind == "siw"
}

// OwnStack tells whether TCP/IP is softrdma's own, and not the host kernel's.
func (r Row) OwnStack() bool { return r.Backend != "kernel" }

// XDP tells whether frames come through AF_XDP.
func (r Row) XDP() bool { return strings.HasPrefix(r.Backend, "xdp-") }

// crcWord says what softrdma asks for.
func (r Row) crcWord() string {
	if r.CRC {
		return "crc"
	}
	return "nocrc"
}

// values are the row's place on each axis, in words that name axis and value.
func (r Row) values() []string {
	return []string{r.Kind, r.Program + " " + r.Load.String(), r.Backend, r.Role, fmt.Sprintf("ipv%d", r.Family),
		fmt.Sprintf("mtu%d", r.MTU), r.crcWord()}
}

func (r Row) name() string {
	return strings.ReplaceAll(strings.Join(r.values(), "-"), " ", "-")
}

// guestProgram is the program that the guest runs.
func (r Row) guestProgram() string {
	if r.Program == "rdma_client" && r.Role == "client" {
		return "rdma_server"
	}
	return r.Program
}

// cover picks rows so that any n values of different axes that meet in some row of all
// meet in a picked one too, and keeps the order. Again and again it takes the row that
// brings most, and of several such the one whose values were taken least so far. What it
// picks is small without being the smallest.
func cover(all []Row, n int) []Row {
	missing, taken := map[string]bool{}, map[string]int{}
	meetings := make([][]string, len(all))
	for i, r := range all {
		meetings[i] = subsets(r.values(), n)
		for _, m := range meetings[i] {
			missing[m] = true
		}
	}
	var picked []int
	for len(missing) > 0 {
		best, most, least := 0, 0, 0
		for i, r := range all {
			brings, worn := 0, 0
			for _, m := range meetings[i] {
				if missing[m] {
					brings++
				}
			}
			for _, v := range r.values() {
				worn += taken[v]
			}
			if brings > most || brings == most && worn < least {
				best, most, least = i, brings, worn
			}
		}
		picked = append(picked, best)
		for _, m := range meetings[best] {
			delete(missing, m)
		}
		for _, v := range all[best].values() {
			taken[v]++
		}
	}
	slices.Sort(picked)
	out := make([]Row, len(picked))
	for i, p := range picked {
		out[i] = all[p]
	}
	return out
}

// subsets returns all choices of n of the values, each as one word.
func subsets(values []string, n int) []string {
	if n == 0 {
		return []string{""}
	}
	var out []string
	for i := range values {
		for _, rest := range subsets(values[i+1:], n-1) {
			out = append(out, values[i]+","+rest)
		}
	}
	return out
}

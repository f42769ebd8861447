//go:build !softrdma_handoff

package netstack

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/pktio"
)

// roomy receives as a Packet does: the payload of a long TCP segment goes to the start of the frame's Room. All it may
// overwrite at the next Recv it does overwrite: its own memory and every Room it is given.
type roomy struct {
	pktio.Port
	r      *rand.Rand
	heads  [rxBatch][maxHeaders]byte
	filled bool     // the last Recv had a frame
	lent   [][]byte // memory of the last batch
	whole  bool     // now and then a frame goes into its Room with its headers
	pad    int      // octets behind a packet
	moves  bool     // frames change places
	passed int      // frames
	loss   int      // one frame in so many is left out; 0: none

	mu    sync.Mutex     // guards what follows
	rooms map[*byte]bool // what the last batch was put into
	taken int
	used  int
	lost  int
}

// counts returns how often a Room was used, how often it did not come back, and how many frames were left out.
func (p *roomy) counts() (used, taken, lost int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used, p.taken, p.lost
}

func (p *roomy) Recv(batch []pktio.Frame, wait time.Duration) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.filled {
		for i := range batch {
			if len(batch[i].Room) > 0 {
				delete(p.rooms, &batch[i].Room[0])
			}
			for j := range batch[i].Room {
				batch[i].Room[j] = 0xa5
			}
		}
	}
	p.taken += len(p.rooms)
	clear(p.rooms)
	for _, b := range p.lent {
		for i := range b {
			b[i] = 0x5a
		}
	}
	p.lent = p.lent[:0]
	p.mu.Unlock()
	n, err := p.Port.Recv(batch, wait)
	p.mu.Lock()
	p.filled = n > 0
	for i := range batch[:n] {
		p.place(&batch[i], p.heads[i][:])
	}
	kept := 0
	for i := range n {
		if p.passed++; p.loss > 0 && p.passed%p.loss == 0 {
			p.lost++
			continue
		}
		batch[kept], batch[i] = batch[i], batch[kept]
		kept++
	}
	if p.moves && n > 0 {
		if p.r.IntN(20) == 0 { // TCP takes that for a loss
			p.r.Shuffle(kept, func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
		}
		// A Room may be with a frame that never had one, and the other way round.
		rest := batch[kept:]
		p.r.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	}
	return kept, err
}

// place moves the octets of f, which are in memory of a pipe, to where a Packet has them.
func (p *roomy) place(f *pktio.Frame, head []byte) {
	b := make([]byte, f.Len()+p.pad)
	f.CopyTo(b)
	seg := segmentOf(b)
	f.Data = f.Data[:0]
	switch {
	case seg == nil || len(b) < 2000 || len(b) > len(f.Room):
		f.Data = append(f.Data, b)
		p.lent = append(p.lent, b)
		return
	case p.whole && p.r.IntN(4) == 0:
		f.Data = append(f.Data, f.Room[:copy(f.Room, b)])
	default:
		n := len(b) - len(seg) + int(seg.DataOffset())
		head = head[:copy(head, b[:n])]
		f.Data = append(f.Data, head, f.Room[:copy(f.Room, b[n:])])
		p.lent = append(p.lent, head)
	}
	p.rooms[&f.Room[0]] = true
	p.used++
}

func newRoomyPair(t *testing.T, fam family, c Config, port *roomy) *pair {
	pa, pb, err := pktio.NewPipe(pktio.PipeConfig{GSO: true, Depth: 1024})
	require.NoError(t, err)
	port.Port, port.r, port.rooms = pb, rand.New(rand.NewPCG(3, 4)), map[*byte]bool{}
	return newPortPairOf(t, fam, pa, port, c)
}

// What a port puts into Rooms arrives as it was sent, also at a reader who lets it lie for long, and whatever a port
// between does with the frames of a batch.
func TestRooms(t *testing.T) {
	const total = 2 << 20
	for name, make := range map[string]func() *roomy{
		"plain":   func() *roomy { return &roomy{} },
		"whole":   func() *roomy { return &roomy{whole: true} },
		"padded":  func() *roomy { return &roomy{pad: 7} },
		"moved":   func() *roomy { return &roomy{moves: true} },
		"lost":    func() *roomy { return &roomy{loss: 20} },
		"at once": func() *roomy { return &roomy{whole: true, pad: 1, moves: true, loss: 20} },
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, Config{MinRTO: 5 * time.Millisecond}, func(t *testing.T, c Config) {
				bothFamilies(t, func(t *testing.T, fam family) {
					port := make()
					p := newRoomyPair(t, fam, c, port)
					ca, cb, _ := p.connect()
					k, sent, turn := checker{}, 0, 0
					p.until("the octets", func() bool {
						for sent < total && ca.Room() > 0 {
							n := min(StageSize-sent%5, total-sent)
							_, err := stage(t, ca, 0, sent, n)
							require.NoError(t, err)
							sent += n
						}
						if turn++; turn%50 != 0 && sent < total {
							return false
						}
						pieces, err := cb.Peek()
						require.NoError(t, err)
						n := 0
						for _, b := range pieces {
							b = b[:min(len(b), 100_000-n)]
							require.NoError(t, k.check(b))
							n += len(b)
						}
						cb.Discard(n)
						return k.at == total
					})
					used, taken, lost := port.counts()
					require.Positive(t, used)
					if port.loss == 0 { // else segments are small
						require.Positive(t, taken, "of %d", used)
					}
					require.Equal(t, port.loss > 0, lost > 0)
					require.Zero(t, p.b.Stats().ChecksumErrors)
				})
			})
		})
	}
}

// Only a payload that fills half of its Room and begins where that does stays in it.
func TestRoomIsTaken(t *testing.T) {
	const half, from = StageSize / 2, 54
	head := func(n int) []byte { return make([]byte, n) }
	for _, c := range []struct {
		name     string
		data     func(room []byte) [][]byte
		from, to int
		taken    bool
	}{
		{"half", func(b []byte) [][]byte { return [][]byte{head(from), b[:half]} }, from, from + half, true},
		{"all", func(b []byte) [][]byte { return [][]byte{head(from), b} }, from, from + StageSize, true},
		{"padded", func(b []byte) [][]byte { return [][]byte{head(from), b[:half+9]} }, from, from + half, true},
		{"headers in two pieces", func(b []byte) [][]byte { return [][]byte{head(from - 20), head(20), b[:half]} }, from, from + half, true},
		{"less than half", func(b []byte) [][]byte { return [][]byte{head(from), b[:half-1]} }, from, from + half - 1, false},
		{"less than half, padded", func(b []byte) [][]byte { return [][]byte{head(from), b[:half]} }, from, from + half - 1, false},
		{"headers elsewhere", func(b []byte) [][]byte { return [][]byte{head(from + 4), b[:half]} }, from, from + half, false},
		{"headers longer", func(b []byte) [][]byte { return [][]byte{head(from), b} }, from + 12, from + half + 12, false},
		{"one piece", func(b []byte) [][]byte { return [][]byte{b} }, from, StageSize, false},
		{"three pieces", func(b []byte) [][]byte { return [][]byte{head(from), b[:half], b[half:]} }, from, from + StageSize, false},
		{"not at the start", func(b []byte) [][]byte { return [][]byte{head(from), b[1:]} }, from, from + StageSize - 1, false},
		{"elsewhere", func([]byte) [][]byte { return [][]byte{head(from), head(StageSize)} }, from, from + StageSize, false},
		{"an empty piece behind", func(b []byte) [][]byte { return [][]byte{b, nil} }, from, StageSize, false},
		{"no payload", func(b []byte) [][]byte { return [][]byte{b} }, StageSize, StageSize, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r rooms
			frames := make([]pktio.Frame, maxRooms+4)
			r.init(frames)
			defer r.release()
			for i, f := range frames {
				require.Equal(t, i < maxRooms, len(f.Room) == StageSize)
			}
			// A frame that is not where its Room was made for it.
			f := &frames[maxRooms]
			*f, frames[3] = frames[3], *f
			room, refs := f.Room, refsOf(r.free[3])
			f.Data = c.data(room)
			v := r.take(f, c.from, c.to)
			require.Equal(t, c.taken, v != nil)
			seen := map[*byte]bool{}
			for _, free := range r.free {
				seen[&free.AsSlice()[0]] = true
			}
			require.Len(t, seen, maxRooms)
			require.True(t, seen[&f.Room[0]])
			require.Equal(t, !c.taken, seen[&room[0]], "what is taken is not lent again")
			require.Len(t, f.Room, StageSize)
			if v == nil {
				return
			}
			require.Same(t, &room[0], &v.AsSlice()[0])
			require.Equal(t, c.to-c.from, v.Size())
			require.EqualValues(t, 1, refs.count())
			require.Nil(t, r.take(f, c.from, c.to), "what is taken is not to be had twice")
			v.Release()
			require.Zero(t, refs.count())
		})
	}
	t.Run("a frame without one", func(t *testing.T) {
		var r rooms
		require.Nil(t, r.take(&pktio.Frame{Data: [][]byte{head(from), head(StageSize)}}, from, from+StageSize))
	})
	t.Run("memory comes back", func(t *testing.T) {
		var r rooms
		r.init(make([]pktio.Frame, 3))
		var all []chunkRefs
		for _, v := range r.free[:3] {
			all = append(all, refsOf(v))
		}
		require.Nil(t, r.free[3], "no more than there are frames")
		require.False(t, free(all))
		r.release()
		require.True(t, free(all))
		r.release()
	})
}

// Frames from a peer that lies about lengths, in a Room each, harm nobody.
func TestRoomsAndOddFrames(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		near, far, err := pktio.NewPipe(pktio.PipeConfig{GSO: true})
		require.NoError(t, err)
		port := &roomy{Port: near, r: rand.New(rand.NewPCG(5, 6)), rooms: map[*byte]bool{}}
		c := Config{Addrs: prefixes(fmt.Sprintf("%v/%d", fam.a, fam.bits))}
		st, err := New(port, c)
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, st.Close())
			require.NoError(t, far.Close())
		})
		w := &wire{t: t, fam: fam, port: far, h: newHost(t, st), in: make([]pktio.Frame, 1)}
		conn, una := w.acceptOne(10_000)
		k, at := checker{}, 0
		r := rand.New(rand.NewPCG(7, 8))
		for range 200 {
			n := []int{StageSize / 2, 40_000, 60_000, 1500}[r.IntN(4)]
			b := make([]byte, n)
			pattern(b, 0, at)
			seg := tcpSegmentOf(fam.b, fam.a, header.TCPFields{SrcPort: 1000, DstPort: 2000, SeqNum: uint32(100 + at), AckNum: una, Flags: flagPSH, WindowSize: 10_000}, b)
			good := joined(w.eth(), ipPacket(fam.b, fam.a, 6, len(seg)), seg)
			bad := append([]byte(nil), good...)
			bad[14+r.IntN(60)] ^= 1 << r.IntN(8) // of IP's and TCP's header
			if bad[14]>>4 == 4 {
				ip := header.IPv4(bad[14:])
				if h := int(ip.HeaderLength()); h >= 20 {
					ip.SetChecksum(0)
					ip.SetChecksum(^ip.CalculateChecksum())
				}
			}
			for _, f := range [][]byte{bad, good} {
				sent, err := far.Send([]pktio.Frame{{Data: [][]byte{f}, Offload: pktio.Offload{GSO: gsoOf(fam), GSOSize: 1400, HdrLen: 54, NeedsCsum: false}}})
				require.NoError(t, err)
				require.Equal(t, 1, sent)
			}
			at += n
			until(t, "the octets", func() bool { require.NoError(t, k.receive(t, conn)); w.swallow(); return k.at == at }, w.h)
		}
		used, _, _ := port.counts()
		require.Positive(t, used)
	})
}

func gsoOf(fam family) pktio.GSOType {
	if fam.a.Is4() {
		return pktio.GSOTCPv4
	}
	return pktio.GSOTCPv6
}

// With the stack all Rooms go.
func TestRoomsEnd(t *testing.T) {
	port := &roomy{}
	p := newRoomyPair(t, inet4, Config{}, port)
	ca, cb, _ := p.connect()
	_, err := stage(t, ca, 0, 0, StageSize)
	require.NoError(t, err)
	k := checker{}
	p.until("the octets", func() bool { require.NoError(t, k.receive(t, cb)); return k.at == StageSize })
	rx := &p.b.user.link.rx
	var all []chunkRefs
	holdReceiver(p.b.user.link, func() {
		p.a.user.link.sendFrame(append(ethernet(port.Link().Addr, wireMAC, 0x88b5), make([]byte, 46)...))
	})
	for _, v := range rx.rooms.free {
		all = append(all, refsOf(v))
	}
	rx.mu.Unlock()
	require.NoError(t, p.b.Close())
	require.Equal(t, rooms{}, rx.rooms)
	require.NoError(t, p.a.Close())
	require.True(t, free(all))
}

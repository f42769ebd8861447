package iwarp_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/capture"
	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// recorded lets two of our own devices talk in rping's manner over a link in
// memory, and returns what they said.
func recorded(t *testing.T, mtu int, p iwarp.Protocol, sizes ...int) (s capture.Sessions, file string) {
	t.Helper()
	var pcap safeBuffer
	a, b, err := iwarp.Pipe(iwarp.PipeConfig{MTU: mtu, Protocol: p, Tap: func(port pktio.Port) (pktio.Port, error) {
		return capture.NewTap(port, &pcap)
	}})
	require.NoError(t, err)
	l := link{a, b, iwarp.PipeAddrB}
	most := slices.Max(sizes)
	c := l.connect(t, 2*most, func(e *end, qp *verbs.QP) error {
		for i := range uint64(3) {
			if _, err := qp.PostRecv([]verbs.RecvWR{{ID: 100 + i}}); err != nil { // of nothing: for words
				return err
			}
		}
		return nil
	})
	for round, n := range sizes {
		pingOnce(t, &c, n, uint64(round))
	}
	c.mine.quiet(t)
	c.theirs.quiet(t)
	require.NoError(t, c.mine.Disconnect(within(t, 10*time.Second)))
	c.over(t)
	for _, d := range []*verbs.Device{a, b} {
		require.NoError(t, d.Close())
	}
	file = filepath.Join(t.TempDir(), "said.pcapng")
	require.NoError(t, os.WriteFile(file, pcap.b.Bytes(), 0o644))
	s, err = capture.DecodeFile(bytes.NewReader(pcap.b.Bytes()))
	require.NoError(t, err)
	require.Len(t, s.All, 1)
	return s, file
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// pingOnce is one round of rping: the server reads n octets, says a word, hears
// one, writes them back and says another.
func pingOnce(t *testing.T, c *pair, n int, seed uint64) {
	t.Helper()
	fill(c.mine.mr.Bytes()[:n], seed)
	clear(c.mine.mr.Bytes()[n : 2*n])
	word := func(from, to *end) {
		from.send(t, verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled})
		require.NoError(t, from.wait(t, 1)[0].Err())
		wc := to.wait(t, 1)[0]
		require.NoError(t, wc.Err())
		require.Zero(t, wc.ByteLen)
		to.recv(t, verbs.RecvWR{ID: 200})
	}
	client, server := &c.mine, &c.theirs
	word(client, server)
	server.send(t, verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{server.mr.SGE(0, n)}, Remote: client.remote})
	require.NoError(t, server.wait(t, 1)[0].Err())
	word(server, client)
	word(client, server)
	back := client.remote
	back.Addr, back.Len = back.Addr+uint64(n), uint32(n)
	server.send(t, verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{server.mr.SGE(0, n)}, Remote: back})
	require.NoError(t, server.wait(t, 1)[0].Err())
	word(server, client)
	require.True(t, bytes.Equal(client.mr.Bytes()[:n], client.mr.Bytes()[n:2*n]), "what comes back")
}

// said lists the messages of a direction by their last FPDU. Empty Writes that
// wake a responder are left out, but for the one that opens the connection.
func said(f *capture.Flow) (ops []capture.Opcode) {
	for i := range f.FPDUs {
		u := &f.FPDUs[i]
		if nudge := i > 0 && u.RDMAP.Opcode == capture.OpWrite && len(u.DDP.Payload) == 0; u.DDP.Last && !nudge {
			ops = append(ops, u.RDMAP.Opcode)
		}
	}
	return ops
}

// ownHeaders is what our own TCP/IP stack keeps of a packet for the headers of
// IPv4 and TCP: the longest there are.
const ownHeaders = 20 + 60

// TestVariants runs every way to set up a connection between two of our own, and
// asks the decoder and tshark, which share nothing with the stack, about every
// octet of it.
func TestVariants(t *testing.T) {
	const (
		write, ask, response, send = capture.OpWrite, capture.OpReadRequest, capture.OpReadResponse, capture.OpSend
	)
	sizes := []int{64, 4000, 100_000}
	for _, v := range []struct {
		name    string
		p       iwarp.Protocol
		rtr     []capture.Opcode // what opens the connection
		answer  []capture.Opcode // and the answer to it
		marked  bool
		large   bool
		request wiretest.Startup // flags and revision
	}{
		{"IOP-21 the default", iwarp.Protocol{}, []capture.Opcode{ask}, []capture.Opcode{response}, false, false,
			wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2}},
		{"MPA-20 MPA-21 MPA-58 MPA-61 MPA-62 markers both ways", iwarp.Protocol{Markers: true}, []capture.Opcode{ask}, []capture.Opcode{response}, true, false,
			wiretest.Startup{Flags: wiretest.FlagM | wiretest.FlagC | wiretest.FlagS, Rev: 2}},
		{"MPA-25 MPA-67 markers without CRC", iwarp.Protocol{Markers: true, NoCRC: true}, []capture.Opcode{ask}, []capture.Opcode{response}, true, false,
			wiretest.Startup{Flags: wiretest.FlagM | wiretest.FlagS, Rev: 2}},
		{"MPA-25 MPA-22 no CRC", iwarp.Protocol{NoCRC: true}, []capture.Opcode{ask}, []capture.Opcode{response}, false, false,
			wiretest.Startup{Flags: wiretest.FlagS, Rev: 2}},
		{"MPA-30 MPA-33 revision 1", iwarp.Protocol{Rev1: true}, nil, nil, false, false, wiretest.Startup{Flags: wiretest.FlagC, Rev: 1}},
		{"MPA-33 MPA-20 revision 1 with markers", iwarp.Protocol{Rev1: true, Markers: true}, nil, nil, true, false,
			wiretest.Startup{Flags: wiretest.FlagM | wiretest.FlagC, Rev: 1}},
		{"IOP-19 revision 1 opened by a Read", iwarp.Protocol{Rev1: true, LegacyRTR: true}, []capture.Opcode{ask}, []capture.Opcode{response}, false, false,
			wiretest.Startup{Flags: wiretest.FlagC, Rev: 1}},
		{"MPA-46 MPA-47 RTR Write", iwarp.Protocol{OfferRTR: iwarp.RTRWrite, TakeRTR: iwarp.RTRWrite}, []capture.Opcode{write}, nil, false, false,
			wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2}},
		{"MPA-46 MPA-47 RTR Read", iwarp.Protocol{OfferRTR: iwarp.RTRRead, TakeRTR: iwarp.RTRRead}, []capture.Opcode{ask}, []capture.Opcode{response}, false, false,
			wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2}},
		{"MPA-46 MPA-49 RTR Send", iwarp.Protocol{OfferRTR: iwarp.RTRSend, TakeRTR: iwarp.RTRSend}, []capture.Opcode{send}, nil, false, false,
			wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2}},
		{"MPA-50 MPA-42 no RTR message", iwarp.Protocol{ClientServer: true}, nil, nil, false, false,
			wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2}},
		{"MPA-74 large FPDUs", iwarp.Protocol{LargeFPDUs: true}, []capture.Opcode{ask}, []capture.Opcode{response}, false, true,
			wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS | 0x08, Rev: 2}},
		{"MPA-74 MPA-64 large FPDUs with markers", iwarp.Protocol{LargeFPDUs: true, Markers: true}, []capture.Opcode{ask}, []capture.Opcode{response}, true, true,
			wiretest.Startup{Flags: wiretest.FlagM | wiretest.FlagC | wiretest.FlagS | 0x08, Rev: 2}},
	} {
		t.Run(v.name, func(t *testing.T) {
			s, file := recorded(t, 1500, v.p, sizes...)
			ses := s.All[0]
			require.NoError(t, s.Err())
			require.Empty(t, ses.Check())
			require.Equal(t, !v.p.NoCRC, ses.CRC)
			req, rep := ses.Initiator.Startup, ses.Responder.Startup
			require.Equal(t, v.request.Flags, req.Contents[16], "flags of the Request")
			require.Equal(t, v.request.Flags, rep.Contents[16], "flags of the Reply")
			require.Equal(t, []byte{v.request.Rev, v.request.Rev}, []byte{req.Rev, rep.Rev})

			client, server := v.rtr, v.answer
			for range sizes {
				client = append(client, send, response, send)
				server = append(server, ask, send, write, send)
			}
			require.Equal(t, client, said(&ses.Initiator))
			require.Equal(t, server, said(&ses.Responder))

			const emss = 1500 - ownHeaders
			longest := 0
			for _, f := range []*capture.Flow{&ses.Initiator, &ses.Responder} {
				for i, u := range f.FPDUs {
					end := len(f.Stream())
					if i+1 < len(f.FPDUs) {
						end = f.FPDUs[i+1].Offset
					}
					longest = max(longest, end-u.Offset)
					require.Equal(t, v.marked, len(u.MPA.Markers) > 0 || end-u.Offset < 512 && v.marked, "FPDU %d", i)
				}
			}
			if v.large {
				require.Greater(t, longest, 64000)
			} else {
				require.LessOrEqual(t, longest, emss)
				require.Greater(t, longest, emss-64)
			}
			asTshark(t, ses, file, v.marked)
		})
	}
}

// asTshark compares what tshark finds with what the decoder found. With markers
// it needs each FPDU in a TCP segment of its own.
func asTshark(t *testing.T, ses *capture.Session, file string, marked bool) {
	t.Helper()
	if marked {
		file = filepath.Join(t.TempDir(), "aligned.pcap")
		w, err := os.Create(file)
		require.NoError(t, err)
		require.NoError(t, ses.WriteAligned(w))
		require.NoError(t, w.Close())
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		s, err := capture.DecodeFile(bytes.NewReader(b))
		require.NoError(t, err)
		ses = s.All[0]
	}
	r := wiretest.Tshark(t, file)
	require.Zero(t, r.Malformed)
	require.Zero(t, r.BadCRC)
	require.Equal(t, []int{1, 1}, []int{r.Requests, r.Replies})
	i, p := &ses.Initiator.Counts, &ses.Responder.Counts
	require.NotZero(t, i.FPDUs)
	require.NotZero(t, p.FPDUs)
	require.Equal(t, i.FPDUs+p.FPDUs, r.FPDUs)
	if ses.CRC {
		require.Equal(t, r.FPDUs, r.GoodCRC)
	}
	for op, n := range r.ByOpcode {
		require.Equal(t, i.ByOpcode[op]+p.ByOpcode[op], n, "opcode %d", op)
	}
}

// TestSegmentSizes: the largest FPDU follows the segment size of the path.
func TestSegmentSizes(t *testing.T) {
	for _, mtu := range []int{576, 1500, 9000} {
		for _, marked := range []bool{false, true} {
			t.Run(map[bool]string{false: "MPA-70 MPA-69 FPDUs fill segments", true: "MPA-70 MPA-69 FPDUs with markers fill segments"}[marked], func(t *testing.T) {
				s, _ := recorded(t, mtu, iwarp.Protocol{Markers: marked}, 100_000)
				require.NoError(t, s.Err())
				emss := mtu - ownHeaders
				want := emss - (6 + emss%4) // RFC 5044, Section 4.1
				if marked {
					want -= 4 * ((emss + 511) / 512)
				}
				longest := 0
				for _, u := range s.All[0].Responder.FPDUs {
					longest = max(longest, len(u.MPA.Payload))
				}
				require.LessOrEqual(t, longest, want, "MTU %d", mtu)
				require.Greater(t, longest, want-4, "MTU %d", mtu)
			})
		}
	}
}

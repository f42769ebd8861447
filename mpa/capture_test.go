package mpa

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"
)

// halves are the two directions of a recorded TCP connection.
type halves struct{ request, reply []byte }

// recorded returns the connections of a capture of a loss-free link, in the
// order of their Requests.
func recorded(t *testing.T, file string) (conns []halves) {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	require.NoError(t, err)
	type segment struct {
		seq  uint32
		data []byte
	}
	streams := map[string][]segment{}
	var order []string
	for {
		data, _, err := r.ReadPacketData()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		p := gopacket.NewPacket(data, r.LinkType(), gopacket.Default)
		tcp, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if !ok || len(tcp.Payload) == 0 {
			continue
		}
		key := p.NetworkLayer().NetworkFlow().String() + " " + tcp.TransportFlow().String()
		if streams[key] == nil {
			order = append(order, key)
		}
		streams[key] = append(streams[key], segment{tcp.Seq, tcp.Payload})
	}
	var whole [][]byte
	for _, key := range order {
		s := streams[key]
		sort.SliceStable(s, func(i, j int) bool { return int32(s[i].seq-s[j].seq) < 0 })
		var b []byte
		for next := s[0].seq; len(s) > 0; s = s[1:] {
			if skip := int32(next - s[0].seq); skip < int32(len(s[0].data)) { // not a repetition
				require.GreaterOrEqual(t, skip, int32(0), "a gap in the capture")
				b = append(b, s[0].data[skip:]...)
				next += uint32(len(s[0].data)) - uint32(skip)
			}
		}
		whole = append(whole, b)
	}
	for _, b := range whole {
		if bytes.HasPrefix(b, []byte(keyRequest)) {
			conns = append(conns, halves{request: b})
		}
	}
	i := 0
	for _, b := range whole {
		if bytes.HasPrefix(b, []byte(keyReply)) {
			conns[i].reply = b
			i++
		}
	}
	require.Equal(t, len(conns), i)
	return conns
}

// TestSIW replays what two real siw peers said to each other.
func TestSIW(t *testing.T) {
	files, err := filepath.Glob("../testdata/siw/*.pcap")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run("IOP-36 "+filepath.Base(file), func(t *testing.T) {
			strict := strings.Contains(file, "strict")
			conns := recorded(t, file)
			require.NotEmpty(t, conns)
			refused, fpdus := 0, 0
			for _, h := range conns {
				req, n, err := ParseFrame(h.request)
				require.NoError(t, err)
				rep, m, err := ParseFrame(h.reply)
				require.NoError(t, err)
				for _, x := range []struct {
					f    Frame
					want []byte
				}{{req, h.request[:n]}, {rep, h.reply[:m]}} {
					again, err := x.f.Append(nil)
					require.NoError(t, err)
					require.Equal(t, x.want, again)
				}
				require.Equal(t, strict, req.CRC || rep.CRC)
				if rep.Reject {
					refused++
					require.Len(t, h.request, n)
					require.Len(t, h.reply, m)
					continue
				}
				for i, b := range [][]byte{h.request[n:], h.reply[m:]} {
					fpdus += replayFPDUs(t, b, strict, uint64(i))
				}
			}
			if strings.Contains(file, "refused") {
				require.Equal(t, 1, refused)
			} else {
				require.NotZero(t, fpdus)
			}
		})
	}
}

// replayFPDUs reads all FPDUs of one direction and writes them again. It returns
// how many there were.
func replayFPDUs(t *testing.T, b []byte, crc bool, seed uint64) (n int) {
	t.Helper()
	c, near, far := openWide(t, Params{CRC: crc})
	near.Rechunk(seed, 2000)
	write(t, far, b)
	require.NoError(t, far.CloseWrite())
	x, y := streamPair(testMSS, wideBuffer)
	w := open(NewConn(x, newPool(t, poolConfig)), Params{CRC: crc})
	var err error
	for rounds := 0; err == nil; rounds++ {
		require.Less(t, rounds, 1000+len(b), "the end is noticed")
		var u *ULPDU
		var ok bool
		require.NoError(t, soon(func() { u, ok, err = c.Next() }))
		if !ok {
			continue
		}
		require.NoError(t, w.Write(octets(t, u), nil))
		require.NoError(t, w.Flush())
		got, size := read(y), FPDUSize(u.Len())
		want := bytes.Clone(b[:size])
		if pad := want[lengthLen+u.Len() : size-crcLen]; len(bytes.Trim(pad, "\x00")) > 0 {
			// siw leaves old octets in the pad, and its CRC covers them.
			clear(pad)
			copy(want[size-crcLen:], got[size-crcLen:])
		}
		require.Equal(t, want, got)
		b = b[size:]
		n++
	}
	require.Equal(t, io.EOF, err)
	require.Empty(t, b)
	return n
}

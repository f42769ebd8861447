package mpa

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/mempool"
)

// reference is a de-framer that is slow and plain.
func reference(b []byte, crc bool) (ulpdus [][]byte, code Code) {
	for len(b) > 0 {
		if len(b) < 2 {
			return ulpdus, CodeClosed
		}
		n := int(b[0])<<8 + int(b[1])
		padded := 2 + n
		for padded%4 != 0 {
			padded++
		}
		if len(b) < padded+4 {
			return ulpdus, CodeClosed
		}
		sum := wiretest.CRC32C(b[:padded])
		if crc && !bytes.Equal(b[padded:padded+4], []byte{byte(sum), byte(sum >> 8), byte(sum >> 16), byte(sum >> 24)}) {
			return ulpdus, CodeCRC
		}
		ulpdus = append(ulpdus, b[2:2+n])
		b = b[padded+4:]
	}
	return ulpdus, 0
}

// referenceMarked is the same for a stream with markers, word by word, from
// position pos on. If repair is set it puts CRCs right on its way.
func referenceMarked(b []byte, pos uint64, crc, repair bool) (ulpdus [][]byte, code Code) {
	for at := 0; at < len(b); {
		start, header, wrong := at, -1, false
		var plain []byte
		for need := 4; len(plain) < need; {
			if len(b) < at+4 {
				return ulpdus, CodeClosed
			}
			word := b[at : at+4]
			if (pos+uint64(at))%512 == 0 {
				ptr := 0
				if header >= 0 {
					ptr = at - header
				}
				wrong = wrong || word[2] != byte(ptr>>8) || word[3]&0xfc != byte(ptr)
				at += 4
				continue
			}
			if header < 0 {
				header = at
				need = FPDUSize(int(word[0])<<8 + int(word[1]))
			}
			plain = append(plain, word...)
			at += 4
		}
		if repair {
			sum(b[start:at])
		}
		if c := wiretest.CRC32C(b[start : at-4]); crc && !bytes.Equal(b[at-4:at], []byte{byte(c), byte(c >> 8), byte(c >> 16), byte(c >> 24)}) {
			return ulpdus, CodeCRC
		}
		if wrong {
			return ulpdus, CodeMarker
		}
		ulpdus = append(ulpdus, plain[2:2+int(plain[0])<<8+int(plain[1])])
	}
	return ulpdus, 0
}

// checkNext reads a stream that holds b and nothing else, in pieces, and holds
// what comes out against a reference.
func checkNext(t require.TestingT, pool *mempool.Pool, b []byte, p Params, pos, seed uint64, largest int, want [][]byte, bad Code) {
	room := len(b) + FPDUSize(0) // small buffers make for many runs
	near, far := streamPair(testMSS, room)
	near.Rechunk(seed, largest)
	c := open(NewConn(near, pool), p)
	if p.MarkersIn {
		c.rx.marked.pos = pos
	}
	require.NoError(t, far.Writev([][]byte{b}))
	require.NoError(t, far.CloseWrite())
	var got [][]byte
	var err error
	for rounds := 0; err == nil; rounds++ {
		require.Less(t, rounds, 1000+10*len(b), "the end is noticed")
		var u *ULPDU
		var ok bool
		require.NoError(t, soon(func() { u, ok, err = c.Next() }))
		if ok {
			o := make([]byte, u.Len())
			require.Equal(t, len(o), u.CopyTo(o, 0))
			require.True(t, bytes.Equal(o[:min(len(o), MaxHead)], u.Head(MaxHead)))
			got = append(got, o)
		}
	}
	require.Equal(t, len(want), len(got))
	for i := range want {
		require.True(t, bytes.Equal(want[i], got[i]))
	}
	if bad == 0 {
		require.Equal(t, io.EOF, err)
	} else {
		require.Equal(t, bad, code2(err), "%v", err)
	}

	// What was read can be written and read again.
	x, y := streamPair(testMSS, room+2*markerLen)
	cx, cy := open(NewConn(x, pool), p), open(NewConn(y, pool), p)
	if p.MarkersIn {
		cx.tx.pos, cy.rx.marked.pos = pos, pos
	}
	for _, u := range got {
		if len(u) > MaxULPDU {
			break
		}
		require.True(t, cx.CanWrite(len(u)))
		require.NoError(t, cx.Write(u, nil))
		require.NoError(t, cx.Flush())
		again, ok, err := cy.Next()
		require.NoError(t, err)
		require.True(t, ok)
		o := make([]byte, again.Len())
		again.CopyTo(o, 0)
		require.True(t, bytes.Equal(u, o))
	}
}

func FuzzNext(f *testing.F) {
	stream, _ := vectorStream()
	for _, crc := range []bool{false, true} {
		f.Add(stream, uint64(1), uint8(7), crc)
		f.Add(stream[:len(stream)-5], uint64(2), uint8(0), crc)
		f.Add(wiretest.Frame(count(3000), true), uint64(3), uint8(200), crc)
		f.Add([]byte{0xff, 0xff, 1}, uint64(4), uint8(1), crc)
		f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0}, uint64(5), uint8(3), crc)
	}
	for _, v := range wiretest.Hostile() {
		f.Add(v.Octets, uint64(6), uint8(5), true)
	}
	pool := newPool(f, poolConfig)
	f.Fuzz(func(t *testing.T, b []byte, seed uint64, largest uint8, crc bool) {
		if len(b) > wideBuffer {
			return
		}
		want, bad := reference(b, crc)
		checkNext(t, pool, b, Params{CRC: crc}, 0, seed, int(largest), want, bad)
	})
}

func FuzzNextMarked(f *testing.F) {
	vs, start := marked()
	for _, crc := range []bool{false, true} {
		for i, v := range vs {
			f.Add(v.Octets, start[i], uint64(1), uint8(7), crc, false)
			f.Add(v.Octets, start[i]^4, uint64(1), uint8(0), crc, true)
		}
		f.Add(markedFrame(0, count(3000)), uint64(0), uint64(3), uint8(200), crc, true)
		f.Add([]byte{0, 0, 0, 0, 0xff, 0xff, 1}, uint64(512), uint64(4), uint8(1), crc, false)
		f.Add(make([]byte, 2048), uint64(0), uint64(5), uint8(3), crc, true)
	}
	pool := newPool(f, poolConfig)
	f.Fuzz(func(t *testing.T, b []byte, pos, seed uint64, largest uint8, crc, repair bool) {
		if len(b) > wideBuffer {
			return
		}
		b, pos = bytes.Clone(b), pos&^3 // FPDUs and markers are multiples of four octets
		want, bad := referenceMarked(b, pos, crc, repair)
		checkNext(t, pool, b, Params{CRC: crc, MarkersIn: true, MarkersOut: true}, pos, seed, int(largest), want, bad)
	})
}

// TestHostileStreams is what the fuzzers do, with octets that come near an
// FPDU: lengths that are short, and now and then a CRC that is right.
func TestHostileStreams(t *testing.T) {
	pool := newPool(t, poolConfig)
	stream := func(t *rapid.T) []byte {
		var b []byte
		for range rapid.IntRange(0, 6).Draw(t, "parts") {
			part := rapid.SliceOfN(rapid.Byte(), 0, 900).Draw(t, "octets")
			if len(part) > 5 && rapid.Bool().Draw(t, "short") {
				part[0], part[4] = 0, 0
			}
			b = append(b, part...)
		}
		return b
	}
	cut := func(t *rapid.T) (uint64, int) {
		return rapid.Uint64().Draw(t, "seed"), rapid.SampledFrom([]int{0, 1, 7, 300}).Draw(t, "largest")
	}
	for _, crc := range []bool{false, true} {
		name := map[bool]string{false: "CRC off", true: "CRC on"}[crc]
		t.Run("SEC-37 any octets, no markers, "+name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				b := stream(t)
				seed, largest := cut(t)
				want, bad := reference(b, crc)
				checkNext(t, pool, b, Params{CRC: crc}, 0, seed, largest, want, bad)
			})
		})
		t.Run("SEC-37 any octets, markers, "+name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				b := stream(t)
				seed, largest := cut(t)
				pos := rapid.Uint64().Draw(t, "pos") &^ 3
				want, bad := referenceMarked(b, pos, crc, rapid.Bool().Draw(t, "repair"))
				checkNext(t, pool, b, Params{CRC: crc, MarkersIn: true, MarkersOut: true}, pos, seed, largest, want, bad)
			})
		})
	}
	t.Run("SEC-37 any octets as a startup frame", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			b := rapid.SliceOfN(rapid.Byte(), 0, 700).Draw(t, "octets")
			if rapid.Bool().Draw(t, "key") {
				b = append([]byte(rapid.SampledFrom([]string{keyRequest, keyReply}).Draw(t, "which")), b...)
			}
			checkFrame(t, b)
		})
	})
}

// FuzzBlock plays the startup frames that a peer can make of a private-data
// block against both roles. The octets lead the private data.
func FuzzBlock(f *testing.F) {
	for _, block := range []string{"8010c008", "80004000", "3fff3fff", "ffffffff", "bffe7ffe", "00000000", ""} {
		f.Add(wiretest.Hex(block), uint8(flagEnhanced|flagCRC), uint8(2), uint8(0))
		f.Add(wiretest.Hex(block), uint8(0xff), uint8(1), uint8(0x5a))
	}
	f.Fuzz(func(t *testing.T, b []byte, flags, rev, policy uint8) {
		if len(b) <= MaxPrivate {
			checkBlock(t, b, flags, rev, policy)
		}
	})
}

// checkBlock lets a Request and a Reply with that private data meet a policy.
func checkBlock(t require.TestingT, b []byte, flags, rev, policy uint8) {
	on := func(i int) bool { return policy>>i&1 != 0 }
	cfg := Config{
		IRD: int(policy & 7), ORD: int(policy >> 5), MaxIRD: 32, NoCRC: on(0), ClientServer: on(1), Markers: on(2),
		RefuseMarkers: on(3), RequireORD: on(4), LargeFPDUs: on(5), OfferRTR: RTRKinds(policy >> 3 & 7), TakeRTR: RTRKinds(policy >> 2 & 7),
	}
	frame := func(key string) []byte {
		f := append([]byte(key), flags, rev)
		return append(binary.BigEndian.AppendUint16(f, uint16(len(b))), b...)
	}
	malformed := rev != 1 && rev != 2 || rev == 2 && flags&flagEnhanced != 0 && len(b) < enhancedLen
	near, far := streamPair(testMSS, 1024)
	c := NewConn(near, nil) // no FPDU is written
	require.NoError(t, far.Writev([][]byte{frame(keyRequest)}))
	req, ok, err := c.RecvRequest(cfg)
	require.Equal(t, malformed, err != nil && !errors.Is(err, ErrRefused))
	if ok {
		require.LessOrEqual(t, max(req.PeerIRD, req.PeerORD), DepthUnstated)
		p, err := c.Accept(cfg, nil)
		if err == nil {
			require.LessOrEqual(t, p.IRD, 32, "no more than our limit")
			require.LessOrEqual(t, p.ORD, cfg.ORD)
			require.False(t, p.PeerToPeer && p.RTR == RTRNone)
		} else {
			require.ErrorIs(t, err, ErrRefused)
		}
	}

	near, far = streamPair(testMSS, 1024)
	c = NewConn(near, nil)
	require.NoError(t, c.Request(cfg, nil))
	require.NoError(t, far.Writev([][]byte{frame(keyReply)}))
	rep, ok, err := c.RecvReply()
	if malformed {
		require.Equal(t, CodeFrame, code2(err))
	}
	if ok && !rep.Rejected && err == nil {
		require.LessOrEqual(t, rep.IRD, 32, "no more than our limit")
		require.LessOrEqual(t, rep.ORD, max(1, cfg.ORD))
	}
}

func TestHostileBlocks(t *testing.T) {
	t.Run("SEC-37 SEC-40 any private-data block, flags and policy", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			rev := rapid.SampledFrom([]uint8{0, 1, 2, 2, 2, 3}).Draw(t, "rev")
			flags := rapid.Byte().Draw(t, "flags") | rapid.SampledFrom([]byte{0, flagEnhanced}).Draw(t, "S")
			checkBlock(t, rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "block"), flags&^flagReject, rev, rapid.Byte().Draw(t, "policy"))
		})
	})
	t.Run("SEC-52 octets before the frame are not skipped: there is no other mode to come from", func(t *testing.T) {
		for _, before := range []string{"\n", "\x00", "220 ready\r\n", "EHLO example.org\r\nSTARTMPA\r\n", "MPA ID Re\n"} {
			c, near, far := newConn(t)
			write(t, far, append([]byte(before), wiretest.Hex(hexReq+"40 01 0000")...))
			_, ok, err := c.RecvRequest(Config{})
			require.False(t, ok, "%q", before)
			require.ErrorIs(t, err, ErrKey, "%q", before)
			require.True(t, near.Aborted())

			c, near, far = newConn(t)
			require.NoError(t, c.Request(Config{Rev1: true}, nil))
			octets, _ := near.Written()
			write(t, far, append([]byte(before), wiretest.Hex(hexRep+"40 01 0000")...))
			for range 2 {
				_, ok, err = c.RecvReply()
				require.False(t, ok, "%q", before)
				require.ErrorIs(t, err, ErrKey, "%q", before)
			}
			require.True(t, near.Aborted())
			require.False(t, c.CanWrite(0), "no FPDU, and so no STag")
			again, _ := near.Written()
			require.Equal(t, octets, again)
		}
	})
	t.Run("SEC-40 every depth in either word", func(t *testing.T) {
		for _, depth := range []uint16{0, 1, 2, 31, 32, 33, 127, 128, 0x1fff, 0x3ffd, 0x3ffe, 0x3fff} {
			for flags := range uint16(16) {
				in, out := depth|flags&3<<14, depth|flags>>2<<14
				b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, in), out)
				for policy := 0; policy < 256; policy += 5 {
					checkBlock(t, b, flagEnhanced|flagCRC, 2, uint8(policy))
				}
			}
		}
	})
}

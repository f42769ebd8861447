package pktio

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFaultsCheck(t *testing.T) {
	for _, f := range []Faults{
		{Loss: -0.1}, {Loss: 1.1}, {Duplicate: 2}, {Reorder: -1}, {Corrupt: math.NaN()}, {Delay: -1}, {Jitter: -1}, {CorruptOffsetMin: -1}, {Queue: -1},
	} {
		require.Error(t, f.Check(), "%+v", f)
		a, _ := newPipe(t, PipeConfig{})
		require.Panics(t, func() { NewFaulty(a, f) })
	}
	require.NoError(t, (&Faults{Loss: 1, Duplicate: 1, Reorder: 1, Corrupt: 1}).Check())
}

// diff returns where two frames differ, in bits.
func diff(a, b []byte) (bits []int) {
	for i := range a {
		for bit := range 8 {
			if (a[i]^b[i])&(1<<bit) != 0 {
				bits = append(bits, i*8+bit)
			}
		}
	}
	return bits
}

func TestFaultyCorrupts(t *testing.T) {
	const header4, header6, size = 54, 74, 200
	for _, v6 := range []bool{false, true} {
		for _, kind := range []tcpOpts{{v6: v6}, {v6: v6, partial: true}, {v6: v6, gso: 50}} {
			for _, fix := range []bool{false, true} {
				t.Run(fmt.Sprintf("v6=%v,partial=%v,gso=%d,fix=%v", v6, kind.partial, kind.gso, fix), func(t *testing.T) {
					header := header4
					if v6 {
						header = header6
					}
					y, b := newFaulty(t, PipeConfig{GSO: true, Depth: 8}, Faults{Seed: 1, Corrupt: 1, FixChecksum: fix, CorruptOffsetMin: 4})
					f := tcpFrame(t, pattern(size), kind)
					before := octets(&f)
					hit := map[int]bool{}
					for range 3000 {
						n, err := y.Send([]Frame{f})
						require.NoError(t, err)
						require.Equal(t, 1, n)
						rx := make([]Frame, 1)
						n, err = b.Recv(rx, 0)
						require.NoError(t, err)
						require.Equal(t, 1, n)
						require.Equal(t, fix, tcpOK(&rx[0]), "TCP notices unless the checksum was made good")
						require.Equal(t, f.GSO, rx[0].GSO)
						d := diff(before[header:], octets(&rx[0])[header:])
						require.Len(t, d, 1)
						hit[d[0]] = true
						for _, at := range diff(before[:header], octets(&rx[0])[:header]) {
							require.Contains(t, []int{header - 4, header - 3}, at/8, "nothing but the checksum differs in the headers")
						}
						if rx[0].NeedsCsum {
							require.True(t, fix)
							require.True(t, rx[0].FinishChecksum(rx[0].Data[0]))
							require.True(t, tcpOK(&rx[0]), "finished later it is right too")
						}
					}
					require.Equal(t, before, octets(&f), "the sender's octets are not touched")
					require.EqualValues(t, 3000, y.Stats().Corrupted)
					require.EqualValues(t, 3000, y.Stats().Sent)
					for bit := range size * 8 {
						if bit < 4*8 {
							require.NotContains(t, hit, bit, "before CorruptOffsetMin")
						}
					}
					require.Greater(t, len(hit), (size-4)*8*3/4, "anything else is hit sooner or later")
				})
			}
		}
	}
}

func TestFaultyCorruptsNothingItMayNot(t *testing.T) {
	y, b := newFaulty(t, PipeConfig{Checksum: true}, Faults{Corrupt: 1, CorruptOffsetMin: 10})
	broken := tcpFrame(t, pattern(100), tcpOpts{partial: true})
	broken.CsumStart = 1500
	for _, f := range []Frame{
		one(number(1))[0],
		tcpFrame(t, nil, tcpOpts{}),
		tcpFrame(t, pattern(10), tcpOpts{}),
		broken,
		looksUnfinished(t, tcpOpts{}),
		looksUnfinished(t, tcpOpts{v6: true}),
	} {
		before := octets(&f)
		_, err := y.Send([]Frame{f})
		require.NoError(t, err)
		_, got := recvAny(t, b)
		require.Equal(t, before, got)
	}
	require.Zero(t, y.Stats().Corrupted)
	_, err := y.Send([]Frame{tcpFrame(t, pattern(11), tcpOpts{})})
	require.NoError(t, err)
	require.EqualValues(t, 1, y.Stats().Corrupted)
}

// looksUnfinished returns a whole frame whose checksum is by chance the sum over the pseudo header: damage to it
// would go unnoticed where a receiver has to guess whether a checksum was left to the link.
func looksUnfinished(t *testing.T, o tcpOpts) Frame {
	for word := range 1 << 16 {
		payload := pattern(20)
		binary.BigEndian.PutUint16(payload, uint16(word))
		if f := tcpFrame(t, payload, o); unfinished(f.Data[0], f.Len()).NeedsCsum {
			require.True(t, tcpOK(&f))
			return f
		}
	}
	require.Fail(t, "no such frame")
	return Frame{}
}

func TestFaultyCorruptsAnywhere(t *testing.T) {
	for _, fix := range []bool{false, true} {
		y, b := newFaulty(t, PipeConfig{Checksum: true, Depth: 4}, Faults{Corrupt: 1, CorruptAnywhere: true, CorruptOffsetMin: 12, FixChecksum: fix})
		f := tcpFrame(t, pattern(20), tcpOpts{})
		before := octets(&f)
		hit := map[int]bool{}
		good := 0
		for range 5000 {
			_, err := y.Send([]Frame{f})
			require.NoError(t, err)
			rx, got := recvAny(t, b)
			d := diff(before, got)
			if !fix {
				require.Len(t, d, 1)
			}
			for _, bit := range d {
				hit[bit] = true
				require.GreaterOrEqual(t, bit, 12*8)
			}
			if inTCP := slices.ContainsFunc(d, func(bit int) bool { at := bit / 8; return at >= 34 && at != 50 && at != 51 }); inTCP {
				require.Equal(t, fix, tcpOK(&rx))
				good++
			}
		}
		require.NotZero(t, good)
		require.Len(t, hit, (len(before)-12)*8)
		require.EqualValues(t, 5000, y.Stats().Corrupted)
		_, err := y.Send(one(number(1)))
		require.NoError(t, err)
		_, got := recvAny(t, b)
		require.Len(t, diff(number(1), got), 1, "not only TCP")
	}
}

func recvAny(t *testing.T, p Port) (Frame, []byte) {
	t.Helper()
	rx := make([]Frame, 1)
	n, err := p.Recv(rx, 0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	b := octets(&rx[0])
	return Frame{Data: [][]byte{b}, Offload: rx[0].Offload}, b
}

package wiretest

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKnown holds the played implementations against what siw was seen to send, and
// against each other.
func TestKnown(t *testing.T) {
	kinds := map[string]PeerKind{}
	for _, k := range PeerKinds() {
		kinds[k.Name] = k
	}
	ours := Startup{Flags: FlagC | FlagS, Rev: 2, Private: Block(BlockA|1, BlockD|1)}
	for _, k := range Knowns() {
		t.Run(k.Name, func(t *testing.T) {
			want, ok := kinds[k.Name]
			if ok {
				require.Equal(t, string(want.Request.Octets()), string(k.Ask(1, 1).Octets()))
				if k.Rev == 2 {
					require.Equal(t, string(want.Reply.Octets()), string(k.Answer(t, ours, 1, 1).Octets()))
				}
			}
			rep := k.Answer(t, Startup{Flags: 0x0f, Rev: 1, Private: []byte("hello")}, 1, 1, 'y')
			require.Equal(t, "y", string(rep.Private))
			require.EqualValues(t, 1, rep.Rev)
			require.Equal(t, k.EchoRes, rep.Flags&0x0f != 0)
			require.Equal(t, k.NoMarkers, k.Answer(t, Startup{Flags: FlagM, Rev: 1}, 1, 1).Flags&FlagR != 0)
		})
	}
	// Terminates as captured and as standardised.
	siw, cxgb4 := Knowns()[0], Knowns()[2]
	header := Hex(`c1 42 57 4e bc 00 00 00 55 6b e8 d2 75 50`)
	require.Equal(t, SwappedTerminate().ULPDU(), siw.Terminate(0x1101, 114, header))
	for _, v := range FPDUs() {
		switch v.Name {
		case "TERM-1100":
			require.Equal(t, v.ULPDU(), cxgb4.Terminate(0x1100, 22, v.ULPDU()[18+6:]))
		case "TERM-0102":
			require.Equal(t, v.ULPDU(), cxgb4.Terminate(0x0102, 46, v.ULPDU()[18+6:]))
			swapped := siw.Terminate(0x0102, 46, v.ULPDU()[18+6:])
			require.Equal(t, Hex("10 02 07 00"), swapped[18:22])
		case "TERM-2002":
			require.Equal(t, v.ULPDU(), cxgb4.Terminate(0x2002, 0, nil))
		}
	}
}

// TestStalePad: old octets stand in the padding, and the CRC covers them.
func TestStalePad(t *testing.T) {
	here, there := net.Pipe()
	p := NewPeer(t, here)
	p.Play(Knowns()[0])
	for _, crc := range []bool{true, false} {
		p.CRC = crc
		u := Untagged(3, true, 0, 0, 1, 0, []byte("hello"))
		go p.Send(u)
		b := make([]byte, 64)
		n, err := there.Read(b)
		require.NoError(t, err)
		require.Equal(t, append(Frame(u, false)[:2+len(u)], 0x00, 0x40, 0x5a), b[:n-4])
		if crc {
			require.Equal(t, appendCRC(nil, b[:n-4]), b[n-4:n])
		} else {
			require.Equal(t, make([]byte, 4), b[n-4:n])
		}
	}
	require.NoError(t, there.Close())
}

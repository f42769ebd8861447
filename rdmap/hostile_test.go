package rdmap

import (
	"encoding/hex"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/mpa"
)

// scene is the setting of the hostile FPDUs: four regions at one address and a
// receive of 16 octets.
type scene struct {
	table      *ddp.Table
	s, r, w, p *region
	recv       *region
}

func newScene(t testing.TB) *scene {
	tab := ddp.NewTable()
	return &scene{
		table: tab,
		s:     fixedRegion(t, tab, 4096, testPD, remoteRights, base, 0x12345678),
		r:     fixedRegion(t, tab, 4096, testPD, remoteRights&^ddp.RemoteWrite, base, 0x22222201),
		w:     fixedRegion(t, tab, 4096, testPD, remoteRights&^ddp.RemoteRead, base, 0x44444401),
		p:     fixedRegion(t, tab, 4096, otherPD, remoteRights, base, 0x33333301),
		recv:  newRegion(t, tab, 16, testPD, ddp.LocalWrite),
	}
}

func (k *scene) untouched(t testing.TB) {
	t.Helper()
	for _, g := range []*region{k.s, k.r, k.w, k.p, k.recv} {
		g.untouched(t)
	}
}

// config is that of a responder with depths to spare.
func (k *scene) config() Config { return Config{Table: k.table, PD: testPD, IRD: 4, ORD: 4} }

func (k *scene) post(e *end) {
	e.recvs = append(e.recvs, RecvBuf{ID: 77, SGL: []SGE{k.recv.sge(0, 16)}})
}

// TestHostile sends each hostile FPDU alone on a fresh connection, followed in
// the same write by valid Writes and a Send, which have to be dropped unread.
// A second connection on the same table keeps working.
func TestHostile(t *testing.T) {
	busyTable := ddp.NewTable()
	ba, bb := newPair(t, 1448, 1<<16, Config{Table: busyTable, IRD: 2, ORD: 2}, Config{Table: busyTable, IRD: 2, ORD: 2})
	busy := newTraffic(t, ba, bb, 99)
	for _, c := range hostile {
		if c.code == 0 {
			continue // taken: see TestHarmless
		}
		t.Run(c.name+" "+c.what, func(t *testing.T) {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			k.post(e)
			bad := unhex(t, c.hex)
			more := fpdu(taggedSeg(0xc1, 0x40, k.s.stag, base, 9, 9, 9, 9))
			more = append(more, fpdu(untaggedSeg(0x41, 0x43, 0, 0, 1, 0, 8, 8, 8))...)
			peer.play(append(append([]byte{}, bad...), more...))
			settle(e)
			busy.round()

			want := termULPDU(c.code, bad[2:2+bad[1]])
			require.Equal(t, hex.EncodeToString(want), hex.EncodeToString(peer.expectFPDU()))
			peer.silent()
			require.True(t, e.TerminateSent())
			k.untouched(t)
			for _, ev := range e.events {
				require.Equal(t, FirstFPDU, ev.Kind, "nothing is delivered")
			}

			t.Run("RDM-51 RDM-64 DDP-49 DDP-52 over for good", func(t *testing.T) {
				peer.play(more)
				e.rxErr = nil
				settle(e)
				require.Error(t, e.rxErr)
				_, err := e.Submit(&Op{Kind: Send})
				require.ErrorIs(t, err, ErrStopped)
				_, err = e.Pump()
				require.ErrorIs(t, err, ErrStopped)
				e.Terminate(&Error{Type: TypeOperation, Code: CodeCatastrophic})
				settle(e)
				require.NoError(t, e.conn.CloseWrite())
				peer.silent()
				k.untouched(t)
			})
			busy.round()
		})
	}
}

// TestHarmless has those of the list that look strange and are right.
func TestHarmless(t *testing.T) {
	for _, c := range hostile {
		if c.code != 0 {
			continue
		}
		t.Run(c.name+" "+c.what, func(t *testing.T) {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			k.post(e)
			peer.play(unhex(t, c.hex))
			settle(e)
			require.NoError(t, e.rxErr)
			peer.silent()
			if c.name == "N38" {
				require.Equal(t, []Event{{Kind: FirstFPDU, KickTx: true}}, e.events, "RDM-09 no event for a Write")
				k.untouched(t)
				return
			}
			require.Equal(t, []Event{{Kind: FirstFPDU, KickTx: true}, {Kind: RecvDone, ID: 77, Len: 5}}, e.events)
			require.Equal(t, append([]byte("hello"), 0xa5, 0xa5), k.recv.mem[:7])
		})
	}
}

// TestHostileTypes has the error types the user of the stream sees.
func TestHostileTypes(t *testing.T) {
	for _, c := range hostile {
		if c.code == 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			k.post(e)
			peer.play(unhex(t, c.hex))
			settle(e)
			err := e.rxErr
			require.Empty(t, e.txErrs)
			var (
				own  *Error
				low  *ddp.Error
				link *mpa.Error
			)
			switch c.code >> 12 {
			case LayerRDMAP:
				require.ErrorAs(t, err, &own)
				require.Equal(t, c.code, uint16(own.Type)<<8|uint16(own.Code))
			case LayerDDP:
				require.ErrorAs(t, err, &low)
				require.Equal(t, c.code, 0x1000|uint16(low.Type)<<8|uint16(low.Code))
			default:
				require.ErrorAs(t, err, &link)
				require.Equal(t, c.code, 0x2000|uint16(link.Code))
			}
			require.NotEmpty(t, err.Error())
			var local *LocalError
			require.False(t, errors.As(err, &local))
		})
	}
}

// hostile holds FPDUs for a connection on which nothing was sent before, and
// the Terminate each of them earns; 0: none.
var hostile = []struct {
	name string
	code uint16
	what string
	hex  string
}{
	{"N01", 0x1100, "DDP-43 DDP-50 Write, unknown STag",
		"00 16 c1 40 0b ad ca fe 00 00 7f 12 00 00 10 00 00 01 02 03 04 05 06 07 1c 54 45 2a"},
	{"N02", 0x1100, "DDP-43 Write, right index, wrong key octet",
		"00 16 c1 40 12 34 56 79 00 00 7f 12 00 00 10 00 00 01 02 03 04 05 06 07 97 5d cf 73"},
	{"N03", 0x1100, "DDP-43 Write, STag 0, 8 octets",
		"00 16 c1 40 00 00 00 00 00 00 7f 12 00 00 10 00 00 01 02 03 04 05 06 07 f9 c6 9f 7f"},
	{"N04", 0x1101, "DDP-44 Write, TO = base-1",
		"00 16 c1 40 12 34 56 78 00 00 7f 12 00 00 0f ff 00 01 02 03 04 05 06 07 c9 87 9a 0b"},
	{"N05", 0x1101, "DDP-30 DDP-44 Write, last octet 1 past the end",
		"00 16 c1 40 12 34 56 78 00 00 7f 12 00 00 1f f9 00 01 02 03 04 05 06 07 87 49 71 b5"},
	{"N06", 0x1103, "DDP-46 Write, TO = 2^64-4, 8 octets",
		"00 16 c1 40 12 34 56 78 ff ff ff ff ff ff ff fc 00 01 02 03 04 05 06 07 68 1a be 0a"},
	{"N07", 0x1102, "RDM-10 Write to region R (no REMOTE_WRITE)",
		"00 16 c1 40 22 22 22 01 00 00 7f 12 00 00 10 00 00 01 02 03 04 05 06 07 85 5f 44 5b"},
	{"N08", 0x1102, "RDM-10 DDP-45 DDP-54 Write to region P (other PD)",
		"00 16 c1 40 33 33 33 01 00 00 7f 12 00 00 10 00 00 01 02 03 04 05 06 07 6c c6 2d e4"},
	{"N09", 0x1205, "DDP-42 Send, 17 octets into a 16-octet receive",
		"00 23 41 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 " +
			"00 00 00 00 0e 86 08 e8"},
	{"N10", 0x1203, "DDP-11 DDP-40 Send, first MSN is 2",
		"00 1a 41 43 00 00 00 00 00 00 00 00 00 00 00 02 00 00 00 00 00 01 02 03 04 05 06 07 ad 5f ec 9e"},
	{"N11", 0x1203, "DDP-11 DDP-40 Send, first MSN is 0",
		"00 1a 41 43 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01 02 03 04 05 06 07 67 2f 48 ff"},
	{"N12", 0x1204, "DDP-41 Send, first MO is 4",
		"00 1a 41 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 04 00 01 02 03 04 05 06 07 31 d5 55 11"},
	{"N13", 0x1204, "DDP-41 Send, MO = ffffffff",
		"00 1a 41 43 00 00 00 00 00 00 00 00 00 00 00 01 ff ff ff ff 00 01 02 03 04 05 06 07 a0 5d 05 1b"},
	{"N14", 0x1201, "DDP-38 Send on QN 4",
		"00 1a 41 43 00 00 00 00 00 00 00 04 00 00 00 01 00 00 00 00 00 01 02 03 04 05 06 07 8f 10 e5 b5"},
	{"N15", 0x1201, "DDP-38 RDM-04 Send on QN 1",
		"00 1a 41 43 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 00 01 02 03 04 05 06 07 5d cb 7e 90"},
	{"N16", 0x1206, "DDP-03 untagged DV=0",
		"00 1a 40 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 01 02 03 04 05 06 07 0d 93 34 e2"},
	{"N17", 0x1104, "DDP-03 tagged DV=2",
		"00 16 c2 40 12 34 56 78 00 00 7f 12 00 00 10 00 00 01 02 03 04 05 06 07 14 b2 15 c8"},
	{"N18", 0x0205, "RDM-01 Send with RV=0",
		"00 1a 41 03 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 01 02 03 04 05 06 07 d9 dc ff 63"},
	{"N19", 0x0206, "RDM-03 opcode C",
		"00 1a 41 4c 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 01 02 03 04 05 06 07 c8 4f 5e 71"},
	{"N20", 0x0206, "RDM-04 Write opcode, T=0",
		"00 1a 41 40 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 01 02 03 04 05 06 07 a5 4b c7 bd"},
	{"N21", 0x0206, "RDM-04 Send opcode, T=1",
		"00 16 c1 43 12 34 56 78 00 00 7f 12 00 00 10 00 00 01 02 03 04 05 06 07 ff 07 35 3b"},
	{"N22", 0x0206, "RDM-31 Read Response, none outstanding",
		"00 16 c1 42 12 34 56 78 00 00 7f 12 00 00 10 00 00 01 02 03 04 05 06 07 12 7a 3f 36"},
	{"N23", 0x0100, "RDM-16 Read Request, unknown source STag",
		"00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 aa bb cc 01 00 00 00 00 00 00 10 00 00 00 00 10 " +
			"0b ad ca fe 00 00 7f 12 00 00 10 00 8c 34 7c 6b"},
	{"N24", 0x0101, "RDM-16 Read Request, 1 octet past the end",
		"00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 aa bb cc 01 00 00 00 00 00 00 10 00 00 00 00 10 " +
			"12 34 56 78 00 00 7f 12 00 00 1f f1 93 1e 93 ad"},
	{"N25", 0x0102, "RDM-16 Read Request, region W (no REMOTE_READ)",
		"00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 aa bb cc 01 00 00 00 00 00 00 10 00 00 00 00 10 " +
			"44 44 44 01 00 00 7f 12 00 00 10 00 9d 02 3c 18"},
	{"N26", 0x0103, "RDM-16 DDP-54 Read Request, region P",
		"00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 aa bb cc 01 00 00 00 00 00 00 10 00 00 00 00 10 " +
			"33 33 33 01 00 00 7f 12 00 00 10 00 10 08 8c 6b"},
	{"N27", 0x0104, "RDM-16 Read Request, source TO 2^64-8, 16 octets",
		"00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 aa bb cc 01 00 00 00 00 00 00 10 00 00 00 00 10 " +
			"12 34 56 78 ff ff ff ff ff ff ff f8 5e b3 1c 36"},
	{"N28", 0x0207, "RDM-20 Read Request, L=0",
		"00 2e 01 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 aa bb cc 01 00 00 00 00 00 00 10 00 00 00 00 10 " +
			"12 34 56 78 00 00 7f 12 00 00 10 00 88 ec 30 11"},
	{"N29", 0x2003, "RDM-19 Read Request, ULPDU 45",
		"00 2d 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 aa bb cc 01 00 00 00 00 00 00 10 00 00 00 00 10 " +
			"12 34 56 78 00 00 7f 12 00 00 10 00 fc f1 f7 9a"},
	{"N30", 0x0207, "RDM-19 Read Request, ULPDU 50",
		"00 32 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 aa bb cc 01 00 00 00 00 00 00 10 00 00 00 00 10 " +
			"12 34 56 78 00 00 7f 12 00 00 10 00 00 00 00 00 f2 ce dc 42"},
	{"N31", 0x0109, "RDM-39 Send with Invalidate of plain region S",
		"00 1a 41 44 12 34 56 78 00 00 00 00 00 00 00 01 00 00 00 00 00 01 02 03 04 05 06 07 ee 2e f7 e2"},
	{"N32", 0x0207, "RDM-65 Immediate, 7 octets",
		"00 19 41 48 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00 ed d8 ca 2d"},
	{"N33", 0x0207, "RDM-74 FetchAdd, address base+4",
		"00 46 41 4a 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 07 12 34 56 78 00 00 7f 12 " +
			"00 00 10 04 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ff ff ff ff ff ff ff ff " +
			"51 c5 b7 2c"},
	{"N34", 0x0206, "RDM-82 atomic subcode 1",
		"00 46 41 4a 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 00 00 00 01 00 00 00 07 12 34 56 78 00 00 7f 12 " +
			"00 00 10 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ff ff ff ff ff ff ff ff " +
			"1e a1 39 86"},
	{"N35", 0x2003, "ULPDU_Length 0",
		"00 00 00 00 c7 4b 67 48"},
	{"N36", 0x2003, "DDP-05 ULPDU_Length 13",
		"00 0d c1 40 12 34 56 78 00 00 7f 12 00 00 10 00 a7 b9 c9 53"},
	{"N37", 0x2002, "CRC off by one bit",
		"00 16 c1 40 12 34 56 78 00 00 7f 12 00 00 10 00 00 01 02 03 04 05 06 07 c8 81 2b 2d"},
	{"N38", 0, "DDP-47 RDM-09 zero-length Write, STag 0, TO 2^64-1",
		"00 0e c1 40 00 00 00 00 ff ff ff ff ff ff ff ff ee fc 3d 6f"},
	{"N39", 0x0109, "RDM-39 Send with Invalidate of region P (other PD)",
		"00 1a 41 44 33 33 33 01 00 00 00 00 00 00 00 01 00 00 00 00 00 01 02 03 04 05 06 07 20 09 5e 8f"},
	{"N40", 0, "Send of hello, pad octets de ad be (delivered, byte_len 5)",
		"00 17 41 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 68 65 6c 6c 6f de ad be 7d 3c a8 83"},
}

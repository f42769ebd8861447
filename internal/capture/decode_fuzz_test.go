package capture

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/gopacket"

	"github.com/softrdma/softrdma/internal/wiretest"
)

// FuzzDecodeFPDU: nothing a file holds may panic the decoder, and what it took apart it
// builds again.
func FuzzDecodeFPDU(f *testing.F) {
	for _, v := range wiretest.FPDUs() {
		f.Add(v.Octets)
	}
	for _, v := range wiretest.Hostile() {
		f.Add(v.Octets)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var u FPDU
		n, err := u.MPA.decode(b)
		if err != nil {
			return
		}
		u.decode()
		buf := gopacket.NewSerializeBuffer()
		if err := u.serialize(buf); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b[:n], buf.Bytes()) {
			t.Fatalf("took apart % x\nbuilt      % x", b[:n], buf.Bytes())
		}
	})
}

func FuzzDecodeFile(f *testing.F) {
	files, err := filepath.Glob(filepath.Join(siwDir, "*.pcap"))
	if err != nil || len(files) == 0 {
		f.Fatal("no captures")
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		if len(b) < 8<<10 {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeFile(bytes.NewReader(b))
		if err != nil {
			return
		}
		for _, ses := range s.All {
			ses.Check()
			for _, fl := range []*Flow{&ses.Initiator, &ses.Responder} {
				again, err := fl.Encode()
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.HasPrefix(fl.Stream(), again) {
					t.Fatalf("built % x\nfrom  % x", again, fl.Stream())
				}
			}
		}
	})
}

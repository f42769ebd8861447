package wiretest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMarks builds and reads the golden streams, which were made apart from it.
func TestMarks(t *testing.T) {
	for _, v := range Marked() {
		t.Run(v.Name, func(t *testing.T) {
			m := Marks{CRC: true}
			var b []byte
			for _, u := range v.ULPDUs {
				b = append(b, m.Frame(u)...)
			}
			require.Equal(t, v.Octets, b)
			m = Marks{CRC: true}
			at := 0
			for _, u := range v.ULPDUs {
				got, _ := m.Read(t, func(n int) []byte { at += n; return b[at-n : at] })
				require.Equal(t, u, got)
			}
			require.Equal(t, len(b), at)
			require.EqualValues(t, len(b), m.Pos)
		})
	}
}

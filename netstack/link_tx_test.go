package netstack

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
)

// pickyPort sends what has at most most octets, three frames at a time, and refuses the rest.
type pickyPort struct {
	pktio.Port // of no use
	most       int
	took       []int // lengths
	calls      int
	dry        bool // no room at all
}

func (p *pickyPort) Send(batch []pktio.Frame) (int, error) {
	p.calls++
	if p.dry {
		return 0, nil
	}
	for i := range batch {
		if i == 3 {
			return i, nil
		}
		if batch[i].Len() > p.most {
			return i, pktio.ErrTooLong
		}
		p.took = append(p.took, batch[i].Len())
	}
	return len(batch), nil
}

func TestFlush(t *testing.T) {
	fill := func(l *link, lengths ...int) {
		for _, n := range lengths {
			f := l.nextFrame()
			f.Data = append(f.Data, make([]byte, n))
		}
	}
	t.Run("a frame that is too long is left out alone", func(t *testing.T) {
		p := &pickyPort{most: 100}
		l := &link{port: p, clock: newClock()}
		fill(l, 200, 10, 20, 101, 30, 40, 50, 60, 300)
		l.flush()
		require.Equal(t, []int{10, 20, 30, 40, 50, 60}, p.took)
		require.EqualValues(t, 6, l.count.framesOut.Load())
		require.EqualValues(t, 210, l.count.octetsOut.Load())
		require.EqualValues(t, 3, l.count.dropsOut.Load())
		require.Zero(t, l.tx.n)
		for i := range l.tx.frames {
			require.Empty(t, l.tx.frames[i].Data)
		}
	})
	t.Run("a port without room is asked again, for a while", func(t *testing.T) {
		p := &pickyPort{dry: true}
		l := &link{port: p, clock: newClock()}
		fill(l, 10, 20)
		l.flush()
		require.Greater(t, p.calls, 2)
		require.EqualValues(t, 2, l.count.dropsOut.Load())
		require.Zero(t, l.count.framesOut.Load())
	})
}

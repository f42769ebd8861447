package ring

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func newCQ(t testing.TB, depth int) *CQ {
	c, err := NewCQ(depth)
	require.NoError(t, err)
	return c
}

func fired(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestCQOrderAndOverflow(t *testing.T) {
	c := newCQ(t, 3)
	require.Equal(t, 4, c.Cap())
	for i := range uint64(4) {
		require.True(t, c.Push(&Completion{ID: i}))
	}
	require.False(t, c.Overrun())
	c.Arm(true)
	c.Park()
	require.False(t, c.Push(&Completion{ID: 99}), "full")
	require.True(t, c.Overrun())
	require.Equal(t, uint64(1), c.Lost())
	require.True(t, fired(c.C()), "whoever waits must learn of it")
	require.True(t, fired(c.W()))

	var dst [8]Completion
	require.Equal(t, 4, c.Poll(dst[:]), "nothing was overwritten")
	for i := range uint64(4) {
		require.Equal(t, i, dst[i].ID)
	}
	require.Zero(t, c.Poll(dst[:]))
	require.True(t, c.Push(&Completion{ID: 5}), "room again")
	require.True(t, c.Overrun(), "but the loss stays known")
	require.Equal(t, uint64(5), c.Pushed())
}

func TestCQArm(t *testing.T) {
	plain, sol, failed := Completion{}, Completion{Solicited: true}, Completion{Status: 5}
	for _, c := range []struct {
		name string
		arm  []bool // solicitedOnly of each Arm
		push Completion
		want bool
	}{
		{"not armed", nil, failed, false},
		{"any, plain", []bool{false}, plain, true},
		{"solicited, plain", []bool{true}, plain, false},
		{"solicited, solicited", []bool{true}, sol, true},
		{"solicited, failed", []bool{true}, failed, true},
		{"solicited then any, plain", []bool{true, false}, plain, true},
		{"any then solicited, plain", []bool{false, true}, plain, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := newCQ(t, 8)
			for _, a := range c.arm {
				q.Arm(a)
			}
			q.Push(&c.push)
			require.Equal(t, c.want, fired(q.C()))
			require.False(t, fired(q.C()), "one event, not two")
			require.False(t, fired(q.W()), "nobody parked")
			if c.want { // one shot: neither kind is armed any more
				q.Push(&failed)
				require.False(t, fired(q.C()))
			}
		})
	}
	t.Run("a completion from before the arming makes no event", func(t *testing.T) {
		q := newCQ(t, 8)
		q.Push(&failed)
		q.Arm(false)
		require.False(t, fired(q.C()))
	})
	t.Run("parked waiters and Arm do not take each other's token", func(t *testing.T) {
		q := newCQ(t, 8)
		q.Arm(true)
		q.Park()
		q.Push(&plain)
		require.True(t, fired(q.W()))
		require.False(t, fired(q.C()))
		q.Push(&sol)
		require.True(t, fired(q.C()))
		require.False(t, fired(q.W()))
	})
}

func TestCQClose(t *testing.T) {
	c := newCQ(t, 2)
	c.Push(&Completion{ID: 1})
	c.Arm(false)
	c.Park()
	c.Close()
	c.Close()
	for range 3 {
		require.True(t, fired(c.C()))
		require.True(t, fired(c.W()))
	}
	require.True(t, c.Push(&Completion{ID: 2}), "a late push signals nobody and harms nobody")
	c.Unpark()
	var dst [4]Completion
	require.Equal(t, 2, c.Poll(dst[:]))
}

// Many producers, many consumers: nothing is lost, nothing comes twice.
func TestStressCQ(t *testing.T) {
	const producers, consumers, each = 3, 3, 10_000
	c := newCQ(t, 64)
	var wg, pw sync.WaitGroup
	for p := range producers {
		pw.Go(func() {
			for i := range each {
				for c.Len() > 32 { // leave room for all producers: Push must not fail
					runtime.Gosched()
				}
				if !c.Push(&Completion{ID: uint64(p)<<32 | uint64(i), QP: uint32(p)}) {
					panic("overrun")
				}
			}
		})
	}
	seen := make([][]uint64, consumers)
	stop := make(chan struct{})
	for k := range consumers {
		wg.Go(func() {
			var dst [16]Completion
			for {
				n := c.Poll(dst[:])
				for i := range n {
					seen[k] = append(seen[k], dst[i].ID)
				}
				if n == 0 {
					select {
					case <-stop:
						return
					default:
						runtime.Gosched()
					}
				}
			}
		})
	}
	pw.Wait()
	for c.Len() > 0 {
		runtime.Gosched()
	}
	close(stop)
	wg.Wait()
	all := make(map[uint64]bool)
	for _, ids := range seen {
		last := map[uint64]uint64{}
		for _, id := range ids {
			require.False(t, all[id])
			all[id] = true
			p := id >> 32
			require.True(t, last[p] == 0 || last[p] < id, "order of one producer within one consumer")
			last[p] = id
		}
	}
	require.Len(t, all, producers*each)
}

// The arming side and the pushing side race: no wake-up is lost.
func TestArmRace(t *testing.T) {
	const rounds = 30_000
	c := newCQ(t, 4)
	go func() {
		for i := range rounds {
			for c.Len() != 0 {
				runtime.Gosched()
			}
			c.Push(&Completion{ID: uint64(i)})
		}
	}()
	var e [1]Completion
	for i := 0; i < rounds; {
		c.Park()
		if c.Poll(e[:]) == 1 {
			require.Equal(t, uint64(i), e[0].ID)
			i++
			continue
		}
		<-c.W() // hangs if the push saw no arm word and we saw no entry
	}
}

func BenchmarkCQ(b *testing.B) {
	c := newCQ(b, 64)
	var e [1]Completion
	b.ReportAllocs()
	for b.Loop() {
		c.Push(&e[0])
		c.Poll(e[:])
	}
}

package ring

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCQBatch(t *testing.T) {
	var dst [8]Completion
	t.Run("is seen as a whole, in order", func(t *testing.T) {
		c := newCQ(t, 4)
		c.Open()
		for i := range uint64(3) {
			require.True(t, c.Put(&Completion{ID: i}))
			require.Zero(t, c.Len())
			require.Zero(t, c.Poll(dst[:]))
		}
		c.Publish()
		require.Equal(t, 3, c.Poll(dst[:]))
		for i := range uint64(3) {
			require.Equal(t, i, dst[i].ID)
		}
	})
	t.Run("may be empty", func(t *testing.T) {
		c := newCQ(t, 4)
		c.Arm(false)
		c.Park()
		c.Open()
		c.Publish()
		require.False(t, fired(c.C()))
		require.False(t, fired(c.W()))
		require.True(t, c.Push(&Completion{}))
		require.True(t, fired(c.C()), "it is still asked for")
		require.True(t, fired(c.W()))
	})
	t.Run("that is too long keeps what fits", func(t *testing.T) {
		c := newCQ(t, 2)
		c.Arm(true)
		c.Park()
		c.Open()
		require.True(t, c.Put(&Completion{ID: 1}))
		require.True(t, c.Put(&Completion{ID: 2}))
		require.False(t, c.Put(&Completion{ID: 3}))
		c.Publish()
		require.True(t, c.Overrun())
		require.EqualValues(t, 1, c.Lost())
		require.True(t, fired(c.C()), "whoever waits must learn of it")
		require.True(t, fired(c.W()))
		require.Equal(t, 2, c.Poll(dst[:]))
		require.EqualValues(t, 2, dst[1].ID)
		require.True(t, c.Push(&Completion{ID: 4}))
	})
	for _, c := range []struct {
		name  string
		batch []Completion
		want  bool
	}{
		{"plain ones", []Completion{{}, {}}, false},
		{"a solicited one first", []Completion{{Solicited: true}, {}}, true},
		{"a solicited one last", []Completion{{}, {Solicited: true}}, true},
		{"a failed one in between", []Completion{{}, {Status: 5}, {}}, true},
	} {
		t.Run("an event for the next solicited one: "+c.name, func(t *testing.T) {
			q := newCQ(t, 4)
			q.Arm(true)
			q.Open()
			for i := range c.batch {
				require.True(t, q.Put(&c.batch[i]))
				require.False(t, fired(q.C()), "before it is published")
			}
			q.Publish()
			require.Equal(t, c.want, fired(q.C()))
			q.Arm(true)
			q.Open()
			require.True(t, q.Put(&Completion{}))
			q.Publish()
			require.False(t, fired(q.C()), "nothing is left over from the batch before")
		})
	}
}

package ddp

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// on is a stream of a protection domain and queue pair.
func on(pd PD, qp uint32) StreamID { return StreamID{PD: pd, QP: qp} }

// incKey returns s with the next key.
func incKey(s STag) STag { return s&^0xff | (s+1)&0xff }

const bindable = LocalWrite | MWBind

// scene is a table with a region of 64 octets in protection domain 1, that has no
// remote right, and a window of each type.
type scene struct {
	*Table
	mem        []byte
	r          STag
	base       uint64
	one, two   STag
	by         StreamID // of queue pair 5
	neighbours StreamID // of queue pair 6
}

func newScene(t testing.TB) *scene {
	s := &scene{Table: NewTable(), mem: make([]byte, 64), by: on(1, 5), neighbours: on(1, 6)}
	var err error
	s.r, s.base, err = s.Register(s.mem, 1, bindable)
	require.NoError(t, err)
	s.one, err = s.AllocWindow(1, 1)
	require.NoError(t, err)
	s.two, err = s.AllocWindow(1, 2)
	require.NoError(t, err)
	return s
}

// show is a binding of octets 16 to 47.
func (s *scene) show(w STag, a Access) Binding {
	return Binding{Window: w, Region: s.r, Off: 16, Len: 32, Access: a}
}

func (s *scene) check(w STag, by StreamID, off, n uint64, need Access) error {
	g, err := s.Check(w, by, s.base+off, n, need)
	g.Release()
	return err
}

func TestWindowRange(t *testing.T) {
	for _, typ := range []string{"type 1", "type 2"} {
		s := newScene(t)
		w := s.one
		if typ == "type 2" {
			w = s.two
		}
		t.Run("VRB-52 VRB-51 a window of "+typ+" shows nothing before it is bound", func(t *testing.T) {
			require.Equal(t, FaultSTag, fault(t, s.check(w, s.by, 16, 1, RemoteRead)))
			require.False(t, s.Valid(w))
		})
		require.NoError(t, s.Bind(s.show(w, RemoteRead|RemoteWrite), s.by))
		require.True(t, s.Valid(w))
		t.Run("SEC-14 VRB-54 DDP-56 "+typ+" shows its octets and no other", func(t *testing.T) {
			g, err := s.Check(w, s.by, s.base+16, 32, RemoteWrite)
			require.NoError(t, err)
			require.Same(t, &s.mem[16], &g.Bytes()[0])
			require.Equal(t, 32, cap(g.Bytes()))
			g.Release()
			require.NoError(t, s.check(w, s.by, 47, 1, RemoteRead))
			for _, r := range [][2]uint64{{15, 1}, {15, 2}, {47, 2}, {48, 1}, {16, 33}, {0, 64}, {0, 1}, {63, 1}} {
				require.Equal(t, FaultBounds, fault(t, s.check(w, s.by, r[0], r[1], RemoteRead)), "%d octets at %d", r[1], r[0])
			}
		})
		t.Run("VRB-54 SEC-06 "+typ+" grants its own rights, not those of the region", func(t *testing.T) {
			require.Equal(t, FaultAccess, fault(t, s.check(w, s.by, 16, 8, RemoteAtomic)))
			require.Equal(t, FaultAccess, fault(t, s.check(s.r, s.by, 16, 8, RemoteRead)), "the region has no remote right")
			require.Equal(t, FaultAccess, fault(t, s.check(s.r, s.by, 16, 8, RemoteWrite)))
			all, base, err := s.Register(s.mem, 1, bindable|RemoteRead|RemoteWrite|RemoteAtomic)
			require.NoError(t, err)
			narrow, err := s.AllocWindow(1, 1)
			require.NoError(t, err)
			require.NoError(t, s.Bind(Binding{Window: incKey(narrow), Region: all, Len: 64, Access: RemoteRead}, s.by))
			require.Equal(t, s.base, base)
			require.NoError(t, s.check(incKey(narrow), s.by, 0, 64, RemoteRead))
			require.Equal(t, FaultAccess, fault(t, s.check(incKey(narrow), s.by, 0, 64, RemoteWrite)))
		})
		t.Run("VRB-33 "+typ+" is no local memory", func(t *testing.T) {
			for _, need := range []Access{0, LocalWrite, RemoteRead} {
				_, err := s.Local(w, 1, 0, 8, need)
				require.Equal(t, FaultSTag, fault(t, err))
			}
		})
	}
}

func TestWindowOfOthers(t *testing.T) {
	s := newScene(t)
	require.NoError(t, s.Bind(s.show(s.one, RemoteRead), s.by))
	require.NoError(t, s.Bind(s.show(s.two, RemoteRead), s.by))
	t.Run("VRB-51 a window of type 1 serves every queue pair of its domain", func(t *testing.T) {
		require.NoError(t, s.check(s.one, s.neighbours, 16, 32, RemoteRead))
		require.Equal(t, FaultPD, fault(t, s.check(s.one, on(2, 5), 16, 32, RemoteRead)))
	})
	t.Run("VRB-52 VRB-55 DDP-45 DDP-54 SEC-03 SEC-15 a window of type 2 serves its queue pair alone", func(t *testing.T) {
		require.NoError(t, s.check(s.two, s.by, 16, 32, RemoteRead))
		for _, by := range []StreamID{s.neighbours, on(1, 0), on(2, 5), on(2, 6)} {
			require.Equal(t, FaultPD, fault(t, s.check(s.two, by, 16, 32, RemoteRead)), "%v", by)
		}
		require.Equal(t, FaultPD, fault(t, s.check(s.two, s.neighbours, 0, 99, RemoteWrite)), "before all else")
	})
	t.Run("VRB-55 the end of its queue pair leaves no usable window", func(t *testing.T) {
		s.Unbind(6)
		require.True(t, s.Valid(s.two))
		s.Unbind(5)
		require.False(t, s.Valid(s.two))
		require.Equal(t, FaultSTag, fault(t, s.check(s.two, s.by, 16, 32, RemoteRead)))
		require.NoError(t, s.check(s.one, s.neighbours, 16, 32, RemoteRead), "type 1 belongs to no queue pair")
		require.Empty(t, s.bound)
		require.NoError(t, s.Bind(s.show(s.two, RemoteRead), s.neighbours), "it can be bound for another one")
	})
}

func TestWindowLife(t *testing.T) {
	t.Run("VRB-51 a bind of type 1 takes the former key", func(t *testing.T) {
		s := newScene(t)
		require.NoError(t, s.Bind(s.show(s.one, RemoteRead), s.by))
		next := incKey(s.one)
		require.NoError(t, s.Bind(s.show(next, RemoteRead), s.neighbours))
		require.Equal(t, FaultSTag, fault(t, s.check(s.one, s.by, 16, 1, RemoteRead)))
		require.NoError(t, s.check(next, s.by, 16, 1, RemoteRead))
		require.EqualValues(t, 1, s.shard(s.r).find(s.r).windows.Load(), "one window is bound to the region")
	})
	t.Run("VRB-51 a bind of no octets unbinds type 1", func(t *testing.T) {
		s := newScene(t)
		require.NoError(t, s.Bind(s.show(s.one, RemoteRead), s.by))
		require.ErrorIs(t, s.Deregister(s.r), ErrBound)
		require.NoError(t, s.Bind(Binding{Window: s.one}, s.by))
		require.False(t, s.Valid(s.one))
		require.Equal(t, FaultSTag, fault(t, s.check(s.one, s.by, 16, 1, RemoteRead)))
		require.NoError(t, s.Deregister(s.r))
	})
	t.Run("VRB-52 type 2 is not bound again before it is invalid, nor to nothing", func(t *testing.T) {
		s := newScene(t)
		none := s.show(s.two, RemoteRead)
		none.Len = 0
		require.Equal(t, FaultBounds, fault(t, s.Bind(none, s.by)))
		require.NoError(t, s.Bind(s.show(s.two, RemoteRead), s.by))
		require.Equal(t, FaultBound, fault(t, s.Bind(s.show(incKey(s.two), RemoteWrite), s.by)))
		require.Equal(t, FaultBound, fault(t, s.Bind(none, s.by)))
		require.NoError(t, s.check(s.two, s.by, 16, 32, RemoteRead), "nothing has changed")
		require.EqualValues(t, 1, s.shard(s.r).find(s.r).windows.Load())
	})
	t.Run("SEC-15 VRB-52 a key of before the next bind is dead", func(t *testing.T) {
		s := newScene(t)
		require.NoError(t, s.Bind(s.show(s.two, RemoteRead), s.by))
		require.NoError(t, s.InvalidateLocal(s.two, s.by))
		require.Equal(t, FaultSTag, fault(t, s.check(s.two, s.by, 16, 1, RemoteRead)))
		next := s.two&^0xff | (s.two+7)&0xff
		require.NoError(t, s.Bind(s.show(next, RemoteRead), s.neighbours))
		require.NoError(t, s.check(next, s.neighbours, 16, 1, RemoteRead))
		require.Equal(t, FaultSTag, fault(t, s.check(s.two, s.by, 16, 1, RemoteRead)))
		require.Equal(t, FaultSTag, fault(t, s.check(s.two, s.neighbours, 16, 1, RemoteRead)))
		require.Equal(t, FaultSTag, fault(t, s.InvalidateLocal(s.two, s.neighbours)), "nor does it invalidate")
		require.Equal(t, FaultPD, fault(t, s.check(next, s.by, 16, 1, RemoteRead)))
	})
	t.Run("VRB-47 a region with windows stays, and so does its memory", func(t *testing.T) {
		s := newScene(t)
		require.NoError(t, s.Bind(s.show(s.one, RemoteWrite), s.by))
		require.NoError(t, s.Bind(s.show(s.two, RemoteWrite), s.by))
		require.ErrorIs(t, s.Deregister(s.r), ErrBound)
		require.NoError(t, s.check(s.one, s.by, 16, 1, RemoteWrite))
		require.NoError(t, s.Invalidate(s.two, s.by))
		require.ErrorIs(t, s.Deregister(s.r), ErrBound)
		require.NoError(t, s.Deregister(s.one), "a window ends bound or not")
		require.NoError(t, s.Deregister(s.r))
		require.Equal(t, FaultSTag, fault(t, s.Bind(s.show(s.two, RemoteWrite), s.by)))
		require.NoError(t, s.Deregister(s.two))
		require.Zero(t, s.Len())
		require.ErrorIs(t, s.Deregister(s.two), ErrUnknownSTag)
		require.Equal(t, FaultSTag, fault(t, s.Bind(s.show(s.two, RemoteWrite), s.by)), "nor is a freed window bound")
	})
	t.Run("SEC-13 invalid, wrong key, unbound and freed look the same", func(t *testing.T) {
		s := newScene(t)
		freed, err := s.AllocWindow(1, 2)
		require.NoError(t, err)
		require.NoError(t, s.Bind(s.show(freed, RemoteRead), s.by))
		require.NoError(t, s.Deregister(freed))
		require.NoError(t, s.Bind(s.show(s.two, RemoteRead), s.by))
		require.NoError(t, s.Invalidate(s.two, s.by))
		for _, w := range []STag{s.one, s.two, s.two ^ 1, freed, 0x01020304 ^ s.two} {
			_, err := s.Check(w, s.by, s.base+16, 1, RemoteRead)
			require.Equal(t, &Fault{FaultSTag, w}, err)
		}
	})
}

func TestBindChecks(t *testing.T) {
	s := newScene(t)
	reg := func(pd PD, a Access) STag {
		r, _, err := s.Register(make([]byte, 64), pd, a)
		require.NoError(t, err)
		return r
	}
	foreign, err := s.AllocWindow(2, 2)
	require.NoError(t, err)
	gone := reg(1, bindable)
	require.NoError(t, s.Deregister(gone))
	require.NoError(t, s.Bind(s.show(s.one, RemoteRead), s.by))
	for _, c := range []struct {
		name   string
		region STag
		window STag
		off, n uint64
		a      Access
		want   FaultKind
	}{
		{"a region without MW_BIND", reg(1, LocalWrite|RemoteRead|RemoteWrite), 0, 0, 8, RemoteRead, FaultAccess},
		{"a ZERO_BASED region", reg(1, bindable|ZeroBased), 0, 0, 8, RemoteRead, FaultAccess},
		{"a region of another domain", reg(2, bindable), 0, 0, 8, RemoteRead, FaultPD},
		{"a window of another domain", 0, foreign, 0, 8, RemoteRead, FaultPD},
		{"one octet past the region", 0, 0, 57, 8, RemoteRead, FaultBounds},
		{"an offset past the region", 0, 0, 65, 1, RemoteRead, FaultBounds},
		{"offset and length wrap", 0, 0, 1<<64 - 8, 16, RemoteRead, FaultBounds},
		{"a length of 2^64-1", 0, 0, 1, 1<<64 - 1, RemoteRead, FaultBounds},
		{"REMOTE_WRITE on a region without LOCAL_WRITE", reg(1, MWBind), 0, 0, 8, RemoteWrite, FaultAccess},
		{"REMOTE_ATOMIC on a region without LOCAL_WRITE", reg(1, MWBind), 0, 0, 8, RemoteAtomic, FaultAccess},
		{"REMOTE_READ on a region without LOCAL_WRITE", reg(1, MWBind), 0, 0, 8, RemoteRead, 0},
		{"a local right", 0, 0, 0, 8, LocalWrite, FaultAccess},
		{"the right to bind", 0, 0, 0, 8, MWBind, FaultAccess},
		{"a window on a window", s.one, 0, 0, 8, RemoteRead, FaultSTag},
		{"an unknown region", 0x01020304 ^ s.r, 0, 0, 8, RemoteRead, FaultSTag},
		{"a region that is gone", gone, 0, 0, 8, RemoteRead, FaultSTag},
		{"a region in place of the window", 0, s.r, 0, 8, RemoteRead, FaultSTag},
		{"an unknown window", 0, 0x01020304 ^ s.two, 0, 8, RemoteRead, FaultSTag},
		{"the last octet", 0, 0, 63, 1, RemoteRead | RemoteWrite | RemoteAtomic, 0},
		{"the whole", 0, 0, 0, 64, 0, 0},
	} {
		t.Run("VRB-53 "+c.name, func(t *testing.T) {
			b := Binding{Window: s.two, Region: s.r, Off: c.off, Len: c.n, Access: c.a}
			if c.region != 0 {
				b.Region = c.region
			}
			if c.window != 0 {
				b.Window = c.window
			}
			before := s.shard(s.r).find(s.r).windows.Load()
			require.Equal(t, c.want, fault(t, s.Bind(b, s.by)))
			require.Equal(t, c.want == 0, s.Valid(s.two))
			if c.want != 0 {
				require.Equal(t, before, s.shard(s.r).find(s.r).windows.Load(), "a bind that failed holds nothing")
				return
			}
			require.NoError(t, s.InvalidateLocal(s.two, s.by))
		})
	}
	t.Run("VRB-53 a type 2 window needs a queue pair", func(t *testing.T) {
		require.Equal(t, FaultPD, fault(t, s.Bind(s.show(s.two, RemoteRead), on(1, 0))))
	})
}

func TestInvalidationMatrix(t *testing.T) {
	type tag struct {
		name string
		make func(s *scene) STag
		// What comes of an invalidation by the peer and by the owner: on the queue
		// pair that has bound it, on another one, in another domain.
		peer, local [3]FaultKind
	}
	same := func(k FaultKind) [3]FaultKind { return [3]FaultKind{k, k, FaultPD} }
	bind := func(s *scene, w STag) STag {
		require.NoError(t, s.Bind(s.show(w, RemoteRead), s.by))
		return w
	}
	fastReg := func(s *scene, a Access) STag {
		f, _, err := s.AllocFast(make([]byte, 64), 1)
		require.NoError(t, err)
		require.NoError(t, s.Renew(f, s.by, a))
		return f
	}
	for _, c := range []tag{
		{"a region of Register", func(s *scene) STag { return s.r }, same(FaultKept), same(FaultKept)},
		{"a window of type 1, bound", func(s *scene) STag { return bind(s, s.one) }, same(FaultKept), same(FaultKept)},
		{"a window of type 1, unbound", func(s *scene) STag { return s.one }, same(FaultKept), same(FaultKept)},
		{"a window of type 2, bound", func(s *scene) STag { return bind(s, s.two) },
			[3]FaultKind{0, FaultPD, FaultPD}, [3]FaultKind{0, FaultPD, FaultPD}},
		{"a window of type 2, invalid", func(s *scene) STag { return s.two }, same(0), same(0)},
		{"a fast region with a remote right", func(s *scene) STag { return fastReg(s, RemoteRead) }, same(0), same(0)},
		{"a fast region with local rights alone", func(s *scene) STag { return fastReg(s, bindable) }, same(FaultKept), same(0)},
		{"a fast region with a window", func(s *scene) STag {
			f := fastReg(s, bindable|RemoteRead)
			require.NoError(t, s.Bind(Binding{Window: s.two, Region: f, Len: 8, Access: RemoteRead}, s.by))
			return f
		}, same(FaultKept), same(FaultBound)},
		{"an unknown STag", func(s *scene) STag { return s.two ^ 1 }, [3]FaultKind{FaultSTag, FaultSTag, FaultSTag}, [3]FaultKind{FaultSTag, FaultSTag, FaultSTag}},
		{"STag 0", func(s *scene) STag { return 0 }, [3]FaultKind{FaultSTag, FaultSTag, FaultSTag}, [3]FaultKind{FaultSTag, FaultSTag, FaultSTag}},
	} {
		who := []string{"", " by another queue pair", " by another domain"}
		for i, name := range who {
			t.Run("VRB-50 RDM-39 SEC-08 the peer invalidates "+c.name+name, func(t *testing.T) {
				s := newScene(t)
				w, by := c.make(s), []StreamID{s.by, s.neighbours, on(2, 5)}[i]
				was := s.Valid(w)
				require.Equal(t, c.peer[i], fault(t, s.CanInvalidate(w, by)))
				require.Equal(t, was, s.Valid(w), "CanInvalidate changes nothing")
				require.Equal(t, c.peer[i], fault(t, s.Invalidate(w, by)))
				require.Equal(t, was && c.peer[i] != 0, s.Valid(w), "it is invalid if that was permitted, else as before")
			})
			t.Run("VRB-49 the owner invalidates "+c.name+name, func(t *testing.T) {
				s := newScene(t)
				w, by := c.make(s), []StreamID{s.by, s.neighbours, on(2, 5)}[i]
				was := s.Valid(w)
				require.Equal(t, c.local[i], fault(t, s.InvalidateLocal(w, by)))
				require.Equal(t, was && c.local[i] != 0, s.Valid(w))
				if c.local[i] == 0 {
					require.NoError(t, s.InvalidateLocal(w, by), "again: RDM-41")
				}
			})
		}
	}
}

func TestFastRegion(t *testing.T) {
	t.Run("VRB-48 a fast region lives from OpRegMR to invalidation, again and again", func(t *testing.T) {
		s := newScene(t)
		mem := make([]byte, 64)
		f, base, err := s.AllocFast(mem, 1)
		require.NoError(t, err)
		_, err = s.Local(f, 1, 0, 8, 0)
		require.Equal(t, FaultSTag, fault(t, err), "invalid at first")
		old := f
		for i, a := range []Access{RemoteRead, LocalWrite | RemoteWrite, RemoteRead} {
			f = incKey(f)
			require.NoError(t, s.Renew(f, []StreamID{s.by, s.neighbours}[i%2], a))
			require.True(t, s.Valid(f))
			require.Equal(t, FaultBound, fault(t, s.Renew(f, s.by, a)), "it has to be invalid")
			g, err := s.Check(f, s.by, base+8, 56, a)
			require.NoError(t, err)
			require.Same(t, &mem[8], &g.Bytes()[0])
			g.Release()
			_, err = s.Check(f, s.by, base, 8, RemoteAtomic)
			require.Equal(t, FaultAccess, fault(t, err))
			_, err = s.Check(old, s.by, base, 8, 0)
			require.Equal(t, FaultSTag, fault(t, err), "the key of before")
			require.NoError(t, s.Invalidate(f, s.by))
			old = f
		}
		require.Equal(t, FaultPD, fault(t, s.Renew(f, on(2, 5), RemoteRead)))
		require.Equal(t, FaultAccess, fault(t, s.Renew(f, s.by, RemoteRead|ZeroBased)))
		require.Equal(t, FaultSTag, fault(t, s.Renew(s.r, s.by, RemoteRead)), "a region of Register is not renewed")
		require.Equal(t, FaultSTag, fault(t, s.Renew(s.two, s.by, RemoteRead)), "nor a window")
		require.NoError(t, s.Deregister(old), "by any key")
		require.Equal(t, FaultSTag, fault(t, s.Renew(f, s.by, RemoteRead)))
		_, _, err = s.AllocFast(nil, 1)
		require.ErrorIs(t, err, ErrNoMemory)
	})
}

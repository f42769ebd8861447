package verbs

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/ring"
)

// withKeys adds memory windows and fast registration to the fake provider. It
// binds whatever it is told to.
func (f *fake) withKeys(p Provider) Provider {
	f.valid = map[Key]bool{}
	take := func() Key {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.next += 0x100
		f.valid[f.next>>8] = false
		return f.next
	}
	p.AllocMW = func(uint32, MWType) (Key, error) {
		if f.regErr != nil {
			return 0, f.regErr
		}
		return take(), nil
	}
	p.DeallocMW = func(k Key) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.log = append(f.log, "dealloc")
		delete(f.valid, k>>8)
		return f.deregErr
	}
	p.AllocFastMR = func(_ uint32, mem []byte, _ Access) (Key, uint64, error) { return take(), 0x1000, nil }
	p.KeyValid = func(k Key) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.valid[k>>8]
	}
	return p
}

// key runs under f.mu.
func (f *fake) key(w ring.WQE) WCStatus {
	if w.Op() == ring.WRLocalInv {
		f.valid[Key(w.Inv())>>8] = false
		return WCSuccess
	}
	b := w.Bind()
	f.valid[Key(b.Key)>>8] = w.Op() == ring.WRRegMR || b.Len > 0
	f.binds = append(f.binds, b)
	return WCSuccess
}

// newKeyRig is a rig of a device with windows.
func newKeyRig(t *testing.T, attr DeviceAttr) *rig {
	t.Helper()
	r := &rig{f: newFake()}
	r.dev = NewDevice(r.f.withKeys(r.f.provider(attr)))
	t.Cleanup(func() { require.NoError(t, r.dev.Close()) })
	var err error
	r.pd, err = r.dev.AllocPD()
	require.NoError(t, err)
	r.cq, err = r.dev.CreateCQ(CQConfig{})
	require.NoError(t, err)
	r.a, err = r.pd.CreateQP(QPConfig{SendCQ: r.cq, MaxSendWR: 4})
	require.NoError(t, err)
	r.f.connect(r.a, r.a)
	r.mr, err = r.pd.AllocMR(4096, AccessLocalWrite|AccessMWBind)
	require.NoError(t, err)
	return r
}

func (r *rig) window(t *testing.T, typ MWType) *MW {
	t.Helper()
	w, err := r.pd.AllocMW(typ)
	require.NoError(t, err)
	return w
}

func TestKeyInc(t *testing.T) {
	t.Run("VRB-52 the last octet counts on, the rest stays", func(t *testing.T) {
		require.Equal(t, Key(0x12345601), Key(0x12345600).Inc())
		require.Equal(t, Key(0x12345600), Key(0x123456ff).Inc())
		require.Equal(t, Key(0xffffff00), Key(0xffffffff).Inc())
	})
}

func TestAllocMW(t *testing.T) {
	r := newKeyRig(t, DeviceAttr{MaxMW: 2})
	t.Run("VRB-51 VRB-52 a window shows nothing at first", func(t *testing.T) {
		for _, typ := range []MWType{MWType1, MWType2} {
			w := r.window(t, typ)
			require.Equal(t, typ, w.Type())
			require.Same(t, r.pd, w.PD())
			require.NotZero(t, w.Key())
			require.Equal(t, RemoteBuf{RKey: w.Key()}, w.Remote())
			require.False(t, w.Valid())
			require.Equal(t, fmt.Sprintf("mw type %d addr 0x0 rkey %v len 0", typ, w.Key()), w.String())
			require.Equal(t, 1, r.dev.Stats().MWs)
			require.NoError(t, w.Close())
			require.NoError(t, w.Close(), "the second Close is nil")
			require.Zero(t, r.dev.Stats().MWs)
		}
	})
	t.Run("VRB-03 too many are ENOMEM", func(t *testing.T) {
		a, b := r.window(t, MWType1), r.window(t, MWType2)
		_, err := r.pd.AllocMW(MWType1)
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.NoError(t, a.Close())
		c := r.window(t, MWType1)
		require.NoError(t, b.Close())
		require.NoError(t, c.Close())
	})
	t.Run("errors", func(t *testing.T) {
		for _, typ := range []MWType{0, 3} {
			_, err := r.pd.AllocMW(typ)
			require.ErrorIs(t, err, syscall.EINVAL)
		}
		r.f.regErr = errors.New("other")
		_, err := r.pd.AllocMW(MWType1)
		require.ErrorIs(t, err, r.f.regErr)
		r.f.regErr = nil
		require.Zero(t, r.dev.Stats().MWs, "it does not count")
		w := r.window(t, MWType1)
		r.f.deregErr = errors.New("other")
		require.ErrorIs(t, w.Close(), r.f.deregErr)
		r.f.deregErr = nil
		require.NoError(t, w.Close())
		pd, err := r.dev.AllocPD()
		require.NoError(t, err)
		require.NoError(t, pd.Close())
		_, err = pd.AllocMW(MWType1)
		require.ErrorIs(t, err, ErrClosed)
		_, err = pd.AllocFastMR(8)
		require.ErrorIs(t, err, ErrClosed)
		_, _, none := newDevice(t, DeviceAttr{})
		_, err = none.AllocMW(MWType1)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		_, err = none.AllocFastMR(8)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		_, err = r.pd.AllocFastMR(0)
		require.ErrorIs(t, err, syscall.EINVAL)
	})
	t.Run("VRB-01 VRB-55 the close of a domain closes its windows, before its regions", func(t *testing.T) {
		pd, err := r.dev.AllocPD()
		require.NoError(t, err)
		_, err = pd.AllocMW(MWType2)
		require.NoError(t, err)
		_, err = pd.AllocMR(8, 0)
		require.NoError(t, err)
		_, err = pd.CreateQP(QPConfig{})
		require.NoError(t, err)
		r.f.log = nil
		require.NoError(t, pd.Close())
		require.Equal(t, []string{"qp", "dealloc", "dereg"}, r.f.log)
		require.Zero(t, r.dev.Stats().MWs)
	})
}

func TestPostLocalChecks(t *testing.T) {
	r := newKeyRig(t, DeviceAttr{MaxMW: 10})
	other := newKeyRig(t, DeviceAttr{MaxMW: 10})
	one, two, gone := r.window(t, MWType1), r.window(t, MWType2), r.window(t, MWType1)
	require.NoError(t, gone.Close())
	fast, err := r.pd.AllocFastMR(4096)
	require.NoError(t, err)
	goneMR, err := r.pd.AllocFastMR(8)
	require.NoError(t, err)
	require.NoError(t, goneMR.Close())
	foreign, err := other.pd.AllocFastMR(8)
	require.NoError(t, err)
	sgl := []SGE{r.mr.SGE(8, 16)}
	const rr = AccessRemoteRead

	for _, c := range []struct {
		name string
		wr   SendWR
		want error // nil: accepted
	}{
		{"VRB-28 OpLocalInv of key 0", SendWR{Op: OpLocalInv}, syscall.EINVAL},
		{"VRB-28 OpLocalInv with an SGE", SendWR{Op: OpLocalInv, Inv: 1, SGL: sgl}, syscall.EINVAL},
		{"VRB-28 OpLocalInv inline", SendWR{Op: OpLocalInv, Inv: 1, Inline: []byte{1}}, syscall.EINVAL},
		{"VRB-28 OpBindMW inline", SendWR{Op: OpBindMW, MW: one, SGL: sgl, Flags: SendInline}, syscall.EINVAL},
		{"VRB-28 OpBindMW with two SGEs", SendWR{Op: OpBindMW, MW: one, SGL: append(sgl, sgl...)}, syscall.EINVAL},
		{"no window", SendWR{Op: OpBindMW, SGL: sgl, Access: rr}, syscall.EINVAL},
		{"a window that is closed", SendWR{Op: OpBindMW, MW: gone, SGL: sgl, Access: rr}, syscall.EINVAL},
		{"SEC-54 a window of another device", SendWR{Op: OpBindMW, MW: other.window(t, MWType1), SGL: sgl, Access: rr}, syscall.EINVAL},
		{"SEC-54 a region of another device", SendWR{Op: OpBindMW, MW: one, SGL: []SGE{other.mr.SGE(0, 8)}, Access: rr}, syscall.EINVAL},
		{"no region", SendWR{Op: OpBindMW, MW: one, SGL: []SGE{{Len: 8}}, Access: rr}, syscall.EINVAL},
		{"a negative length", SendWR{Op: OpBindMW, MW: one, SGL: []SGE{r.mr.SGE(0, -1)}, Access: rr}, syscall.EINVAL},
		{"a negative offset", SendWR{Op: OpBindMW, MW: one, SGL: []SGE{r.mr.SGE(-1, 8)}, Access: rr}, syscall.EINVAL},
		{"SEC-06 a local right", SendWR{Op: OpBindMW, MW: one, SGL: sgl, Access: rr | AccessLocalWrite}, syscall.EINVAL},
		{"SEC-06 the right to bind", SendWR{Op: OpBindMW, MW: one, SGL: sgl, Access: rr | AccessMWBind}, syscall.EINVAL},
		{"a zero based window", SendWR{Op: OpBindMW, MW: one, SGL: sgl, Access: rr | AccessZeroBased}, syscall.EINVAL},
		{"VRB-51 a key for type 1", SendWR{Op: OpBindMW, MW: one, SGL: sgl, Access: rr, Key: one.Key().Inc()}, syscall.EINVAL},
		{"VRB-52 a key of another index for type 2", SendWR{Op: OpBindMW, MW: two, SGL: sgl, Access: rr, Key: two.Key() + 0x100}, syscall.EINVAL},
		{"VRB-52 no octets for type 2", SendWR{Op: OpBindMW, MW: two, Access: rr}, syscall.EINVAL},
		{"VRB-52 an SGE of no octets for type 2", SendWR{Op: OpBindMW, MW: two, SGL: []SGE{r.mr.SGE(0, 0)}, Access: rr}, syscall.EINVAL},
		{"VRB-48 no region to register", SendWR{Op: OpRegMR, Access: rr}, syscall.EINVAL},
		{"VRB-48 a region of RegMR", SendWR{Op: OpRegMR, MR: r.mr, Access: rr}, syscall.EINVAL},
		{"VRB-48 a region that is closed", SendWR{Op: OpRegMR, MR: goneMR, Access: rr}, syscall.EINVAL},
		{"VRB-48 SEC-54 a region of another device", SendWR{Op: OpRegMR, MR: foreign, Access: rr}, syscall.EINVAL},
		{"VRB-48 VRB-43 REMOTE_WRITE without LOCAL_WRITE", SendWR{Op: OpRegMR, MR: fast, Access: AccessRemoteWrite}, syscall.EINVAL},
		{"VRB-48 zero based", SendWR{Op: OpRegMR, MR: fast, Access: rr | AccessZeroBased}, syscall.EINVAL},
		{"VRB-48 a key of another index", SendWR{Op: OpRegMR, MR: fast, Access: rr, Key: fast.Key() + 0x100}, syscall.EINVAL},
		{"VRB-48 with an SGE", SendWR{Op: OpRegMR, MR: fast, Access: rr, SGL: sgl}, syscall.EINVAL},

		{"VRB-28 OpLocalInv", SendWR{Op: OpLocalInv, Inv: 0x01020304}, nil},
		{"VRB-51 no octets for type 1", SendWR{Op: OpBindMW, MW: one}, nil},
		{"VRB-53 what the provider judges: a region without the right, octets past its end",
			SendWR{Op: OpBindMW, MW: one, SGL: []SGE{{MR: fast, Off: 5000, Len: 8}}, Access: rr}, nil},
		{"VRB-52 any last octet", SendWR{Op: OpBindMW, MW: two, SGL: sgl, Key: two.Key() ^ 0x80}, nil},
		{"VRB-48 any last octet", SendWR{Op: OpRegMR, MR: fast, Access: rr, Key: fast.Key() ^ 0x80}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			keys := []Key{one.Key(), two.Key(), fast.Key()}
			before := r.dev.Stats().SendsPosted
			n, err := r.a.PostSend([]SendWR{c.wr})
			if c.want == nil {
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.Equal(t, before+1, r.dev.Stats().SendsPosted)
				return
			}
			require.ErrorIs(t, err, c.want)
			require.Zero(t, n)
			require.Equal(t, before, r.dev.Stats().SendsPosted, "VRB-27 the bad one leaves no trace")
			require.Equal(t, keys, []Key{one.Key(), two.Key(), fast.Key()})
		})
	}
}

func TestPostBind(t *testing.T) {
	t.Run("VRB-51 VRB-52 what a bind says, and the key that is known from the post on", func(t *testing.T) {
		r := newKeyRig(t, DeviceAttr{MaxMW: 2})
		one, two := r.window(t, MWType1), r.window(t, MWType2)
		k1, k2 := one.Key(), two.Key()
		chosen := k2 ^ 0x55
		n, err := r.a.PostSend([]SendWR{
			{Op: OpBindMW, MW: one, SGL: []SGE{r.mr.SGE(8, 16)}, Access: AccessRemoteRead},
			{Op: OpBindMW, MW: two, SGL: []SGE{r.mr.SGE(0, 4096)}, Access: AccessRemoteWrite | AccessRemoteAtomic, Key: chosen},
			{Op: OpBindMW, MW: one, SGL: []SGE{r.mr.SGE(4095, 1)}, Access: AccessRemoteRead},
			{Op: OpBindMW, MW: one},
		})
		require.NoError(t, err)
		require.Equal(t, 4, n)
		region := uint32(r.mr.Key())
		require.Equal(t, []ring.Bind{
			{Key: uint32(k1.Inc()), Region: region, Off: 8, Len: 16, Access: uint8(AccessRemoteRead)},
			{Key: uint32(chosen), Region: region, Len: 4096, Access: uint8(AccessRemoteWrite | AccessRemoteAtomic)},
			{Key: uint32(k1.Inc().Inc()), Region: region, Off: 4095, Len: 1, Access: uint8(AccessRemoteRead)},
			{Key: uint32(k1.Inc().Inc().Inc())},
		}, r.f.binds)
		require.Equal(t, RemoteBuf{RKey: k1.Inc().Inc().Inc()}, one.Remote())
		require.False(t, one.Valid())
		require.Equal(t, RemoteBuf{Addr: r.mr.Remote().Addr, RKey: chosen, Len: 4096}, two.Remote())
		require.True(t, two.Valid())
		require.Equal(t, chosen, two.Key())
		_, err = r.a.PostSend([]SendWR{{Op: OpLocalInv, Inv: chosen, Flags: SendSignaled}})
		require.NoError(t, err)
		require.False(t, two.Valid())
		require.Equal(t, OpLocalInv, poll(t, r.cq)[0].Op)
		require.NoError(t, two.Close())
		require.False(t, two.Valid())
	})
	t.Run("a full queue changes no key", func(t *testing.T) {
		r := newKeyRig(t, DeviceAttr{MaxMW: 2})
		r.f.setHold(true)
		w := r.window(t, MWType1)
		fast, err := r.pd.AllocFastMR(8)
		require.NoError(t, err)
		bind := SendWR{Op: OpBindMW, MW: w, SGL: []SGE{r.mr.SGE(0, 8)}}
		n, err := r.a.PostSend([]SendWR{bind, bind, bind, bind, bind})
		require.ErrorIs(t, err, ErrQueueFull)
		require.Equal(t, 4, n)
		key, fastKey := w.Key(), fast.Key()
		_, err = r.a.PostSend([]SendWR{bind})
		require.ErrorIs(t, err, ErrQueueFull)
		_, err = r.a.PostSend([]SendWR{{Op: OpRegMR, MR: fast}})
		require.ErrorIs(t, err, ErrQueueFull)
		_, err = r.a.PostSend([]SendWR{{Op: OpLocalInv, Inv: 1}})
		require.ErrorIs(t, err, ErrQueueFull)
		require.Equal(t, key, w.Key())
		require.Equal(t, fastKey, fast.Key())
	})
	t.Run("VRB-48 a list may register a region and use it", func(t *testing.T) {
		r := newKeyRig(t, DeviceAttr{MaxMW: 2})
		r.f.setHold(true)
		fast, err := r.pd.AllocFastMR(64)
		require.NoError(t, err)
		require.False(t, fast.Valid())
		require.Zero(t, fast.Access())
		read := SendWR{Op: OpRead, SGL: []SGE{fast.SGE(0, 8)}, Remote: r.mr.Remote()}
		_, err = r.a.PostSend([]SendWR{read})
		require.ErrorIs(t, err, syscall.EINVAL, "it has no right yet")
		key := fast.Key().Inc()
		n, err := r.a.PostSend([]SendWR{{Op: OpRegMR, MR: fast, Access: AccessLocalWrite}, read})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.Equal(t, key, fast.Key())
		require.Equal(t, AccessLocalWrite, fast.Access())
		sq := r.f.qp(r.a).s.SQ
		require.Equal(t, ring.Bind{Key: uint32(key), Access: uint8(AccessLocalWrite)}, ring.WQE(sq.Record(0)).Bind())
		got, _, _ := ring.WQE(sq.Record(1)).SGE(0)
		require.Equal(t, uint32(key), got, "by the new key")
	})
	t.Run("VRB-47 a busy region names its windows", func(t *testing.T) {
		r := newKeyRig(t, DeviceAttr{MaxMW: 3})
		sgl := []SGE{r.mr.SGE(0, 8)}
		w, idle, gone := r.window(t, MWType1), r.window(t, MWType1), r.window(t, MWType2)
		_, err := r.a.PostSend([]SendWR{{Op: OpBindMW, MW: w, SGL: sgl}, {Op: OpBindMW, MW: idle, SGL: sgl},
			{Op: OpBindMW, MW: idle}, {Op: OpBindMW, MW: gone, SGL: sgl}})
		require.NoError(t, err)
		_, err = r.a.PostSend([]SendWR{{Op: OpLocalInv, Inv: gone.Key()}})
		require.NoError(t, err)
		r.f.deregErr = &BusyError{}
		err = r.mr.Close()
		require.Equal(t, &BusyError{Object: "mr " + r.mr.Key().String(), Users: []string{"mw " + w.Key().String()}}, err)
		require.ErrorIs(t, err, syscall.EBUSY)
		require.True(t, r.mr.Valid())
		r.f.deregErr = nil
		require.NoError(t, r.mr.Close())
		require.False(t, r.mr.Valid())
	})
	t.Run("no allocation", func(t *testing.T) {
		r := newKeyRig(t, DeviceAttr{MaxMW: 2})
		r.f.setHold(true)
		w := r.window(t, MWType1)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			n, err := r.a.PostSend([]SendWR{
				{Op: OpBindMW, MW: w, SGL: []SGE{r.mr.SGE(0, 8)}, Access: AccessRemoteRead}, {Op: OpLocalInv, Inv: w.Key()},
			})
			if n != 2 || err != nil {
				panic(err)
			}
			sq := r.f.qp(r.a).s.SQ
			sq.Release(sq.Tail())
		}))
	})
}

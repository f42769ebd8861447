package iwarp_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// sendInv makes a Send with Invalidate.
func sendInv(msn uint32, key verbs.Key, solicited bool, payload string) []byte {
	op := uint8(4)
	if solicited {
		op = 6
	}
	return wiretest.Untagged(op, true, uint32(key), 0, msn, 0, []byte(payload))
}

// revocable makes a region that a peer may invalidate.
func (k *scene) revocable(t *testing.T) *verbs.MR {
	mr, err := k.stage.pd.AllocMR(64, allRights)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mr.Close()) })
	require.NoError(t, k.table.AllowInvalidate(ddp.STag(mr.Key())))
	return mr
}

func TestSendWithInvalidate(t *testing.T) {
	s := newStage(t, iwarp.Protocol{DrainTimeout: time.Second})
	for _, solicited := range []bool{false, true} {
		name := map[bool]string{false: "RDM-38 RDM-40 VRB-66 ", true: "RDM-38 RDM-42 "}[solicited]
		t.Run(name+"the key is gone when its completion is there, and no access through it follows", func(t *testing.T) {
			for _, after := range []struct {
				ulpdu func(r verbs.RemoteBuf) []byte
				term  uint16
			}{
				{func(r verbs.RemoteBuf) []byte {
					return wiretest.Tagged(0, true, uint32(r.RKey), r.Addr, []byte("too late"))
				}, 0x1100},
				{func(r verbs.RemoteBuf) []byte { return wiretest.ReadRequest(1, 1, 0, 8, uint32(r.RKey), r.Addr) }, 0x0100},
				{func(r verbs.RemoteBuf) []byte {
					return atomicRequest(1, 0, 1, uint32(r.RKey), r.Addr, 1, 0, 0, all64)
				}, 0x0100},
			} {
				k := s.scene(t)
				mr := k.revocable(t)
				event := k.cq.Notify(true)
				k.p.Send(wiretest.Tagged(0, true, uint32(mr.Key()), mr.Remote().Addr, []byte("in time")), sendInv(1, mr.Key(), solicited, "payload"))
				wc := k.wait(t, 1)[0]
				require.Equal(t, verbs.WC{ID: 1, Op: verbs.OpRecv, ByteLen: 7, Flags: verbs.WCWithInv, Inv: mr.Key(), QP: k.Num(), Time: wc.Time}, wc)
				if solicited {
					fires(t, event, "the peer has asked for one")
				} else {
					stays(t, event, "the peer has not asked for one")
				}
				copy(k.recv.want[guard:], "payload")
				k.untouched(t)
				before := bytes.Clone(mr.Bytes())
				require.Equal(t, "in time", string(before[:7]))
				k.p.Send(after.ulpdu(mr.Remote()))
				k.p.ExpectTerminate(after.term)
				<-k.Done()
				require.Equal(t, before, mr.Bytes())
				k.leave(t)
			}
		})
	}
	for _, c := range []struct {
		name string
		key  verbs.Key
		term uint16
	}{
		{"RDM-39 SEC-12 key 0", 0, 0x0100},
		{"RDM-39 an unknown key", 0x0badcafe, 0x0100},
		{"RDM-39 a region of another protection domain", wiretest.RegionOther, 0x0109},
		{"RDM-39 SEC-08 a region whose owner did not permit it", wiretest.RegionAll, 0x0109},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := s.scene(t)
			k.p.Send(sendInv(1, c.key, false, "payload"))
			k.p.ExpectTerminate(c.term)
			<-k.Done()
			require.Equal(t, flushed(1), statuses(k.wait(t, 1)), "not completed successfully")
			require.Equal(t, untouched, int(k.recv.all[guard+7]))
			k.p.ExpectEOF()
			for _, g := range k.regions {
				g.check(t)
			}
			// SEC-08: the region that was asked for still serves others.
			if c.key == wiretest.RegionAll {
				o := s.scene(t)
				o.p.Send(wiretest.ReadRequest(1, 1, 0, 8, wiretest.RegionAll, wiretest.HostileBase))
				o.p.Expect(wiretest.Tagged(2, true, 1, 0, bytes.Repeat([]byte{untouched}, 8)))
				o.leave(t)
			}
			k.leave(t)
		})
	}
	t.Run("RDM-41 twice is no error", func(t *testing.T) {
		k := s.scene(t)
		mr := k.revocable(t)
		_, err := k.PostRecv([]verbs.RecvWR{{ID: 2}})
		require.NoError(t, err)
		k.p.Send(sendInv(1, mr.Key(), false, "one"), sendInv(2, mr.Key(), false, ""))
		for _, wc := range k.wait(t, 2) {
			require.NoError(t, wc.Err())
			require.Equal(t, mr.Key(), wc.Inv)
		}
		require.Equal(t, verbs.QPSRTS, k.State())
		k.leave(t)
	})
	t.Run("RDM-43 VRB-66 the sender's key is opaque to it", func(t *testing.T) {
		p, e := scriptedResponder(t, 8, rdmacm.Dialer{})
		e.send(t, verbs.SendWR{ID: 1, Op: verbs.OpSendWithInv, Flags: verbs.SendSignaled, Inv: 0xdeadbeef, Inline: []byte("x")},
			verbs.SendWR{ID: 2, Op: verbs.OpSendWithInv, Flags: verbs.SendSignaled | verbs.SendSolicited, Inv: e.mr.Key()})
		p.Expect(sendInv(1, 0xdeadbeef, false, "x"))
		p.Expect(sendInv(2, e.mr.Key(), true, ""))
		for i, wc := range e.wait(t, 2) {
			require.Equal(t, verbs.WC{ID: uint64(i + 1), Op: verbs.OpSend, QP: e.Num(), Time: wc.Time}, wc)
		}
		// A key of its own is its peer's affair: here it still works.
		p.Send(wiretest.Tagged(0, true, uint32(e.remote.RKey), e.remote.Addr, []byte("written")), wiretest.ReadRequest(1, 1, 0, 7, uint32(e.remote.RKey), e.remote.Addr))
		p.Expect(wiretest.Tagged(2, true, 1, 0, []byte("written")))
	})
}

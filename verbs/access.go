package verbs

// Access says what a memory region may be used for. The values are those of
// ibv_access_flags. Local reading is always allowed.
type Access uint8

const (
	AccessLocalWrite   Access = 1  // receives and reads may write it
	AccessRemoteWrite  Access = 2  // peers may write it; needs AccessLocalWrite
	AccessRemoteRead   Access = 4  // peers may read it
	AccessRemoteAtomic Access = 8  // peers may do atomics on it, see [SendWR]; needs AccessLocalWrite
	AccessMWBind       Access = 16 // memory windows may be bound to it
	AccessZeroBased    Access = 32 // remote addresses count from 0, not from the memory's address

	accessAll = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | AccessMWBind | AccessZeroBased
)

var accessNames = []string{"LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC", "MW_BIND", "ZERO_BASED"}

func (a Access) String() string { return flagString(uint32(a), accessNames) }

// check applies the rules for regions of the verbs: a right to write from afar
// needs the right to write at home.
func (a Access) check() error {
	if a&^accessAll != 0 {
		return invalidf("access %#x has unknown bits", uint8(a))
	}
	if a&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && a&AccessLocalWrite == 0 {
		return invalidf("access %v needs LOCAL_WRITE too", a)
	}
	return nil
}

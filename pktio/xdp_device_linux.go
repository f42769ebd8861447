package pktio

import (
	"encoding/binary"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// xdpDevice is what we have to know of a device beyond what a link has.
type xdpDevice struct {
	driver   string
	hardware bool // it is on a bus
	queues   int  // that it receives on; more than there are, where the driver does not tell
	checksum bool // it finishes checksums, or claims to
}

// virtual tells whether the peer is on the same host, or a virtual machine on it, or its host: one that may leave
// checksums to be finished and segments to be cut. A bridge or a macvlan has such peers too, but may also lead to a card,
// whose frames nobody has checked.
func (d *xdpDevice) virtual() bool {
	return d.driver == "veth" || d.driver == "tun" || d.driver == "virtio_net"
}

// lookXDPDevice asks about an interface through fd, any socket that knows interfaces.
func lookXDPDevice(fd int, i *iface) (d xdpDevice) {
	if info, err := unix.IoctlGetEthtoolDrvinfo(fd, i.name); err == nil {
		d.driver = unix.ByteSliceToString(info.Driver[:])
		bus := unix.ByteSliceToString(info.Bus_info[:])
		d.hardware = bus != "" && bus != "N/A"
	}
	var value struct{ cmd, data uint32 }
	value.cmd = unix.ETHTOOL_GTXCSUM
	d.checksum = ethtool(fd, i.name, unsafe.Pointer(&value)) == nil && value.data != 0
	var channels struct {
		cmd                            uint32
		maxRx, maxTx, maxOther, maxAll uint32
		rx, tx, other, combined        uint32
	}
	channels.cmd = unix.ETHTOOL_GCHANNELS
	if ethtool(fd, i.name, unsafe.Pointer(&channels)) == nil {
		d.queues = int(channels.rx + channels.combined)
	}
	if d.queues == 0 {
		d.queues = madeForQueues(i.index)
	}
	return d
}

// madeForQueues returns how many receive queues the interface with an index can have, 1 if the kernel does not tell.
// It may have fewer.
func madeForQueues(index int) int {
	rib, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return 1
	}
	msgs, err := syscall.ParseNetlinkMessage(rib)
	if err != nil {
		return 1
	}
	for i := range msgs {
		m := &msgs[i]
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg || (*unix.IfInfomsg)(unsafe.Pointer(&m.Data[0])).Index != int32(index) {
			continue
		}
		attrs, _ := syscall.ParseNetlinkRouteAttr(m)
		for _, a := range attrs {
			if a.Attr.Type == unix.IFLA_NUM_RX_QUEUES && len(a.Value) >= 4 {
				return max(1, int(binary.NativeEndian.Uint32(a.Value)))
			}
		}
	}
	return 1
}

// ethtool asks a device for what arg is about, a structure that begins with a command.
func ethtool(fd int, name string, arg unsafe.Pointer) error {
	var ifreq struct {
		name [unix.IFNAMSIZ]byte
		arg  unsafe.Pointer
		_    [16]byte
	}
	copy(ifreq.name[:], name)
	ifreq.arg = arg
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifreq)))
	runtime.KeepAlive(arg)
	if errno != 0 {
		return errno
	}
	return nil
}

package pktio

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// xdpRights are the capabilities that a port needs, by name. CAP_SYS_ADMIN stands in for what has to do with BPF, as
// it did alone before Linux 5.8.
var xdpRights = []struct {
	name    string
	bit, or uint
}{
	{"CAP_NET_RAW", unix.CAP_NET_RAW, unix.CAP_NET_RAW},
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN},
	{"CAP_BPF", unix.CAP_BPF, unix.CAP_SYS_ADMIN},
}

// xdpError explains why the kernel refused a step of OpenXDP. Where that was for want of a right it says which: the
// kernel does not, and the BPF library suspects the limit of locked memory.
func xdpError(name, step string, err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		err = errno // the library's wording adds nothing
	}
	if !errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("pktio: %s on interface %s: %w", step, name, err)
	}
	if missing := missingRights(); len(missing) > 0 {
		return fmt.Errorf("pktio: AF_XDP on %s needs %s: run as root, give the program the rights with \"setcap cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock+ep PROGRAM\", or use the packet backend: %w",
			name, strings.Join(missing, " and "), err)
	}
	if inUserNamespace() {
		return fmt.Errorf("pktio: AF_XDP on %s needs rights that count outside of a user namespace, and this process runs in one: run as the host's root, or use the packet backend: %w", name, err)
	}
	return fmt.Errorf("pktio: %s on interface %s is forbidden, though no capability is missing: a security module may do that (see the kernel log), or on Linux before 5.11 the limit of locked memory (\"ulimit -l\"); or use the packet backend: %w", step, name, err)
}

// missingRights returns the names of the capabilities that the calling thread lacks.
func missingRights() (missing []string) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) != nil {
		return nil
	}
	has := func(bit uint) bool { return data[bit/32].Effective&(1<<(bit%32)) != 0 }
	for _, r := range xdpRights {
		if !has(r.bit) && !has(r.or) {
			missing = append(missing, r.name)
		}
	}
	return missing
}

// inUserNamespace tells whether the process is in another user namespace than the first one, the only one in which the
// kernel gives CAP_BPF a meaning: there, each user is himself.
func inUserNamespace() bool {
	m, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(m)), " ") != "0 0 4294967295"
}

// umemError explains why the kernel did not take n octets of memory for frames.
func umemError(name string, n int, err error) error {
	if !errors.Is(err, unix.ENOBUFS) {
		return xdpError(name, "registering the memory for frames", err)
	}
	limit := ""
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) == nil {
		limit = fmt.Sprintf(" and the limit is %d KiB for all programs of a user", l.Cur>>10)
	}
	return fmt.Errorf("pktio: AF_XDP on %s locks %d KiB of memory%s: raise it with \"ulimit -l\" or LimitMEMLOCK=, give the program CAP_IPC_LOCK, or lower RxFrames or TxFrames: %w", name, n>>10, limit, err)
}

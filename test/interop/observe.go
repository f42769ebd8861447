package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/softrdma/softrdma/internal/capture"
)

// observer watches the tap from outside while a run is on: by tcpdump, which sees what
// passes the host's kernel, and by asking for the XDP program on the link. The three ways
// to carry a run differ in both: the kernel's stack and an AF_PACKET socket leave every
// packet to tcpdump, under different addresses; AF_XDP takes frames before tcpdump and
// sends behind it, and has a program attached.
type observer struct {
	sniffer *Sniffer
	links   *netlink.Handle
	stop    chan struct{}
	done    sync.WaitGroup

	modes []string // of XDP, each once; complete after Stop
	err   error
}

// askLink is the pause between two looks at the link. A run takes some hundred
// milliseconds at least.
const askLink = 5 * time.Millisecond

func observe(ns *Namespace, file string) (*observer, error) {
	fd, err := netns.GetFromName(ns.Name)
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", ns.Name, err)
	}
	defer fd.Close()
	o := &observer{stop: make(chan struct{})}
	if o.links, err = netlink.NewHandleAt(fd); err != nil {
		return nil, fmt.Errorf("netlink in namespace %s: %w", ns.Name, err)
	}
	mode, err := o.xdp()
	if err == nil && mode != "" {
		err = fmt.Errorf("an XDP program is on %s before the run: %s", tapName, mode)
	}
	if err != nil {
		o.links.Close()
		return nil, err
	}
	if o.sniffer, err = sniff(ns, tapName, file); err != nil {
		o.links.Close()
		return nil, err
	}
	o.done.Go(o.watch)
	return o, nil
}

// watch looks at the link until Stop.
func (o *observer) watch() {
	for {
		mode, err := o.xdp()
		if err != nil {
			o.err = err
			return
		}
		if mode != "" && !slices.Contains(o.modes, mode) {
			o.modes = append(o.modes, mode)
		}
		select {
		case <-o.stop:
			return
		case <-time.After(askLink):
		}
	}
}

// xdp tells in which mode an XDP program is attached to the tap; empty if none is.
func (o *observer) xdp() (string, error) {
	l, err := o.links.LinkByName(tapName)
	if err != nil {
		return "", fmt.Errorf("%s: %w", tapName, err)
	}
	x := l.Attrs().Xdp
	if x == nil || !x.Attached {
		return "", nil
	}
	// IFLA_XDP_ATTACHED of linux/if_link.h.
	switch x.AttachMode {
	case 1:
		return "native", nil
	case 2:
		return "generic", nil
	}
	return fmt.Sprintf("mode %d", x.AttachMode), nil
}

// Stop ends the observation. The run must be over: a program that is still attached is
// an error.
func (o *observer) Stop() error {
	close(o.stop)
	o.done.Wait()
	err := errors.Join(o.err, o.sniffer.Stop())
	if mode, e := o.xdp(); e != nil {
		err = errors.Join(err, e)
	} else if mode != "" {
		err = errors.Join(err, fmt.Errorf("an XDP program stays on %s after the run: %s", tapName, mode))
	}
	o.links.Close()
	return err
}

// check tells which backend carried the run, and fails if it is not the one asked for.
func (o *observer) check(row Row, f files, res *Result) error {
	seen, err := look(row, f)
	if err != nil {
		return err
	}
	if res.Seen = o.backend(row, seen); res.Seen != row.Backend {
		return fmt.Errorf("the run went over backend %q: tcpdump has seen %d TCP packets meanwhile, XDP modes on the link: %q", res.Seen, seen.packets, o.modes)
	}
	// An AF_PACKET socket shares its frames with tcpdump: two captures of one traffic.
	if row.Backend == "packet" && (seen.FPDUs() != res.FPDUs || seen.Err() != nil) {
		return fmt.Errorf("tcpdump has seen %d FPDUs, softrdma's own capture holds %d: %w", seen.FPDUs(), res.FPDUs, seen.Err())
	}
	return nil
}

// sight is what tcpdump has seen on the tap.
type sight struct {
	capture.Sessions
	packets int // of TCP, while the run was on
}

// look reads tcpdump's capture. What the guest sends before or after the frames of our own
// stack does not count: the last acknowledgement often comes when softrdma has gone, and
// its XDP program with it.
func look(row Row, f files) (s sight, err error) {
	file, err := os.Open(f.wire())
	if err != nil {
		return s, err
	}
	s.Sessions, err = capture.DecodeFile(file)
	_ = file.Close() // it was only read
	if err != nil {
		return s, fmt.Errorf("%s: %w", f.wire(), err)
	}
	if s.packets = s.TCP; !row.XDP() || s.packets == 0 {
		return s, nil
	}
	var start, end time.Time
	err = eachPacket(f.own(), func(at time.Time, _ gopacket.Packet) {
		if start.IsZero() {
			start = at
		}
		end = at
	})
	if err != nil {
		return s, err
	}
	err = eachPacket(f.wire(), func(at time.Time, p gopacket.Packet) {
		if p.Layer(layers.LayerTypeTCP) != nil && p.NetworkLayer().NetworkFlow().Src().String() == row.guestAddr().String() &&
			(at.Before(start) || at.After(end)) {
			s.packets--
		}
	})
	return s, err
}

// backend reads the backend off what was seen.
func (o *observer) backend(row Row, seen sight) string {
	var from []string // our side's addresses in all connections
	for _, s := range seen.All {
		for _, a := range []string{s.Initiator.From.Addr().String(), s.Responder.From.Addr().String()} {
			if a != row.guestAddr().String() && !slices.Contains(from, a) {
				from = append(from, a)
			}
		}
	}
	switch {
	case len(o.modes) == 1 && seen.packets == 0:
		return "xdp-" + o.modes[0]
	case len(o.modes) == 0 && slices.Equal(from, []string{kernelAddrs[row.Family].Addr().String()}):
		return "kernel"
	case len(o.modes) == 0 && slices.Equal(from, []string{ownAddrs[row.Family].Addr().String()}):
		return "packet"
	}
	return "? " + strings.Join(slices.Concat(o.modes, from), " ")
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/softrdma/softrdma/internal/wiretest"
)

// session is one conversation between two guests. %s in the commands is the server's
// address.
type session struct {
	name           string
	server, client string
	port           int
	v6             bool
	strict         bool // also between two strict guests; perftest hangs there
}

// sessions are the recordings under testdata/siw.
var sessions = []session{
	{name: "rping", server: "rping -s -a %s -C 3 -v -V -S 100", client: "rping -c -a %s -C 3 -v -V -S 100", port: 7174, strict: true},
	{name: "rping-ipv6", server: "rping -s -a %s -C 2 -v -S 64", client: "rping -c -a %s -C 2 -v -S 64", port: 7174, v6: true},
	{name: "rping-4k", server: "rping -s -a %s -C 2 -S 4096", client: "rping -c -a %s -C 2 -S 4096", port: 7174, strict: true},
	{name: "rping-read-too-long", server: "rping -s -a %s -C 1 -v", client: "rping -c -a %s -C 1 -v -S 100", port: 7174, strict: true},
	{name: "write", server: "ib_write_bw -R -d siw0 -n 5 -s 20000", client: "ib_write_bw -R -d siw0 -n 5 -s 20000 %s", port: 18515},
	{name: "read", server: "ib_read_bw -R -d siw0 -n 5 -s 20000", client: "ib_read_bw -R -d siw0 -n 5 -s 20000 %s", port: 18515},
	{name: "connect-refused-by-ulp", server: "ucmatose -b %s -C 0 -c 1", client: "ucmatose -s %s -C 2 -c 2", port: 7471},
	{name: "ucmatose", server: "ucmatose -b %s -C 2 -c 2", client: "ucmatose -s %s -C 2 -c 2", port: 7471},
}

// recordTries is how often a session is tried, each time on fresh guests, before the
// recording gives up: two strict guests sometimes hang when the first Send comes right
// behind the ready-to-receive message.
const recordTries = 5

// record lets two guests of each kind talk to each other and writes what they said to
// one capture file a session.
func record(ctx context.Context, img Image, dir string, log io.Writer) error {
	for _, kind := range kinds {
		var todo []session
		for _, s := range sessions {
			if kind == "siw" || s.strict {
				todo = append(todo, s)
			}
		}
		for tries := 0; len(todo) > 0; {
			done, err := recordOn(ctx, img, kind, todo, dir, log)
			todo = todo[done:]
			if done > 0 {
				tries = 0
			}
			if tries++; err != nil && (!errors.Is(err, errHung) || tries >= recordTries || ctx.Err() != nil) {
				return err
			}
		}
	}
	return nil
}

var errHung = errors.New("the session did not end")

// recordOn boots two guests and records sessions until all are done or one fails. It
// returns how many are done.
func recordOn(ctx context.Context, img Image, kind string, todo []session, dir string, log io.Writer) (done int, err error) {
	ns, err := newNamespace("rec")
	if err != nil {
		return 0, err
	}
	defer ns.Delete()
	if err := errors.Join(ns.IP("link", "add", "bridge", "type", "bridge"), ns.IP("link", "set", "bridge", "up")); err != nil {
		return 0, err
	}
	var vms [2]*VM
	for i := range vms {
		tap := fmt.Sprintf("tap%d", i+1)
		if err := errors.Join(ns.AddTap(tap), ns.IP("link", "set", tap, "master", "bridge")); err != nil {
			return 0, err
		}
		vms[i], err = boot(ctx, VMConfig{Image: img, Kind: kind, NS: ns, Tap: tap, Addr: fmt.Sprintf("10.77.0.%d/24", i+1),
			Addr6: fmt.Sprintf("fd77::%d/64", i+1), MAC: fmt.Sprintf("52:54:00:77:00:%02x", i+1)})
		if err != nil {
			return 0, err
		}
		defer vms[i].Stop()
	}
	for i, s := range todo {
		file := filepath.Join(dir, kind+"-"+s.name+".pcap")
		if err := recordSession(ns, vms, s, file); err != nil {
			return i, fmt.Errorf("%s: %w", file, err)
		}
		r, err := wiretest.RunTshark(file)
		if err != nil {
			return i, err
		}
		fmt.Fprintf(log, "%s: %d FPDUs\n", file, r.FPDUs)
	}
	return len(todo), nil
}

// recordSession runs one session. With which status the programs end does not matter,
// as some sessions are about failures; that they end does.
func recordSession(ns *Namespace, vms [2]*VM, s session, file string) error {
	const limit = 20 * time.Second
	addr := "10.77.0.1"
	if s.v6 {
		addr = "fd77::1"
	}
	fill := func(c string) string { return strings.ReplaceAll(c, "%s", addr) }
	sn, err := sniff(ns, "tap1", file)
	if err != nil {
		return err
	}
	server := vms[0].Start(fill(s.server), limit)
	if err := vms[0].AwaitListener(s.port, limit); err != nil {
		return errors.Join(err, sn.Stop())
	}
	start := time.Now()
	_, clientErr := vms[1].Run(fill(s.client), limit)
	_, serverErr := server.Wait()
	err = sn.Stop()
	if time.Since(start) >= limit {
		err = errors.Join(errHung, clientErr, serverErr, err)
	}
	return err
}

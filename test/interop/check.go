package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/softrdma/softrdma/internal/capture"
	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/test/interop/peer"
)

// checkCapture holds a run's capture against what must be in it: explained whole by
// our decoder, the same by tshark, the CRC as agreed, as many FPDUs as softrdma itself
// counted, and the messages of the row's program.
func checkCapture(row Row, f files, res *Result) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	file := f.traffic(row)
	h, err := os.Open(file)
	if err != nil {
		return err
	}
	s, err := capture.DecodeFile(h)
	_ = h.Close() // it was only read
	if err != nil {
		return err
	}
	res.FPDUs = s.FPDUs()
	errs = append(errs, s.Err())
	if len(s.All) != row.Load.Conns || s.Foreign != 0 {
		bad("%d connections in the capture, and %d that are not MPA, instead of %d", len(s.All), s.Foreign, row.Load.Conns)
	}
	for _, ses := range s.All {
		errs = append(errs, checkSession(row, ses, res))
	}
	errs = append(errs, checkMSS(row, file))

	r, err := wiretest.RunTshark(file)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	res.Tshark = r.FPDUs
	if r.FPDUs != res.FPDUs || r.Malformed != 0 || r.BadCRC != 0 {
		bad("tshark: %d FPDUs (the decoder: %d), %d malformed, %d with a bad CRC", r.FPDUs, res.FPDUs, r.Malformed, r.BadCRC)
	}
	if row.WantCRC() && r.GoodCRC != r.FPDUs {
		bad("tshark found the CRC good in %d of %d FPDUs", r.GoodCRC, r.FPDUs)
	}

	c, err := counters(f.stats())
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	res.Counters = int(c["mpa.fpdus_in"] + c["mpa.fpdus_out"])
	if res.Counters != res.FPDUs || (res.Counters == 0) != row.Held() {
		bad("softrdma counted %d FPDUs, the capture holds %d", res.Counters, res.FPDUs)
	}
	if c["mpa.crc_errors"] != 0 {
		bad("softrdma counted %d CRC errors", c["mpa.crc_errors"])
	}
	return errors.Join(errs...)
}

func checkSession(row Row, s *capture.Session, res *Result) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	req, rep := s.Initiator.Startup, s.Responder.Startup
	if req == nil || rep == nil {
		return errors.New("a startup frame is missing")
	}
	bit := map[bool]string{false: "0", true: "1"}
	switch bits := bit[req.CRC] + "/" + bit[rep.CRC]; res.CRCBits {
	case "", bits:
		res.CRCBits = bits
	default:
		bad("the C bits are %s, on another connection of the same run %s", bits, res.CRCBits)
	}
	if s.CRC != row.WantCRC() {
		bad("the CRC is in use: %v, it should be: %v", s.CRC, row.WantCRC())
	}

	ours, theirs := &s.Initiator, &s.Responder
	if row.Role == "server" {
		ours, theirs = theirs, ours
	}
	for _, a := range []struct{ got, want netip.Addr }{{ours.From.Addr(), row.ourAddr()}, {theirs.From.Addr(), row.guestAddr()}} {
		if a.got != a.want {
			bad("%v spoke instead of %v", a.got, a.want)
		}
	}
	for _, f := range s.Check() {
		if f.Flow == ours {
			bad("our own rule broken: %v", f)
		}
	}
	for _, f := range []*capture.Flow{ours, theirs} {
		if n := f.Counts.ByOpcode[capture.OpTerminate]; n > 0 {
			bad("%d Terminate from %v", n, f.From)
		}
	}
	switch {
	case row.Program == "rping":
		errs = append(errs, checkPings(row, s))
	case row.Held():
		if n := len(ours.FPDUs) + len(theirs.FPDUs); n > 0 {
			bad("%d FPDUs, where the responder may not speak first and the initiator does not", n)
		}
	default:
		errs = append(errs, checkMessages(row, ours, theirs))
	}
	return errors.Join(errs...)
}

// checkPings: each ping is one Read and one Write, whatever the size; more of them would
// be segments, fewer a run that stopped early.
func checkPings(row Row, s *capture.Session) error {
	var errs []error
	reads := 0
	for _, f := range []*capture.Flow{&s.Initiator, &s.Responder} {
		for i := range f.FPDUs {
			if q := f.FPDUs[i].RDMAP.ReadRequest; q != nil && q.Size > 0 {
				reads++
				if int(q.Size) != row.Load.Size {
					errs = append(errs, fmt.Errorf("a Read of %d octets instead of %d", q.Size, row.Load.Size))
				}
			}
		}
	}
	if reads != row.Load.Count {
		errs = append(errs, fmt.Errorf("%d pings on the wire instead of %d", reads, row.Load.Count))
	}
	return errors.Join(errs...)
}

// checkMessages holds the Sends of a connection of ucmatose or rdma_client against what
// the programs say: ours are numbered and filled, ucmatose repeats.
func checkMessages(row Row, ours, theirs *capture.Flow) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	mine, its := messages(ours), messages(theirs)
	for _, m := range []struct {
		of   string
		list [][]byte
	}{{"ours", mine}, {"the guest's", its}} {
		if len(m.list) != row.Load.Count {
			bad("%d messages of %s on the wire instead of %d", len(m.list), m.of, row.Load.Count)
		}
		for k, b := range m.list {
			if len(b) != row.Load.Size {
				bad("message %d of %s has %d octets instead of %d", k, m.of, len(b), row.Load.Size)
			}
		}
	}
	for k, b := range mine {
		if _, n, err := peer.Parse(b); err != nil || n != k {
			bad("our message %d is on the wire as %d: %w", k, n, err)
		}
	}
	for k, b := range its {
		want := its[0]
		switch {
		case row.Program == "rdma_client":
			want = make([]byte, peer.GreetSize)
		case row.Role == "server" && len(mine) > 0:
			want = mine[len(mine)-1]
		}
		if !bytes.Equal(b, want) {
			bad("message %d of the guest is not what the program sends", k)
		}
	}
	return errors.Join(errs...)
}

// messages puts the Sends of one direction together. Empty ones are ready-to-receive
// messages.
func messages(f *capture.Flow) [][]byte {
	var all [][]byte
	var open []byte
	for i := range f.FPDUs {
		u := &f.FPDUs[i]
		if op := u.RDMAP.Opcode; op != capture.OpSend && op != capture.OpSendSE {
			continue
		}
		open = append(open, u.DDP.Payload...)
		if u.DDP.Last {
			if len(open) > 0 {
				all = append(all, open)
			}
			open = nil
		}
	}
	return all
}

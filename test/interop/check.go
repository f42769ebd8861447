package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/softrdma/softrdma/internal/capture"
	"github.com/softrdma/softrdma/internal/wiretest"
)

// checkCapture holds a run's capture against what must be in it: explained whole by
// our decoder, the same by tshark, the CRC as agreed, and as many FPDUs as softrdma
// itself counted.
func checkCapture(row Row, file, stats string, count int, res *Result) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	f, err := os.Open(file)
	if err != nil {
		return err
	}
	s, err := capture.DecodeFile(f)
	_ = f.Close() // it was only read
	if err != nil {
		return err
	}
	res.FPDUs = s.FPDUs()
	errs = append(errs, s.Err())
	if len(s.All) != 1 {
		bad("%d connections in the capture instead of one", len(s.All))
	}
	for _, ses := range s.All {
		errs = append(errs, checkSession(row, ses, count, res))
	}

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

	c, err := counters(stats)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	res.Counters = int(c["mpa.fpdus_in"] + c["mpa.fpdus_out"])
	if res.Counters != res.FPDUs || res.Counters == 0 {
		bad("softrdma counted %d FPDUs, the capture holds %d", res.Counters, res.FPDUs)
	}
	if c["mpa.crc_errors"] != 0 {
		bad("softrdma counted %d CRC errors", c["mpa.crc_errors"])
	}
	return errors.Join(errs...)
}

func checkSession(row Row, s *capture.Session, count int, res *Result) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	req, rep := s.Initiator.Startup, s.Responder.Startup
	if req == nil || rep == nil {
		return errors.New("a startup frame is missing")
	}
	bit := map[bool]string{false: "0", true: "1"}
	res.CRCBits = bit[req.CRC] + "/" + bit[rep.CRC]
	if s.CRC != row.WantCRC() {
		bad("the CRC is in use: %v, it should be: %v", s.CRC, row.WantCRC())
	}

	ours := &s.Initiator
	if row.Role == "server" {
		ours = &s.Responder
	}
	if want := netip.MustParseAddr(ourAddr(row.Backend)); ours.From.Addr() != want {
		bad("our side spoke from %v instead of %v", ours.From.Addr(), want)
	}
	for _, f := range s.Check() {
		if f.Flow == ours {
			bad("our own rule broken: %v", f)
		}
	}
	// Each ping is one Read and one Write, whatever the size; more of them would be
	// segments, fewer a run that stopped early.
	reads := 0
	for _, f := range []*capture.Flow{&s.Initiator, &s.Responder} {
		for i := range f.FPDUs {
			if q := f.FPDUs[i].RDMAP.ReadRequest; q != nil && q.Size > 0 {
				reads++
				if int(q.Size) != row.Size {
					bad("a Read of %d octets instead of %d", q.Size, row.Size)
				}
			}
		}
		if n := f.Counts.ByOpcode[capture.OpTerminate]; n > 0 {
			bad("%d Terminate from %v", n, f.From)
		}
	}
	if reads != count {
		bad("%d pings on the wire instead of %d", reads, count)
	}
	return errors.Join(errs...)
}

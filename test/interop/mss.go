package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// checkMSS reads off every SYN of a capture which segments its sender takes: that tells
// the MTU of the link as both ends see it.
func checkMSS(row Row, file string) error {
	syns := map[string]int{}
	var wrong error
	err := eachPacket(file, func(_ time.Time, p gopacket.Packet) {
		tcp, _ := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if tcp == nil || !tcp.SYN {
			return
		}
		from := p.NetworkLayer().NetworkFlow().Src().String()
		syns[from]++
		got := 0
		for _, o := range tcp.Options {
			if o.OptionType == layers.TCPOptionKindMSS && len(o.OptionData) == 2 {
				got = int(binary.BigEndian.Uint16(o.OptionData))
			}
		}
		if got != row.mss() {
			wrong = fmt.Errorf("%s announces segments of %d octets; on a link with MTU %d they should be %d", from, got, row.MTU, row.mss())
		}
	})
	if err != nil || wrong != nil {
		return errors.Join(err, wrong)
	}
	for _, from := range []string{row.ourAddr().String(), row.guestAddr().String()} {
		if syns[from] < row.Load.Conns {
			return fmt.Errorf("%d SYN from %s in the capture, %d connections", syns[from], from, row.Load.Conns)
		}
	}
	return nil
}

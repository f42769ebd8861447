package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/pcapgo"
)

// eachPacket shows all packets of a capture of softrdma (pcapng) or tcpdump (pcap), in
// order. A packet is valid during the call alone.
func eachPacket(file string, show func(time.Time, gopacket.Packet)) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close() // it is only read
	var source gopacket.PacketDataSource
	var link gopacket.Decoder
	r := bufio.NewReaderSize(f, 1<<16)
	if ng, ngErr := isNg(r); ngErr != nil {
		err = ngErr
	} else if ng {
		var rd *pcapgo.NgReader
		if rd, err = pcapgo.NewNgReader(r, pcapgo.DefaultNgReaderOptions); err == nil {
			source, link = rd, rd.LinkType()
		}
	} else {
		var rd *pcapgo.Reader
		if rd, err = pcapgo.NewReader(r); err == nil {
			rd.SetSnaplen(1 << 20) // super-frames
			source, link = rd, rd.LinkType()
		}
	}
	for err == nil {
		var data []byte
		var info gopacket.CaptureInfo
		if data, info, err = source.ReadPacketData(); err == nil {
			show(info.Timestamp, gopacket.NewPacket(data, link, gopacket.DecodeOptions{Lazy: true, NoCopy: true}))
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("%s: %w", file, err)
}

// isNg tells the two formats apart by their first octets.
func isNg(r *bufio.Reader) (bool, error) {
	magic, err := r.Peek(4)
	if err != nil {
		return false, fmt.Errorf("not a capture file: %v", err)
	}
	return [4]byte(magic) == [4]byte{0x0a, 0x0d, 0x0d, 0x0a}, nil
}

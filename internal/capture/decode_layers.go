package capture

import (
	"errors"

	"github.com/google/gopacket"
)

// The layers for gopacket. A whole FPDU, or a whole startup frame, at the start of
// the octets is decoded by gopacket.NewPacket(b, LayerTypeMPA, ...) or with
// LayerTypeStartup. An FPDU seen alone cannot tell whether its CRC is in use.
var (
	LayerTypeStartup = gopacket.RegisterLayerType(1740, gopacket.LayerTypeMetadata{Name: "MPAStartup", Decoder: gopacket.DecodeFunc(layerStartup)})
	LayerTypeMPA     = gopacket.RegisterLayerType(1741, gopacket.LayerTypeMetadata{Name: "MPA", Decoder: gopacket.DecodeFunc(layerMPA)})
	LayerTypeDDP     = gopacket.RegisterLayerType(1742, gopacket.LayerTypeMetadata{Name: "DDP", Decoder: gopacket.DecodeFunc(layerDDP)})
	LayerTypeRDMAP   = gopacket.RegisterLayerType(1743, gopacket.LayerTypeMetadata{Name: "RDMAP", Decoder: gopacket.DecodeFunc(layerRDMAP)})
)

// LayerType implements gopacket.Layer.
func (*Startup) LayerType() gopacket.LayerType { return LayerTypeStartup }

// LayerContents implements gopacket.Layer.
func (s *Startup) LayerContents() []byte { return s.Contents }

// LayerPayload implements gopacket.Layer.
func (s *Startup) LayerPayload() []byte { return s.Payload }

// LayerType implements gopacket.Layer.
func (*MPA) LayerType() gopacket.LayerType { return LayerTypeMPA }

// LayerContents implements gopacket.Layer.
func (m *MPA) LayerContents() []byte { return m.Contents }

// LayerPayload implements gopacket.Layer.
func (m *MPA) LayerPayload() []byte { return m.Payload }

// LayerType implements gopacket.Layer.
func (*DDP) LayerType() gopacket.LayerType { return LayerTypeDDP }

// LayerContents implements gopacket.Layer.
func (d *DDP) LayerContents() []byte { return d.Contents }

// LayerPayload implements gopacket.Layer.
func (d *DDP) LayerPayload() []byte { return d.Payload }

// LayerType implements gopacket.Layer.
func (*RDMAP) LayerType() gopacket.LayerType { return LayerTypeRDMAP }

// LayerContents implements gopacket.Layer.
func (r *RDMAP) LayerContents() []byte { return r.Contents }

// LayerPayload implements gopacket.Layer.
func (r *RDMAP) LayerPayload() []byte { return r.Payload }

func layerStartup(b []byte, p gopacket.PacketBuilder) error {
	s := new(Startup)
	if err := s.decode(b); err != nil {
		return err
	}
	p.AddLayer(s)
	if len(s.Payload) == 0 {
		return nil
	}
	return p.NextDecoder(LayerTypeMPA)
}

func layerMPA(b []byte, p gopacket.PacketBuilder) error {
	m := new(MPA)
	if _, err := m.decode(b); err != nil {
		return err
	}
	p.AddLayer(m)
	return p.NextDecoder(LayerTypeDDP)
}

func layerDDP(b []byte, p gopacket.PacketBuilder) error {
	d := new(DDP)
	if err := d.decode(b); err != nil {
		return err
	}
	p.AddLayer(d)
	// The opcode stands in the DDP header, so RDMAP needs more than the payload.
	r := new(RDMAP)
	if err := r.decode(d); err != nil {
		return err
	}
	p.AddLayer(r)
	if len(r.Payload) > 0 {
		p.AddLayer((*gopacket.Payload)(&r.Payload))
	}
	return nil
}

func layerRDMAP([]byte, gopacket.PacketBuilder) error {
	return errors.New("an RDMAP header cannot be read without the DDP header before it")
}

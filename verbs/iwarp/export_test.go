package iwarp

import (
	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/verbs"
)

// OpenKernelWith opens a device on the host's TCP sockets whose provider change has
// changed. The table is the device's.
func OpenKernelWith(p Protocol, change func(*verbs.Provider)) (*verbs.Device, *ddp.Table, error) {
	d, err := openKernel(p)
	if err != nil {
		return nil, nil, err
	}
	prov := d.provider()
	change(&prov)
	return verbs.NewDevice(prov), d.table, nil
}

// OpenKernelWithKeys opens a device on the host's TCP sockets whose regions have
// the address and the key that choose says, for tests that replay octets; where
// it says no, those they would have anyway. The table is the device's.
func OpenKernelWithKeys(p Protocol, choose func(mem []byte) (base uint64, key verbs.Key, ok bool)) (*verbs.Device, *ddp.Table, error) {
	d, err := openKernel(p)
	if err != nil {
		return nil, nil, err
	}
	prov := d.provider()
	usual := prov.RegMR
	prov.RegMR = func(pd uint32, mem []byte, a verbs.Access) (verbs.Key, uint64, error) {
		base, key, ok := choose(mem)
		if !ok {
			return usual(pd, mem, a)
		}
		return key, base, d.table.RegisterBase(mem, ddp.PD(pd), ddp.Access(a), base, ddp.STag(key))
	}
	return verbs.NewDevice(prov), d.table, nil
}

// OpenKernelWithRings opens a device on the host's TCP sockets that shows the rings of
// each queue pair made on it.
func OpenKernelWithRings(show func(verbs.QPSetup)) (*verbs.Device, error) {
	d, _, err := OpenKernelWith(Protocol{}, func(prov *verbs.Provider) {
		usual := prov.CreateQP
		prov.CreateQP = func(s verbs.QPSetup) (verbs.QPOps, error) {
			show(s)
			return usual(s)
		}
	})
	return d, err
}

func openKernel(p Protocol) (*device, error) {
	p, err := p.withDefaults()
	if err != nil {
		return nil, err
	}
	c := Config{Backend: Kernel, Protocol: p, SpinFor: DefaultSpin}
	if c.Limits, err = c.Limits.withDefaults(); err != nil {
		return nil, err
	}
	return c.open()
}

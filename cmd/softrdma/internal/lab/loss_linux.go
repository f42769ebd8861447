package lab

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// What a program on TCX returns, from the kernel's uapi/linux/bpf.h.
const (
	tcxNext = -1
	tcxDrop = 2
)

// lossCount is the value of the map: frames that came in and those dropped.
type lossCount struct{ Frames, Lost uint64 }

// NoLoss tells why this kernel cannot lose frames on a bridge, or nil.
func NoLoss() error {
	const loopback = 1
	_, err := link.QueryPrograms(link.QueryOptions{Target: loopback, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return fmt.Errorf("this kernel has no TCX, which came with Linux 6.6: %w", err)
	}
	return nil
}

// attachLoss puts the program on both ports of the bridge. It stays there as
// long as they exist, without us.
func (h *Host) attachLoss(i *Impairment) error {
	return inNamespace(h.Lab.Wire.Namespace, func() error {
		for n, s := range h.Lab.sides() {
			if err := attachLoss(s.Port, i.Loss, i.seeds()[n]); err != nil {
				return fmt.Errorf("%s: %w", s.Port, err)
			}
		}
		return nil
	})
}

func attachLoss(name string, p float64, seed uint64) error {
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	prog, counts, err := loadLoss(p, seed)
	if err != nil {
		return err
	}
	defer prog.Close()
	defer counts.Close()
	return link.RawAttachProgram(link.RawAttachProgramOptions{Target: dev.Index, Program: prog, Attach: ebpf.AttachTCXIngress})
}

// loadLoss loads the program and its counters.
func loadLoss(p float64, seed uint64) (*ebpf.Program, *ebpf.Map, error) {
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Name: lossName, Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1})
	if err != nil {
		return nil, nil, fmt.Errorf("no BPF map to be had: %w", err)
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: lossName, Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: lossProgram(counts.FD(), threshold(p), seed),
	})
	if err != nil {
		counts.Close()
		return nil, nil, fmt.Errorf("the kernel does not take the BPF program: %w", err)
	}
	return prog, counts, nil
}

// lossProgram counts a frame, draws its number and drops it if that is below
// the limit.
func lossProgram(counts int, limit, seed uint64) asm.Instructions {
	const pass = "pass"
	u64 := func(r asm.Register, v uint64) asm.Instruction { return asm.LoadImm(r, int64(v), asm.DWord) }
	// z ^= z >> shift
	fold := func(shift int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R2, asm.R1),
			asm.RSh.Imm(asm.R2, shift),
			asm.Xor.Reg(asm.R1, asm.R2),
		}
	}
	// r1 becomes what was there before. The assembler leaves the flag that asks
	// for it out, so it is set by hand.
	const fetch = 0x01 // BPF_FETCH
	n := asm.FetchAdd.Mem(asm.R0, asm.R1, asm.DWord, 0)
	n.Constant = fetch
	p := asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, counts),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, pass), // never, but the verifier asks

		asm.Mov.Imm(asm.R1, 1),
		n,
		asm.Add.Imm(asm.R1, 1),
		u64(asm.R2, splitStep),
		asm.Mul.Reg(asm.R1, asm.R2),
		u64(asm.R2, seed),
		asm.Add.Reg(asm.R1, asm.R2),
	}
	p = append(p, fold(30)...)
	p = append(p, u64(asm.R2, splitMul1), asm.Mul.Reg(asm.R1, asm.R2))
	p = append(p, fold(27)...)
	p = append(p, u64(asm.R2, splitMul2), asm.Mul.Reg(asm.R1, asm.R2))
	p = append(p, fold(31)...)
	return append(p,
		asm.RSh.Imm(asm.R1, 32),
		u64(asm.R2, limit),
		asm.JGE.Reg(asm.R1, asm.R2, pass),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 8),
		asm.Mov.Imm(asm.R0, tcxDrop),
		asm.Return(),
		asm.Mov.Imm(asm.R0, tcxNext).WithSymbol(pass),
		asm.Return(),
	)
}

// losses reads the counters of the bridge's ports.
func (h *Host) losses() ([]Direction, error) {
	var list []Direction
	err := inNamespace(h.Lab.Wire.Namespace, func() error {
		for _, s := range h.Lab.sides() {
			c, err := readLoss(s.Port)
			if err != nil {
				return fmt.Errorf("%s: %w", s.Port, err)
			}
			list = append(list, Direction{Frames: c.Frames, Lost: c.Lost})
		}
		return nil
	})
	return list, err
}

// readLoss finds the program of a port by its name.
func readLoss(name string) (c lossCount, err error) {
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return c, err
	}
	on, err := link.QueryPrograms(link.QueryOptions{Target: dev.Index, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return c, err
	}
	for _, p := range on.Programs {
		found, err := readCounts(p.ID, &c)
		if found || err != nil {
			return c, err
		}
	}
	return c, errors.New("the BPF program is gone: nothing is lost here any more")
}

// readCounts reads the map of a program if that is ours.
func readCounts(id ebpf.ProgramID, c *lossCount) (ours bool, err error) {
	prog, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return false, err
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil || info.Name != lossName {
		return false, err
	}
	ids, _ := info.MapIDs()
	if len(ids) != 1 {
		return false, fmt.Errorf("BPF program %d has %d maps, not one", id, len(ids))
	}
	counts, err := ebpf.NewMapFromID(ids[0])
	if err != nil {
		return false, err
	}
	defer counts.Close()
	return true, counts.Lookup(uint32(0), c)
}

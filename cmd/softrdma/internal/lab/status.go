package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"syscall"
)

// Status is what stands of a lab.
type Status struct {
	Sides    []SideStatus `json:"sides"`
	Plan     Plan         `json:"plan"`
	Wire     *WireStatus  `json:"wire,omitempty"`
	Problems []string     `json:"problems,omitempty"`
}

// SideStatus is what stands of a side.
type SideStatus struct {
	Name      string         `json:"name"`
	Namespace string         `json:"namespace"`
	Interface string         `json:"interface"`
	MTU       int            `json:"mtu"` // 0 if the interface is gone
	Own       []netip.Prefix `json:"own"`
	Kernel    []string       `json:"kernel"`
}

// WireStatus is what stands of the wire and what came through it.
type WireStatus struct {
	Namespace string     `json:"namespace"`
	Bridge    string     `json:"bridge,omitempty"`
	PID       int        `json:"pid,omitempty"` // of the wire process
	FromA     *Direction `json:"from_a,omitempty"`
	FromB     *Direction `json:"from_b,omitempty"`
}

// Status looks what stands of the lab. If there is nothing, or less than a
// command could be run in, the error is that of Ready. What is wrong with a lab
// that is up is among its problems.
func (h *Host) Status(ctx context.Context) (*Status, error) {
	if err := h.Ready(); err != nil {
		return nil, err
	}
	s := new(Status)
	st, err := h.readState()
	switch {
	case err == nil:
		s.Plan = st.Plan
	case errors.Is(err, fs.ErrNotExist):
		s.problem("%s is missing: what the lab does to frames is not known", h.statePath())
	default:
		s.problem("what the lab does to frames is not known: %v", err)
	}
	for i, side := range h.Lab.sides() {
		ss, err := side.status("ab"[i : i+1])
		if err != nil {
			s.problem("%v", err)
		}
		s.Sides = append(s.Sides, ss)
	}
	if s.Plan.Impair == nil {
		return s, nil
	}
	s.Wire = &WireStatus{Namespace: h.Lab.Wire.Namespace}
	var counts []Direction
	if s.Plan.Impair.process() {
		s.Wire.PID = st.Wire.PID
		counts, err = askWire(ctx, h.Lab.wireConfig(&s.Plan).Socket)
		// A process that is being killed is still there for a while and answers no more.
		if !st.Wire.alive() || errors.Is(err, syscall.ECONNREFUSED) {
			s.problem("the wire process, %d, has ended: no frame gets from one side to the other", st.Wire.PID)
			if err := h.lastWords(); err != nil {
				s.problem("its last words: %v", err)
			}
			return s, nil
		}
	} else {
		s.Wire.Bridge = h.Lab.Wire.Bridge
		counts, err = h.losses()
	}
	if err != nil {
		s.problem("no counters of the wire: %v", err)
		return s, nil
	}
	s.Wire.FromA, s.Wire.FromB = &counts[0], &counts[1]
	return s, nil
}

func (s *Status) problem(format string, args ...any) {
	s.Problems = append(s.Problems, fmt.Sprintf(format, args...))
}

func (s *Side) status(name string) (SideStatus, error) {
	ss := SideStatus{Name: name, Namespace: s.Namespace, Interface: s.Interface, Own: s.Own}
	err := inNamespace(s.Namespace, func() error {
		dev, err := net.InterfaceByName(s.Interface)
		if err != nil {
			return err
		}
		ss.MTU = dev.MTU
		addrs, err := dev.Addrs()
		for _, a := range addrs {
			ss.Kernel = append(ss.Kernel, a.String())
		}
		if err == nil && dev.Flags&net.FlagUp == 0 {
			err = errors.New("it is down")
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("interface %s in %s: %w", s.Interface, s.Namespace, err)
	}
	return ss, err
}

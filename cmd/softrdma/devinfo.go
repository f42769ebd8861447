package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

func (a *app) devinfoCommand() *cobra.Command {
	var verbose, asJSON bool
	c := &cobra.Command{
		Use:   "devinfo",
		Short: "Show the device that the flags and the environment open",
		Long: `Opens the device as the other commands do, prints what it is and closes it:
the names are those of ibv_devinfo. With -v it also tells what memory the device
holds, in what kind of pages, and what would make it better.`,
		Args: wantArgs(),
		RunE: func(c *cobra.Command, _ []string) (err error) {
			dev, closeDevice, err := a.openDevice(c.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, closeDevice()) }()
			if asJSON {
				return a.writeJSON(newDeviceDocument(dev))
			}
			return a.printDevice(dev, verbose)
		},
	}
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "the limits, memory and counters too")
	jsonFlag(c, &asJSON)
	return c
}

// deviceDocument is what --json prints.
type deviceDocument struct {
	Schema    string            `json:"schema"`
	Name      string            `json:"hca_id"`
	Transport string            `json:"transport"`
	NodeType  string            `json:"node_type"`
	Version   string            `json:"fw_ver"`
	Backend   string            `json:"backend"`
	MTU       int               `json:"mtu"`
	AtomicCap string            `json:"atomic_cap"`
	Limits    []deviceLimit     `json:"limits"`
	Memory    []deviceMemory    `json:"memory"`
	Counters  map[string]uint64 `json:"counters"`
}

type deviceLimit struct {
	Name  string `json:"name"`
	Value int64  `json:"value"`
}

// deviceMemory is some of the memory that a device holds as long as it is open.
type deviceMemory struct {
	Purpose  string `json:"purpose"`
	Count    int    `json:"count"`
	Size     int    `json:"size"`
	Octets   int    `json:"octets"`
	Pages    string `json:"pages"`
	PageSize int    `json:"page_size"`
	Locked   bool   `json:"locked"`
	Resident int    `json:"resident"` // -1: unknown
	InHuge   int    `json:"in_huge_pages"`
	Hint     string `json:"hint,omitempty"`
	text     string
}

func newDeviceDocument(dev *verbs.Device) *deviceDocument {
	attr := dev.Attr()
	return &deviceDocument{
		Schema: "softrdma.devinfo/v1", Name: attr.Name, Transport: attr.Transport.String(), NodeType: attr.NodeType.String(),
		Version: readBuild().Version, Backend: iwarp.Explain(dev), MTU: attr.MTU, AtomicCap: attr.AtomicCap.String(), Limits: limits(&attr),
		Memory: memory(dev), Counters: counters(dev),
	}
}

func memory(dev *verbs.Device) []deviceMemory {
	list := []deviceMemory{}
	for _, m := range iwarp.Memory(dev) {
		list = append(list, deviceMemory{m.Purpose, m.Count, m.Size, m.Octets, m.Pages, m.PageSize, m.Locked, m.Resident, m.InHuge, m.Why, m.Text})
	}
	return list
}

// limits are the numbers of ibv_devinfo -v that mean something here.
func limits(a *verbs.DeviceAttr) []deviceLimit {
	n := func(name string, v int) deviceLimit { return deviceLimit{name, int64(v)} }
	return []deviceLimit{
		{"max_mr_size", a.MaxMRSize},
		n("max_qp", a.MaxQP), n("max_qp_wr", a.MaxQPWR), n("max_sge", a.MaxSGE), n("max_sge_rd", a.MaxSGERd),
		n("max_inline_data", a.MaxInline), n("max_cq", a.MaxCQ), n("max_cqe", a.MaxCQE), n("max_mr", a.MaxMR),
		n("max_pd", a.MaxPD), n("max_qp_rd_atom", a.MaxQPRdAtom), n("max_qp_init_rd_atom", a.MaxQPInitRdAtom),
		n("max_mw", a.MaxMW), n("max_srq", a.MaxSRQ),
	}
}

func (a *app) printDevice(dev *verbs.Device, verbose bool) error {
	d := newDeviceDocument(dev)
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "hca_id:\t%s\n", d.Name)
	line := func(name string, v any) { fmt.Fprintf(w, "\t%s:\t%v\n", name, v) }
	line("transport", d.Transport)
	line("node_type", d.NodeType)
	line("fw_ver", d.Version)
	line("backend", d.Backend)
	line("mtu", d.MTU)
	if verbose {
		line("atomic_cap", d.AtomicCap)
		for _, l := range d.Limits {
			line(l.Name, l.Value)
		}
		for _, m := range d.Memory {
			line("memory", fmt.Sprintf("%s, %d x %d: %s", m.Purpose, m.Count, m.Size, m.text))
			if m.Hint != "" {
				line("memory_hint", m.Hint)
			}
		}
		for _, c := range dev.Stats().Counters {
			line(c.Name, c.Value)
		}
	}
	return w.Flush()
}

//go:build !linux

package mempool

type backing struct{}

func (r *Region) acquire(c *RegionConfig) error {
	r.mem = heapBytes(c.Size, c.Align)
	if c.Prefault {
		touch(r.mem)
	}
	r.info = heapInfo(c.Size)
	r.info.because("regions are mapped on Linux only")
	return nil
}

func (r *Region) look() {}

func (r *Region) release() error { return nil }

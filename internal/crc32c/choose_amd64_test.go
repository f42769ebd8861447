package crc32c

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/cpu"
)

// The method goes by what the processor has; one missing instruction is enough
// for the next method.
func TestChoose(t *testing.T) {
	x := &cpu.X86
	was := *x
	t.Cleanup(func() { *x = was })
	all := []*bool{&x.HasSSE42, &x.HasPCLMULQDQ, &x.HasAVX2, &x.HasAVX512F, &x.HasAVX512VL, &x.HasAVX512VPCLMULQDQ}
	set := func(missing int) {
		for i, f := range all {
			*f = i != missing
		}
	}
	set(-1)
	require.Equal(t, methodAVX512, choose())
	for i, want := range []method{methodStd, methodStd, methodSSE, methodSSE, methodSSE, methodSSE} {
		set(i)
		require.Equal(t, want, choose(), "%d", i)
	}
}

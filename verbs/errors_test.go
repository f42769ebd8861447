package verbs

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRejectionText prints a rejection in every way that a log may.
func TestRejectionText(t *testing.T) {
	t.Run("SEC-34 the private data of a rejection is not in its text", func(t *testing.T) {
		const evil = "EVIL\x1b[31m\nforged"
		var err error = &OpError{Op: "dial", Object: "192.0.2.1:7174", Err: &RejectError{PrivateData: []byte(evil)}}
		var log strings.Builder
		slog.New(slog.NewTextHandler(&log, nil)).Info("connect failed", "err", err)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("connect failed", "err", err)
		for _, text := range []string{err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%q", err), log.String()} {
			for _, form := range []string{"EVIL", "\x1b", "forged", "69 86 73 76", "4556494c", "4556494C", "45 56 49 4c", "RVZJ"} {
				require.NotContains(t, text, form)
			}
		}
		require.Contains(t, err.Error(), fmt.Sprintf("(%d octets of private data)", len(evil)), "its length alone")
	})
}

// Package readme holds the README to its word: the program in it is built and run.
package readme

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLibraryExample(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(text)
	require.NotNil(t, block, "the README has an example")
	want := regexp.MustCompile(`fmt\.Println\(<-done\) // (.*)`).FindSubmatch(block[1])
	require.NotNil(t, want, "the example says what it prints")

	// The program takes part in this module without a file in the tree.
	dir := t.TempDir()
	program := filepath.Join(dir, "main.go")
	require.NoError(t, os.WriteFile(program, block[1], 0o644))
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	overlay, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(root, "test", "readme", "example", "main.go"): program}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644))
	cmd := exec.Command("go", "run", "-overlay", filepath.Join(dir, "overlay.json"), "./test/readme/example")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, string(want[1]), strings.TrimSpace(string(out)))
}

// TestTargets: what README and CONTRIBUTING tell people to type exists.
func TestTargets(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	for _, name := range []string{"README.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile("../../" + name)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile("`make ([a-z]+)").FindAllSubmatch(text, -1) {
			require.Regexp(t, `(?m)^`+string(m[1])+`:.*##`, string(makefile), "%s speaks of make %s", name, m[1])
		}
	}
}

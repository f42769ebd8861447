package main

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// recipe makes the guest. Its hash names the image in the cache, so a change here makes
// a new one.
//
//go:embed image/build.sh image/init
var recipe embed.FS

var recipeFiles = []string{"image/build.sh", "image/init"}

// Image is a guest that is ready to boot.
type Image struct{ Kernel, Initrd string }

// cacheDir is where images live: outside the source tree, shared by all checkouts.
func cacheDir() (string, error) {
	dir := os.Getenv("SOFTRDMA_CACHE")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no place for the guest image: %w (set SOFTRDMA_CACHE)", err)
		}
		dir = filepath.Join(home, ".cache", "softrdma")
	}
	return filepath.Join(dir, "siwvm"), nil
}

func recipeHash() string {
	h := sha256.New()
	for _, name := range recipeFiles {
		b, err := recipe.ReadFile(name)
		if err != nil {
			panic(err) // embedded above
		}
		fmt.Fprintf(h, "%s %d\n", name, len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// buildImage returns the image of this recipe and makes it first where it is missing:
// a minute or two, once. Two processes that want it at the same time build it once.
func buildImage(log io.Writer) (Image, error) {
	cache, err := cacheDir()
	if err != nil {
		return Image{}, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Image{}, err
	}
	dir := filepath.Join(cache, recipeHash())
	img := Image{Kernel: filepath.Join(dir, "kernel"), Initrd: filepath.Join(dir, "initrd")}
	if img.exists() {
		return img, nil
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return Image{}, err
	}
	defer lock.Close() // frees the lock
	fmt.Fprintf(log, "guest image: building %s (needs root and Debian's package mirror)\n", dir)
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return Image{}, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if img.exists() { // somebody else made it meanwhile
		return img, nil
	}
	if err := build(dir, log); err != nil {
		return Image{}, fmt.Errorf("build the guest image: %w", err)
	}
	if !img.exists() {
		return Image{}, errors.New("build the guest image: the recipe ended well but left no image")
	}
	return img, nil
}

func (i Image) exists() bool {
	for _, f := range []string{i.Kernel, i.Initrd} {
		if st, err := os.Stat(f); err != nil || st.Size() == 0 {
			return false
		}
	}
	return true
}

// build runs the recipe in a scratch folder and moves the result to dir in one step.
func build(dir string, log io.Writer) error {
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for _, name := range recipeFiles {
		b, err := recipe.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(tmp, filepath.Base(name)), b, 0o755); err != nil {
			return err
		}
	}
	cmd := exec.Command(filepath.Join(tmp, "build.sh"), tmp)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return err
	}
	_ = os.RemoveAll(dir) // an incomplete one
	return os.Rename(tmp, dir)
}

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// state is what the kernel cannot tell about a lab.
type state struct {
	Plan Plan    `json:"plan"`
	Wire process `json:"wire"`
}

// process names a process for good: its number may be given to another one.
type process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // when it began, in ticks since the host did
}

// makeDir makes the lab's directory, which must not exist: two cannot build
// the same lab at once.
func (h *Host) makeDir(p *Plan) error {
	if err := os.MkdirAll(filepath.Dir(h.Lab.Dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(h.Lab.Dir, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return ErrHalfUp
		}
		return err
	}
	return h.writeState(&state{Plan: *p})
}

func (h *Host) removeDir() error {
	err := os.RemoveAll(h.Lab.Dir)
	_ = os.Remove(filepath.Dir(h.Lab.Dir)) // stays if another lab is in it
	return err
}

func (h *Host) hasDir() bool {
	_, err := os.Stat(h.Lab.Dir)
	return err == nil
}

func (h *Host) statePath() string { return filepath.Join(h.Lab.Dir, "lab.json") }
func (h *Host) logPath() string   { return filepath.Join(h.Lab.Dir, "wire.log") }

func (h *Host) writeState(s *state) error { return writeJSON(h.statePath(), s) }

func (h *Host) readState() (*state, error) {
	s := new(state)
	return s, readJSON(h.statePath(), s)
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// identify returns the process that has the number now.
func identify(pid int) (process, error) {
	_, start, err := look(pid)
	return process{pid, start}, err
}

// alive tells whether the process still runs.
func (p process) alive() bool {
	if p.PID <= 0 {
		return false
	}
	state, start, err := look(p.PID)
	return err == nil && start == p.Start && state != "Z" && state != "X"
}

func (p process) kill(s syscall.Signal) error {
	if !p.alive() {
		return nil
	}
	if err := syscall.Kill(p.PID, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("process %d does not let itself be ended: %w", p.PID, err)
	}
	return nil
}

// look reads the state and the start time of a process.
func look(pid int) (state, start string, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", "", err
	}
	// The second field is the name in parentheses, and may contain anything.
	line := string(b)
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	const startTime = 22 - 3 // the third field is the first here
	if len(fields) <= startTime {
		return "", "", fmt.Errorf("/proc/%d/stat has only %d fields", pid, len(fields))
	}
	return fields[0], fields[startTime], nil
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopTime is how long a process may take to end when told to.
const stopTime = 5 * time.Second

// process is a program that runs in one of the namespaces.
type process struct {
	cmd      *exec.Cmd
	line     string // as one would type it
	out, err transcript
	ended    chan struct{}
	result   error // of Wait, once ended is closed
}

// transcript keeps what a process prints.
type transcript struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (t *transcript) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(b)
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// start starts a program in a namespace. When ctx ends it is told to end, too.
func (s *stage) start(ctx context.Context, namespace string, env []string, argv ...string) (*process, error) {
	p := &process{ended: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", namespace}, argv...)...)
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = stopTime
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // if we end by force
	// What is set outside must not say which device to open.
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "SOFTRDMA_") && !strings.HasPrefix(v, "UCX_") && !strings.HasPrefix(v, "FI_") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	p.line = strings.Join(append(env, p.cmd.Args...), " ")
	s.say("%s", p.line)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.result = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// until waits for something that the process does, for at most ten seconds.
func (p *process) until(ctx context.Context, what string, done func() bool) error {
	for end := time.Now().Add(10 * time.Second); !done(); {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.ended:
			if done() {
				return nil
			}
			return p.failure(fmt.Errorf("it ended before %s", what))
		case <-time.After(2 * time.Millisecond):
		}
		if time.Now().After(end) {
			return p.failure(fmt.Errorf("it takes too long until %s", what))
		}
	}
	return nil
}

// says is for until: the process has printed text.
func (p *process) says(text string) func() bool {
	return func() bool {
		return strings.Contains(p.out.String(), text) || strings.Contains(p.err.String(), text)
	}
}

// wait waits until the process ends by itself.
func (p *process) wait(ctx context.Context, limit time.Duration) error {
	select {
	case <-p.ended:
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), p.stop())
	case <-time.After(limit):
		return errors.Join(p.failure(fmt.Errorf("it does not end within %v", limit)), p.stop())
	}
	if p.result != nil {
		return p.failure(p.result)
	}
	return nil
}

// stop tells the process to end if it runs, by SIGTERM first.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopTime):
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
	return p.failure(errors.New("it did not end when told to"))
}

// cpu is the processor time of a process that has ended.
func (p *process) cpu() time.Duration {
	<-p.ended
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

// failure adds the command and what it said to an error.
func (p *process) failure(err error) error {
	said := strings.TrimSpace(p.err.String())
	if said == "" {
		said = strings.TrimSpace(p.out.String())
	}
	if len(said) > 600 {
		said = "..." + said[len(said)-600:]
	}
	return fmt.Errorf("%s: %w: %s", p.line, err, strings.ReplaceAll(said, "\n", "; "))
}

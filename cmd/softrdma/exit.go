package main

import (
	"errors"
	"fmt"
)

// The exit codes of the program.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitMissed = 3 // a threshold that the user set
)

// exitError is an error that knows its exit code and what the user can do.
type exitError struct {
	code int
	err  error
	next string
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usagef is a command line that cannot be followed.
func usagef(next, format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...), next: next}
}

// failed adds a next step to an error, unless it has one.
func failed(err error, next string) error {
	var e *exitError
	if err == nil || errors.As(err, &e) {
		return err
	}
	return &exitError{code: exitFailed, err: err, next: next}
}

// report prints err and returns the exit code for it.
func (a *app) report(err error) int {
	if err == nil {
		return exitOK
	}
	e := &exitError{code: exitFailed, err: err}
	errors.As(err, &e)
	fmt.Fprintf(a.stderr, "softrdma: %v\n", err)
	if e.next == "" {
		e.next = nextStep(err)
	}
	if e.next != "" {
		fmt.Fprintf(a.stderr, "  next: %s\n", e.next)
	}
	return e.code
}

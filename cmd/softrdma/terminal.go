package main

import "io"

type color string

const (
	red   color = "\x1b[31m"
	green color = "\x1b[32m"
	plain color = "\x1b[0m"
)

// paint colours s where stdout is a terminal and NO_COLOR is not set.
func (a *app) paint(c color, s string) string {
	if a.env("NO_COLOR") != "" || a.env("TERM") == "dumb" || !isTerminal(a.stdout) {
		return s
	}
	return string(c) + s + string(plain)
}

// isTerminal tells whether somebody watches.
func isTerminal(w io.Writer) bool {
	f, ok := w.(interface{ Fd() uintptr })
	return ok && isTTY(f.Fd())
}

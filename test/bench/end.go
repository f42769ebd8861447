package main

import (
	"fmt"
	"io"
	"strconv"
	"time"
)

// runEnd is one side of the measurements that this program makes by itself: it runs in a
// namespace, in a process of its own.
func runEnd(args []string, out io.Writer) error {
	verb := ""
	if len(args) > 0 {
		verb, args = args[0], args[1:]
	}
	want, ok := map[string]int{"take": 2, "gather": 4, "echo-frames": 1, "ping-frames": 3}[verb]
	if !ok || len(args) != want {
		return fmt.Errorf("%q with %d arguments: it is started by bench", verb, len(args))
	}
	var numbers []int
	if verb == "take" || verb == "gather" {
		for _, a := range args[1:min(3, len(args))] {
			n, err := strconv.Atoi(a)
			if err != nil || n < 8 && len(numbers) == 0 || n < 1 {
				return fmt.Errorf("%q is no number that goes here", a)
			}
			numbers = append(numbers, n)
		}
	}
	var each time.Duration
	if verb == "gather" || verb == "ping-frames" {
		var err error
		if each, err = time.ParseDuration(args[len(args)-1]); err != nil {
			return err
		}
	}
	switch verb {
	case "take":
		return take(args[0], numbers[0], out)
	case "gather":
		return gather(args[0], numbers[0], numbers[1], each, out)
	case "echo-frames":
		return echoFrames(args[0], out)
	}
	return pingFrames(args[0], args[1], each, out)
}

//go:build !linux

package main

func isTTY(uintptr) bool { return false }

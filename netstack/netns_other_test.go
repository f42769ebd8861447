//go:build !linux

package netstack

func vethCarriers(family) []carrier { return nil }

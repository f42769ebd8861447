//go:build !linux

package netstack

func vethCarriers() []carrier { return nil }

//go:build !linux

package controlplane

import (
	"fmt"
	"net"
)

// newPort finds a port that is free now. Another process may take it before
// its listener starts, and while its listener is down: Start then tries again
// with other ports, and Restart and Proxy.Pass fail.
func newPort() (*port, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	number := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	return &port{number: number, release: func() {}}, nil
}

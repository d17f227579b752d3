package controlplane

import (
	"fmt"
	"sync"
	"syscall"
)

// newPort reserves a port until it is released. It does so with a socket that
// is bound but never listens: the kernel then gives the port to no other process,
// refuses connections to it, and yet lets any one process that sets
// SO_REUSEADDR, as every Go program does, listen on it. So a killed API server
// comes back on its own port, and a Proxy that refuses connections keeps its.
func newPort() (*port, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	number, err := bindLoopback(fd)
	if err != nil {
		_ = syscall.Close(fd)
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	return &port{number: number, release: sync.OnceFunc(func() { _ = syscall.Close(fd) })}, nil
}

func bindLoopback(fd int) (int, error) {
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, err
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, err
	}
	address, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	return address.(*syscall.SockaddrInet4).Port, nil
}

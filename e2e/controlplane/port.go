package controlplane

import (
	"net"
	"strconv"
)

// loopback is where everything listens: nothing is reachable from outside.
const loopback = "127.0.0.1"

// A port is a TCP port of loopback that the kernel chose for us. See newPort
// for how firmly it is ours.
type port struct {
	number  int
	release func()
}

// address is host:port.
func (p *port) address() string {
	return net.JoinHostPort(loopback, strconv.Itoa(p.number))
}

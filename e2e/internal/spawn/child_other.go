//go:build !linux

package spawn

import "syscall"

// ChildAttributes put a child in a process group of its own, so that Ctrl-C in
// a terminal reaches us and not it. There is no death signal on this system:
// the pipe alone ends orphans, and one that is stopped stays until it is
// continued.
func ChildAttributes(syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

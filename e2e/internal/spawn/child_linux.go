package spawn

import "syscall"

// ChildAttributes put a child in a process group of its own, so that Ctrl-C in
// a terminal reaches us and not it, and have the kernel send it death when the
// thread that started it ends.
func ChildAttributes(death syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death}
}

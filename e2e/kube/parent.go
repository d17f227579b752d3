package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
)

// parentFD names the file descriptor that is the read end of a pipe whose
// write end only the parent holds.
const parentFD = "FINGERPOST_PARENT_FD"

// dieWithParent ends this process as soon as the pipe that the parent passed
// is closed. The kernel closes it whatever ends the parent, so no control
// plane outlives the test or the demo that started it. Without the variable
// the process is on its own, as the original programs are.
func dieWithParent() error {
	value, ok := os.LookupEnv(parentFD)
	if !ok {
		return nil
	}
	fd, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return fmt.Errorf("%s=%q: want the number of an open pipe: %w", parentFD, value, err)
	}
	// Neither the variable nor the pipe is for this program's own children.
	_ = os.Unsetenv(parentFD)
	syscall.CloseOnExec(int(fd))
	pipe := os.NewFile(uintptr(fd), "parent")
	if _, err := pipe.Stat(); err != nil {
		return fmt.Errorf("%s=%q: want the number of an open pipe: %w", parentFD, value, err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, pipe)
		os.Exit(1)
	}()
	return nil
}

package controlplane

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// awaitStop returns once every thread of a child that was sent SIGSTOP has
// stopped: until then it may go on working. The state stays for others to see.
func awaitStop(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			if err != nil {
				return fmt.Errorf("wait until process %d has stopped: %w", pid, err)
			}
			return nil
		}
	}
}

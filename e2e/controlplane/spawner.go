package controlplane

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// A spawner starts processes that cannot outlive this one. It has two means,
// because each has a hole that the other closes:
//
//   - The read end of a pipe, which the program watches: closed by the kernel
//     when this process is gone, on every system; but a stopped process
//     (SIGSTOP) does not notice.
//   - On Linux, a death signal: SIGKILL, which a stopped process does not
//     survive either; but it is sent when the *thread* that forked ends, and Go
//     ends threads as it likes. So one goroutine forks everything, on a thread
//     that is kept until close.
type spawner struct {
	// alive is the write end, which nobody writes to; watched is the other.
	alive, watched *os.File
	requests       chan func() // to the goroutine
	wg             sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

func newSpawner() (*spawner, error) {
	watched, alive, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	s := &spawner{requests: make(chan func()), alive: alive, watched: watched}
	s.wg.Go(s.run)
	return s, nil
}

func (s *spawner) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for request := range s.requests {
		request()
	}
}

// start starts the command, which must not have been given extra files.
func (s *spawner) start(command *exec.Cmd) error {
	command.ExtraFiles = []*os.File{s.watched} // becomes number 3
	command.Env = append(command.Environ(), "FINGERPOST_PARENT_FD=3")
	command.SysProcAttr = childAttributes(syscall.SIGKILL)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errStopped
	}
	started := make(chan error, 1)
	s.requests <- func() { started <- command.Start() }
	return <-started
}

// close gives the thread and the pipe back, which ends whatever still runs.
func (s *spawner) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	close(s.requests)
	s.wg.Wait()
	_ = s.alive.Close()
	_ = s.watched.Close()
}

// Package spawn starts processes that end with the one that starts them.
package spawn

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// A Spawner starts processes that cannot outlive this one. It has two means,
// because each has a hole that the other closes:
//
//   - The read end of a pipe, which the program watches: closed by the kernel
//     when this process is gone, on every system; but a stopped process
//     (SIGSTOP) does not notice.
//   - On Linux, a death signal: SIGKILL, which a stopped process does not
//     survive either; but it is sent when the *thread* that forked ends, and Go
//     ends threads as it likes. So one goroutine forks everything, on a thread
//     that is kept until close.
type Spawner struct {
	// alive is the write end, which is never written to; watched is the other.
	alive, watched *os.File
	requests       chan func() // to the goroutine
	wg             sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

// ErrClosed is what a closed Spawner answers.
var ErrClosed = errors.New("the spawner is closed")

// New returns a Spawner, which its owner closes.
func New() (*Spawner, error) {
	watched, alive, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	s := &Spawner{requests: make(chan func()), alive: alive, watched: watched}
	s.wg.Go(s.run)
	return s, nil
}

func (s *Spawner) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for request := range s.requests {
		request()
	}
}

// Start starts the command, which must not have been given extra files.
func (s *Spawner) Start(command *exec.Cmd) error {
	command.ExtraFiles = []*os.File{s.watched} // becomes number 3
	command.Env = append(command.Environ(), "FINGERPOST_PARENT_FD=3")
	command.SysProcAttr = ChildAttributes(syscall.SIGKILL)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	started := make(chan error, 1)
	s.requests <- func() { started <- command.Start() }
	return <-started
}

// Close gives the thread and the pipe back, which ends whatever still runs.
// Further calls do nothing.
func (s *Spawner) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	close(s.requests)
	s.wg.Wait()
	_ = s.alive.Close()
	_ = s.watched.Close()
}

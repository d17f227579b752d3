package controlplane

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// A stateDir holds one cluster's files: certificates, tokens, etcd's data
// (more than 100 MB, mostly preallocated) and logs.
type stateDir struct {
	path string
	// lock is nil for a directory that the caller chose.
	lock io.Closer
}

// lockName is the file in every temporary state directory that its owner
// keeps locked. The kernel unlocks it when the owner ends, however it ends.
const lockName = "owner.lock"

// newStateDir makes the directory at path, or a temporary one if path is
// empty. In the latter case it also removes those of dead processes.
func newStateDir(path string) (*stateDir, error) {
	if path != "" {
		return newChosenDir(path)
	}
	base := filepath.Join(os.TempDir(), "fingerpost-"+strconv.Itoa(os.Getuid()))
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, fmt.Errorf("make a state directory: %w", err)
	}
	// Held while a new directory has no lock of its own yet, so that no process
	// sweeps it away.
	guard, err := lockFile(filepath.Join(base, "sweep.lock"), syscall.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("make a state directory: %w", err)
	}
	defer guard.Close()
	sweep(base)
	dir, err := os.MkdirTemp(base, "cluster-")
	if err != nil {
		return nil, fmt.Errorf("make a state directory: %w", err)
	}
	lock, err := lockFile(filepath.Join(dir, lockName), syscall.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("make a state directory: %w", err)
	}
	return &stateDir{path: dir, lock: lock}, nil
}

func newChosenDir(path string) (*stateDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("make a state directory: %w", err)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make a state directory: %w", err)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("make a state directory: %w", err)
	}
	if len(entries) > 0 {
		return nil, fmt.Errorf("the state directory %s is not empty: remove it or choose another", path)
	}
	return &stateDir{path: path}, nil
}

// sweep removes the directories whose owner is gone. One that cannot be
// removed yet, because its owner's children are about to die, is left to the
// next sweep.
func sweep(base string) {
	dirs, err := filepath.Glob(filepath.Join(base, "cluster-*"))
	if err != nil {
		return // the temporary directory's name is no pattern
	}
	for _, dir := range dirs {
		lock, err := lockFile(filepath.Join(dir, lockName), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != nil {
			continue // its owner lives
		}
		_ = os.RemoveAll(dir)
		_ = lock.Close()
	}
}

// remove deletes a temporary directory; one that the caller chose stays.
func (d *stateDir) remove() error {
	if d.lock == nil {
		return nil
	}
	defer d.lock.Close()
	if err := os.RemoveAll(d.path); err != nil {
		return fmt.Errorf("remove the state directory: %w", err)
	}
	return nil
}

// lockFile opens the file, making it if need be, and locks it until it is
// closed. Children do not inherit the lock.
func lockFile(path string, how int) (io.Closer, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(file.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return file, nil
}

//go:build unix

package checkpoint

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Where no more can be written, in the middle of a file, the checkpoint that is there stays, and nothing else is left.
func TestDiskFull(t *testing.T) {
	dir := NewDir(filepath.Join(t.TempDir(), "state"), time.Hour)
	if err := dir.Save(east(large(100))); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	full := before
	full.Cur = 100_000
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &full); err != nil {
		t.Fatal(err)
	}
	err := dir.Save(east(large(10_000)))
	if restoreErr := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); restoreErr != nil {
		t.Fatal(restoreErr)
	}
	if !errors.Is(err, syscall.EFBIG) {
		t.Errorf("a file of a size that cannot be: %v", err)
	}
	c, err := dir.Load("east")
	if err != nil || c.Published.Views.Len() != 10 {
		t.Errorf("%d Services of the file before: %v", c.Published.Views.Len(), err)
	}
	if left, err := os.ReadDir(dir.path); err != nil || len(left) != 1 {
		t.Errorf("%v are left: %v", left, err)
	}
}

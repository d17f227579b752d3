// Package gobuild runs go build, and reports how much of it is done.
package gobuild

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fingerpost/fingerpost/e2e/internal/spawn"
)

// A Build is one run of go build.
type Build struct {
	Dir     string   // of the module
	Flags   []string // that change what is compiled, and those of the linker
	Package string
	Target  string   // the file to write
	Env     []string // of the go command

	percent atomic.Int64
}

// Percent returns how much of a Build that runs is done. What counts is the size of the sources: the time
// that a compiler takes is about proportional to it.
func (b *Build) Percent() int { return int(b.percent.Load()) }

// Run builds, and returns what the go command printed besides the names of packages. If ctx ends the go
// command is interrupted, and ends its compilers.
func (b *Build) Run(ctx context.Context) (output []byte, err error) {
	// The death signal of a child follows the thread that forked: keep it until the end.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sizes, err := b.outdated(ctx)
	if err != nil {
		return nil, err
	}
	total := linkShare
	for _, size := range sizes {
		total += size
	}
	command := b.command(ctx, append([]string{"build", "-v", "-o", b.Target}, append(b.Flags, b.Package)...)...)
	from, to := io.Pipe()
	command.Stdout, command.Stderr = to, to
	read := make(chan []byte)
	go func() {
		var other bytes.Buffer
		done := 0
		for lines := bufio.NewScanner(from); lines.Scan(); {
			size, is := sizes[lines.Text()]
			if !is {
				fmt.Fprintln(&other, lines.Text())
			}
			done += size // of a package that begins to be built
			b.percent.Store(int64(min(99, 100*done/total)))
		}
		_, _ = io.Copy(io.Discard, from) // a line that is too long must not block the build
		read <- other.Bytes()
	}()
	err = command.Run()
	_ = to.Close()
	return <-read, err
}

// linkShare is how many bytes of sources are compiled in the time that the linker takes.
const linkShare = 2 << 20

// outdated returns the size of the sources of each package that the go command has to build, by import path.
// It downloads modules that are missing.
func (b *Build) outdated(ctx context.Context) (map[string]int, error) {
	args := append([]string{"list", "-deps", "-json=ImportPath,Dir,GoFiles,SFiles,Stale"}, b.Flags...)
	command := b.command(ctx, append(args, b.Package)...)
	var failure bytes.Buffer
	command.Stderr = &failure
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, bytes.TrimSpace(failure.Bytes()))
	}
	sizes := map[string]int{}
	for packages := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir string
			GoFiles, SFiles []string
			Stale           bool
		}
		if err := packages.Decode(&p); errors.Is(err, io.EOF) {
			return sizes, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if !p.Stale {
			continue
		}
		for _, name := range append(p.GoFiles, p.SFiles...) {
			if info, err := os.Stat(filepath.Join(p.Dir, name)); err == nil {
				sizes[p.ImportPath] += int(info.Size())
			}
		}
	}
}

func (b *Build) command(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir, command.Env = b.Dir, b.Env
	command.SysProcAttr = spawn.ChildAttributes(syscall.SIGINT)
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = 10 * time.Second
	return command
}

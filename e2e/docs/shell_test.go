package docs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// command is a script as the reader's shell runs it.
func (w *world) command(ctx context.Context, script string) *exec.Cmd {
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	home := w.path("home")
	command.Dir = w.dir
	command.Env = []string{
		"PATH=" + w.path("bin") + ":" + os.Getenv("PATH"), "HOME=" + home, "HELM_CACHE_HOME=" + home,
		"HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home, "NO_COLOR=1",
	}
	// Its children end with it.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = time.Second
	return command
}

// run runs a script, which must succeed, and returns what it prints.
func (w *world) run(script string) string {
	w.t.Helper()
	began := time.Now()
	out, err := w.try(script)
	w.t.Logf("%s\n%s(%s)", strings.TrimSpace(script), out, time.Since(began).Round(time.Millisecond))
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// try is run for a script that may fail.
func (w *world) try(script string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(w.t.Context(), blockTimeout,
		fmt.Errorf("it does not end within %s", blockTimeout))
	defer cancel()
	out, err := w.command(ctx, script).CombinedOutput()
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	return string(out), err
}

// eventually waits until a script succeeds and prints all of want.
func (w *world) eventually(script string, want ...string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), waitTimeout)
	defer cancel()
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()

	for began := time.Now(); ; {
		out, err := w.try(script)
		for _, s := range want {
			if !strings.Contains(out, s) {
				err = errors.Join(err, fmt.Errorf("it does not print %q", s))
			}
		}
		if err == nil {
			w.t.Logf("%s: after %s", script, time.Since(began).Round(time.Millisecond))
			return
		}
		select {
		case <-ctx.Done():
			w.t.Fatalf("%s: %v, for %s:\n%s", script, err, waitTimeout, out)
		case <-ticker.C:
		}
	}
}

// A background is a script that does not end by itself.
type background struct {
	script string
	end    func()

	mu      sync.Mutex
	printed bytes.Buffer
}

// Write takes what it prints.
func (b *background) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.printed.Write(p)
}

func (b *background) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.printed.String()
}

// start starts a script that runs until the end of the section.
func (w *world) start(script string) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	b := &background{script: script}
	command := w.command(ctx, script)
	command.Stdout, command.Stderr = b, b
	w.must(command.Start())

	b.end = sync.OnceFunc(func() {
		cancel()
		_ = command.Wait()
		w.t.Logf("%s\n%s", strings.TrimSpace(script), b)
	})
	w.t.Cleanup(b.end)
	w.running = append(w.running, b)
}

func (w *world) stopBackground() {
	for _, b := range w.running {
		b.end()
	}
	w.running = nil
}

// prints waits until the script in the background has printed a text.
func (w *world) prints(text string) {
	w.t.Helper()
	w.printsTimes(text, 1)
}

// printsTimes waits until the script in the background has printed a text so often, or more often.
func (w *world) printsTimes(text string, times int) {
	w.t.Helper()
	if len(w.running) != 1 {
		w.t.Fatalf("%d scripts run in the background, want 1", len(w.running))
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), waitTimeout)
	defer cancel()
	w.must(mesh.Eventually(ctx, func(context.Context) error {
		if got := strings.Count(w.running[0].String(), text); got < times {
			return fmt.Errorf("%q is printed %d times, want %d:\n%s", text, got, times, w.running[0])
		}
		return nil
	}))
}

// printed checks that the commands of the section that have ended have printed all of want.
func (w *world) printed(want ...string) {
	w.t.Helper()
	for _, s := range want {
		if !strings.Contains(w.output, s) {
			w.t.Errorf("the commands print no %q:\n%s", s, w.output)
		}
	}
}

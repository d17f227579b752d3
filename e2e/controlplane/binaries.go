package controlplane

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fingerpost/fingerpost/e2e/internal/gobuild"
)

const (
	kubeModule = "github.com/fingerpost/fingerpost/e2e/kube"
	kubectl    = "kubectl"
)

// Binaries returns the directory with the programs of a control plane: etcd,
// kube-apiserver, kube-controller-manager, kube-scheduler, kubectl and kwok.
//
// The first call for a given state of e2e/kube builds them, which takes
// minutes and the go command, and prints how it goes. Later calls, in any
// process, find them in the user's cache directory and print nothing. Callers in
// several processes wait for one build.
//
// FINGERPOST_KUBERNETES names another minor of Kubernetes than that of e2e/kube/go.mod: one that has a file
// kubernetes-MINOR.mod beside it.
func Binaries(ctx context.Context, out io.Writer) (dir string, err error) {
	source, err := kubeSource()
	if err != nil {
		return "", fmt.Errorf("find the control plane's programs: %w", err)
	}
	build, err := newKubeBuild(ctx, source)
	if err != nil {
		return "", fmt.Errorf("find the control plane's programs: %w", err)
	}
	if err := build.once(ctx, out); err != nil {
		return "", fmt.Errorf("build the control plane's programs: %w", err)
	}
	return build.dir, nil
}

// Built reports whether Binaries will find the programs.
func Built(ctx context.Context) (bool, error) {
	source, err := kubeSource()
	if err != nil {
		return false, fmt.Errorf("find the control plane's programs: %w", err)
	}
	build, err := newKubeBuild(ctx, source)
	if err != nil {
		return false, fmt.Errorf("find the control plane's programs: %w", err)
	}
	return build.exists(), nil
}

// kubeSource finds e2e/kube: beside this file, or, where the build left no
// paths in the program (-trimpath), in the checkout around the working
// directory.
func kubeSource() (string, error) {
	_, file, _, _ := runtime.Caller(0)
	dir := filepath.Join(filepath.Dir(filepath.Dir(file)), "kube")
	if isKubeModule(dir) {
		return dir, nil
	}
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if dir := filepath.Join(at, "e2e", "kube"); isKubeModule(dir) {
			return dir, nil
		}
		parent := filepath.Dir(at)
		if parent == at {
			return "", fmt.Errorf("found no e2e/kube: run inside a checkout of %s",
				strings.TrimSuffix(kubeModule, "/e2e/kube"))
		}
		at = parent
	}
}

func isKubeModule(dir string) bool {
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && bytes.HasPrefix(mod, []byte("module "+kubeModule+"\n"))
}

// A kubeBuild is one state of e2e/kube, compiled by one Go for this machine.
type kubeBuild struct {
	source string
	dir    string
	flags  []string
	env    []string
}

func newKubeBuild(ctx context.Context, source string) (*kubeBuild, error) {
	modules := "go"
	if minor := os.Getenv("FINGERPOST_KUBERNETES"); minor != "" {
		modules = "kubernetes-" + minor
	}
	mod, err := os.ReadFile(filepath.Join(source, modules+".mod"))
	if err != nil {
		return nil, err
	}
	version := regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes (v\S+)`).FindSubmatch(mod)
	if version == nil {
		return nil, fmt.Errorf("%s requires no k8s.io/kubernetes", filepath.Join(source, modules+".mod"))
	}
	build := &kubeBuild{
		source: source,
		flags:  []string{"-buildvcs=false", "-ldflags", linkerFlags(string(version[1]))},
		// What the caller sets for its own builds must not leak into this one.
		// A compiler with more garbage is faster: two of them need 2 GB at the most.
		env: append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOOS="+runtime.GOOS,
			"GOARCH="+runtime.GOARCH, "GOGC=400"),
	}
	if modules != "go" {
		build.flags = append(build.flags, "-modfile", modules+".mod")
	}
	command := exec.CommandContext(ctx, "go", "env", "GOVERSION")
	command.Dir, command.Env = source, build.env
	compiler, err := command.Output()
	if err != nil {
		return nil, explainGo(err)
	}

	hash := sha256.New()
	args := append([]string{"build"}, build.flags...)
	fmt.Fprintf(hash, "%s %s %s %q\n", compiler, runtime.GOOS, runtime.GOARCH, args)
	files, err := filepath.Glob(filepath.Join(source, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, file := range append(files, filepath.Join(source, modules+".mod"), filepath.Join(source, modules+".sum")) {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(hash, "%s %d\n%s", filepath.Base(file), len(content), content)
	}
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	build.dir = filepath.Join(cache, hex.EncodeToString(hash.Sum(nil))[:16], "kube")
	return build, nil
}

// linkerFlags drop what only a debugger needs and set what Kubernetes' own
// release build sets: /version and the names of clients have it.
func linkerFlags(version string) string {
	numbers := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags,
			"-X "+pkg+".gitVersion="+version,
			"-X "+pkg+".gitMajor="+numbers[0],
			"-X "+pkg+".gitMinor="+numbers[1],
			// The default is a placeholder; the module does not hold the commit.
			"-X "+pkg+".gitCommit=",
		)
	}
	return strings.Join(flags, " ")
}

func cacheDir() (string, error) {
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no place for the programs, set XDG_CACHE_HOME: %w", err)
		}
		base = filepath.Join(home, ".cache")
	}
	return filepath.Join(base, "fingerpost"), nil
}

// once builds what no process has built before.
func (b *kubeBuild) once(ctx context.Context, out io.Writer) error {
	if b.exists() {
		return nil
	}
	lock, err := b.lock(ctx, out)
	if err != nil {
		return err
	}
	defer lock.Close()
	if b.exists() {
		return nil
	}
	return b.run(ctx, out)
}

// exists reports whether the programs are there. They appear all at once.
func (b *kubeBuild) exists() bool {
	_, err := os.Stat(b.dir)
	return err == nil
}

// lock waits until no other process is at work on the same build. The file
// stays: to remove it would let two processes lock two files of one name.
func (b *kubeBuild) lock(ctx context.Context, out io.Writer) (io.Closer, error) {
	parent := filepath.Dir(b.dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(parent, "build.lock")
	var lock io.Closer
	var failure error
	announce := sync.OnceFunc(func() {
		fmt.Fprintln(out, "control planes: waiting for another process that builds them")
	})
	err := until(ctx, func(context.Context) error {
		lock, failure = lockFile(path, syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(failure, syscall.EWOULDBLOCK) {
			announce()
			return failure
		}
		return nil
	})
	return lock, cmp.Or(err, failure)
}

// run builds beside the final directory and renames, so that a build that
// fails or is interrupted leaves nothing that looks like a finished one.
func (b *kubeBuild) run(ctx context.Context, out io.Writer) error {
	parent := filepath.Dir(b.dir)
	unfinished, err := filepath.Glob(filepath.Join(parent, "unfinished-*"))
	if err != nil {
		return err
	}
	for _, dir := range unfinished {
		_ = os.RemoveAll(dir) // of a build that was killed: we hold the lock
	}
	dir, err := os.MkdirTemp(parent, "unfinished-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // renamed by then, if all went well
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	if err := b.compile(ctx, filepath.Join(dir, "kube"), out); err != nil {
		return err
	}
	for _, name := range []Component{Etcd, APIServer, ControllerManager, Scheduler, Kwok, kubectl} {
		if err := os.Symlink("kube", filepath.Join(dir, string(name))); err != nil {
			return err
		}
	}
	return os.Rename(dir, b.dir)
}

func (b *kubeBuild) compile(ctx context.Context, target string, out io.Writer) error {
	fmt.Fprintf(out, "control planes: building %s into %s, once\n", b.source, b.dir)
	build := &gobuild.Build{Dir: b.source, Flags: b.flags, Package: ".", Target: target, Env: b.env}
	begin := time.Now()
	shown := gobuild.Show(out, "control planes: building", build.Percent)
	output, err := build.Run(ctx)
	shown()
	took := time.Since(begin).Round(time.Second)
	switch {
	case err == nil:
		fmt.Fprintf(out, "control planes: built in %v\n", took)
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted after %v: %w", took, context.Cause(ctx))
	case len(output) > 0:
		return fmt.Errorf("%w after %v; the end of its output:\n%s", explainGo(err), took, tail(output))
	default:
		return explainGo(err)
	}
}

// explainGo adds the way out to an error of the go command.
func explainGo(err error) error {
	var exit *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the go command is needed and not in PATH; install Go (https://go.dev/dl): %w", err)
	case errors.As(err, &exit) && len(exit.Stderr) > 0:
		return fmt.Errorf("the go command failed: %w: %s", err, tail(exit.Stderr))
	default:
		return fmt.Errorf("the go command failed: %w", err)
	}
}

// tail is the last lines of a log, enough to see why its writer gave up.
func tail(log []byte) []byte {
	const lines = 25
	log = bytes.TrimSpace(log)
	end := len(log)
	for range lines {
		newline := bytes.LastIndexByte(log[:end], '\n')
		if newline < 0 {
			return log
		}
		end = newline
	}
	return log[end+1:]
}

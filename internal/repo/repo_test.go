package repo

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/fingerpost/fingerpost"
	binary = module + "/cmd/fingerpost"
)

// goCommand runs a command of go that reads the sources, and returns what it prints. It looks at every source file
// itself: Go runs a test again when a file has changed that the test has looked at, and does not know of those that
// a command has read.
func goCommand(t *testing.T, args ...string) string {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == ".git":
			return filepath.SkipDir
		case filepath.Ext(path) == ".go" || filepath.Ext(path) == ".html":
			_, err = os.Stat(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=2", "GOMEMLIMIT=off") // defaults of flags follow them
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %q: %v", args, err)
	}
	return string(out)
}

// fingerpost runs the binary and returns what it prints. Go links it once for each change.
func fingerpost(t *testing.T, args ...string) string {
	t.Helper()
	return goCommand(t, append([]string{"run", binary}, args...)...)
}

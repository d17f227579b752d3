package repo

import (
	"os"
	"os/exec"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/fingerpost/fingerpost"
	binary = module + "/cmd/fingerpost"
)

// fingerpost runs the binary and returns what it prints. Go links it once for each change.
func fingerpost(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"run", binary}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("fingerpost %q: %v", args, err)
	}
	return string(out)
}

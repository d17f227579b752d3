// Package docs runs the commands of the pages that lead from nothing to a fleet, as they stand there, on real control
// planes: once where Linkerd's namespaces are, and once where they are not. A reader's machine is played by a directory
// with the program, the charts and a kubeconfig; nodes by package node. lists_test.go has what is not run, and why.
package docs

import (
	"context"
	"testing"

	"github.com/fingerpost/fingerpost/e2e/fingerpost"
)

// binary is the program that the pages call fingerpost.
var binary string

func TestMain(m *testing.M) {
	fingerpost.TestMain(context.Background(), false, func(_ context.Context, built string) (int, error) {
		binary = built
		return m.Run(), nil
	})
}

package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/e2e/internal/spawn"
)

// KubectlPath is where kubectl is, of the cluster's own version.
func (c *Cluster) KubectlPath() string { return filepath.Join(c.binaries, kubectl) }

// Kubectl runs kubectl with all rights and returns what it prints. It uses
// nothing of the user's own configuration.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(ctx, c.KubectlPath(),
		append([]string{"--kubeconfig=" + c.file(kubeconfigFile(kubectl))}, args...)...)
	command.Stdout, command.Stderr = &stdout, &stderr
	command.WaitDelay = time.Second
	err := c.start(command)
	if err == nil {
		err = command.Wait()
	}
	if err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s, for cluster %q: %w: %s", strings.Join(args, " "),
			c.name, err, tail(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// start starts a program in the state directory, which is also its home.
func (c *Cluster) start(command *exec.Cmd) error {
	command.Dir = c.dir.path
	command.Env = append(command.Environ(), "HOME="+c.dir.path)
	err := c.spawner.Start(command)
	if errors.Is(err, spawn.ErrClosed) {
		return errStopped
	}
	return err
}

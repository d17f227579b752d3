package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A second signal ends the process when the first one did not, such as while a program makes credentials.
func TestSecondSignal(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")

	err := os.WriteFile(kubeconfig, []byte(`apiVersion: v1
kind: Config
current-context: x
contexts: [{name: x, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users:
- name: u
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      interactiveMode: Never
      command: sh
      args: ["-c", "echo started >&2; exec sleep 30"]
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}

	reader, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}

	defer reader.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "clusters", "--kubeconfig", kubeconfig)
	cmd.Env, cmd.Stderr = append(os.Environ(), asProcess+"=1"), stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stderr.Close()
	defer func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }() // the program that makes credentials

	lines := bufio.NewScanner(reader)
	for lines.Scan() && lines.Text() != "started" {
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()

	for deadline := time.Now().Add(10 * time.Second); ; {
		select {
		case err := <-ended:
			if !strings.Contains(fmt.Sprint(err), "signal: interrupt") {
				t.Error(err)
			}
			return
		case now := <-ticker.C:
			if now.After(deadline) {
				_ = cmd.Process.Kill()
				t.Fatalf("it goes on: %v", <-ended)
			}
			_ = cmd.Process.Signal(os.Interrupt)
		}
	}
}

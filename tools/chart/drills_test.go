package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// In each drill those alerts fire that its scenario expects, by what replicas export in it.
func TestDrills(t *testing.T) {
	dir := t.TempDir()
	alerts, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "alerts.yaml"), alerts, 0o600); err != nil {
		t.Fatal(err)
	}
	play := exec.CommandContext(t.Context(), "go", "test", "./cmd/fingerpost/app", "-count=1",
		"-run", "^TestScenarios$/^drills-", "-record", dir)
	play.Dir = filepath.Join("..", "..")
	if out, err := play.CombinedOutput(); err != nil {
		t.Fatalf("play the drills: %v\n%s", err, out)
	}
	recorded, err := filepath.Glob(filepath.Join(dir, "drills-*.yaml"))
	if err != nil || len(recorded) == 0 {
		t.Fatalf("no drill expects alerts: %v", err)
	}
	promtool(t, append([]string{"test", "rules"}, recorded...)...)
}

package server

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
)

// A Reload takes what is written, keeps it while nothing better can be used, and reports why, once for each reason. It
// reads no file beyond a bound.
func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "values")
		lines := 0
		log := funcr.New(func(_, _ string) { lines++ }, funcr.Options{})
		r := OpenReload(log, "values", []string{path}, func(contents [][]byte) (*string, error) {
			if content := string(contents[0]); content != "bad" {
				return &content, nil
			}
			return nil, errors.New("it is bad")
		})

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Start(ctx) }()
		loaded := r.Loaded()

		for _, step := range []struct {
			write, value, problem string
			age                   time.Duration // beyond the moment of the last reading
			lines                 int           // in all
		}{
			{"", "none", "no such file", 10 * time.Second, 1},
			{"bad", "none", "it is bad", 20 * time.Second, 2},
			{"one", "one", "", 0, 3},
			{"bad", "one", "it is bad", 9 * time.Second, 4},
			{strings.Repeat("x", maxReadAgain+1), "one", "has more than 1048576 bytes", 19 * time.Second, 5},
			{strings.Repeat("x", maxReadAgain), strings.Repeat("x", maxReadAgain), "", 0, 6},
			{"one", "one", "", 0, 7},
		} {
			if step.write != "" {
				if err := os.WriteFile(path, []byte(step.write), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(10 * time.Second) //nolint:forbidigo // in a bubble it takes no time
			synctest.Wait()

			value := "none"
			if in := r.Load(); in != nil {
				value = *in
			}
			problem := r.Problem()
			isProblem := strings.Contains(problem, step.problem) && (step.problem == "") == (problem == "")
			if value != step.value || !isProblem {
				t.Errorf("%.9s: value %.9s, problem %q", step.write, value, problem)
			}
			if age := r.Age(); age < step.age || age > step.age+2*time.Second || lines != step.lines {
				t.Errorf("%.9s: age %s, want %s; %d lines, want %d", step.write, age, step.age, lines, step.lines)
			}
			patience, _ := loaded.Load()
			if is := patience == 0; is != (value != "none") {
				t.Errorf("%.9s: it is loaded: %v", step.write, is)
			}
			if missing := loaded.Missing(); len(missing) > 0 != (problem != "") {
				t.Errorf("%.9s: %q is missing", step.write, missing)
			}
		}

		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/fingerpost/fingerpost"

// TestLayers keeps the direction of imports: everything points at federation, and federation at nothing; the half that reads
// Kubernetes and the half that serves never meet outside of cmd. A linter says the same, but its globs can miss a file in silence.
func TestLayers(t *testing.T) {
	rules := map[string]struct{ never, only, except []string }{
		"federation":      {only: []string{module + "/federation"}}, // and the standard library
		"discovery":       {never: []string{"k8s.io", "sigs.k8s.io", module + "/cluster", module + "/links"}},
		"cluster":         {never: []string{"google.golang.org/grpc", "github.com/linkerd", module + "/discovery", module + "/links"}},
		"cluster/view":    {never: []string{"google.golang.org/grpc", module + "/discovery", module + "/links"}},
		"cluster/records": {never: []string{"google.golang.org/grpc", module}},
		"links": {
			never:  []string{"google.golang.org/grpc", "github.com/linkerd", module + "/discovery", module + "/federation", module + "/links/mirror"},
			except: []string{module + "/federation/watch"}, // which knows nothing
		},
		"links/mirror": {never: []string{"google.golang.org/grpc", "github.com/linkerd", module + "/discovery"}},
	}
	seen := map[string]bool{}
	for path, imports := range packages(t) {
		for layer, rule := range rules {
			if path != module+"/"+layer && !strings.HasPrefix(path, module+"/"+layer+"/") || layer == "links" && path == module+"/links/mirror" {
				continue
			}
			seen[layer] = true
			for _, i := range imports {
				for _, never := range rule.never {
					if (i == never || strings.HasPrefix(i, never+"/")) && !slices.Contains(rule.except, i) {
						t.Errorf("%s imports %s: %s must not know it", path, i, layer)
					}
				}
				allowed := rule.only == nil || !strings.Contains(strings.Split(i, "/")[0], ".")
				for _, only := range rule.only {
					allowed = allowed || i == only || strings.HasPrefix(i, only+"/")
				}
				if !allowed {
					t.Errorf("%s imports %s: %s may import the standard library only", path, i, layer)
				}
			}
		}
	}
	for layer := range rules {
		if !seen[layer] {
			t.Errorf("the rule about %s matches no package", layer)
		}
	}
}

// packages returns what each package of the module imports, tests left out.
func packages(t *testing.T) map[string][]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", module+"/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		all[fields[0]] = fields[1:]
	}
	return all
}

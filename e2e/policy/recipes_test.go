package policy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// recipesBase is what a reader of the recipes has, in the namespaces that they name.
const recipesBase = `apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: shop}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: web-east, namespace: shop}
spec: {ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-7b9f-x2x4z, namespace: shop, labels: {app: web, linkerd.io/control-plane-ns: linkerd}}
spec:
  automountServiceAccountToken: false
  containers: [{name: main, image: web, ports: [{name: http, containerPort: 8080}]}]
`

// The recipes of docs/policy.md work as they are written there: objects are applied, and commands print what stands
// below them.
func TestRecipes(t *testing.T) {
	t.Parallel()
	shared.apply(t, "", recipesBase)
	page, err := os.ReadFile("../../docs/policy.md")
	do(t, err)
	_, text, _ := strings.Cut(string(page), "\n## Recipes\n")
	text, _, _ = strings.Cut(text, "\n## ")
	recipes := strings.Split(text, "\n### ")[1:]
	if len(recipes) != 6 {
		t.Fatalf("%d recipes", len(recipes))
	}

	reader := newReader(t, shared.serve(t, "recipes"))
	for _, recipe := range recipes {
		title, text, _ := strings.Cut(recipe, "\n")
		if !t.Run(title, func(t *testing.T) { reader.follow(t, text) }) {
			return // the next one may need what it applies
		}
	}
	eventually(t, 2*time.Second, "routes count once the ServiceProfile is gone", func(ctx context.Context) error {
		out, err := reader.output(ctx, "fingerpost explain route api.shop:80")
		if err == nil && strings.Contains(out, "ServiceProfile") {
			err = errors.New(out)
		}
		return err
	})
}

// A reader has a shell, with fingerpost and kubectl for the shared cluster.
type reader struct{ dir string }

func newReader(t *testing.T, r *replica) *reader {
	t.Helper()
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	do(t, os.WriteFile(kubeconfig, shared.AdminKubeconfig(), 0o600))
	for name, command := range map[string]string{
		"fingerpost": fmt.Sprintf("%s \"$@\" --debug-addr %s --kubeconfig %s", binary, r.debug, kubeconfig),
		"kubectl":    fmt.Sprintf("%s --kubeconfig %s \"$@\"", shared.KubectlPath(), kubeconfig),
	} {
		do(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nexec "+command+"\n"), 0o700))
	}
	return &reader{dir}
}

// follow does a recipe. What a command prints is compared with the text below it, if there is one.
func (r *reader) follow(t *testing.T, recipe string) {
	t.Helper()
	blocks := strings.Split(recipe, "\n```")
	command, played := "", 0
	for i := 1; i < len(blocks); i += 2 {
		language, text, _ := strings.Cut(blocks[i], "\n")
		text += "\n"
		switch language {
		case "yaml":
			r.run(t, "kubectl apply -f - <<'EOF'\n"+text+"EOF\n")
		case "":
			command = text
			r.run(t, command)
			played++
		case "text":
			r.prints(t, command, text)
		default:
			t.Fatalf("a block of %s", language)
		}
	}
	if played == 0 {
		t.Error("no command")
	}
}

// run runs commands, which succeed or answer no.
func (r *reader) run(t *testing.T, commands string) string {
	t.Helper()
	out, err := r.output(t.Context(), commands)
	exit, is := errors.AsType[*exec.ExitError](err)
	if err != nil && (!is || exit.ExitCode() != 1) {
		t.Fatalf("%s%s: %v", commands, out, err)
	}
	return out
}

func (r *reader) output(ctx context.Context, commands string) (string, error) {
	shell := exec.CommandContext(ctx, "sh", "-euc", commands)
	shell.Env = append(os.Environ(), "PATH="+r.dir+":"+os.Getenv("PATH"), "COLUMNS=120")
	var problems strings.Builder
	shell.Stderr = &problems
	out, err := shell.Output()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, problems.String())
	}
	return string(out), err
}

// prints waits until a command prints a text: the replica follows what was applied.
func (r *reader) prints(t *testing.T, command, want string) {
	t.Helper()
	eventually(t, 2*time.Second, command, func(ctx context.Context) error {
		got, err := r.output(ctx, command)
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("(-want +got):\n%s\n%s\n%w", diff, got, err)
		}
		return nil
	})
}

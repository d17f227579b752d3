// Package charts renders the project's charts, and installs them on control planes as helm does.
package charts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
)

// The charts, by name. A release of one is called as it is.
const (
	Server = "fingerpost"
	Link   = "fingerpost-link"
)

var _, here, _, _ = runtime.Caller(0)

// root is the repository.
var root = filepath.Join(filepath.Dir(here), "..", "..")

// tool returns the path of the program that renders charts, and has helm in a module of its own. It is built
// if need be, and once: to see that there is nothing to build takes go a second.
var tool = sync.OnceValues(func() (string, error) {
	path, err := exec.Command("go", "tool", "-C", filepath.Join(root, "tools", "chart"), "-n", "chart").Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		err = fmt.Errorf("%w\n%s", err, exit.Stderr)
	}
	return strings.TrimSpace(string(path)), err
})

// Render renders a chart for a namespace, as helm does. Values in set are YAML, and the program has more flags.
func Render(
	ctx context.Context, chart, namespace, set string, flags ...string,
) ([]*unstructured.Unstructured, error) {
	path, err := tool()
	if err != nil {
		return nil, fmt.Errorf("build the program that renders charts: %w", err)
	}
	args := append([]string{"-name", chart, "-namespace", namespace, "-set", set}, flags...)
	command := exec.CommandContext(ctx, path, append(args, filepath.Join(root, "charts", chart))...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	manifest, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("render chart %s: %w\n%s", chart, err, stderr.String())
	}
	return Objects(manifest)
}

// Definitions returns the definitions of the kinds of an API group that the chart of the server has. It panics if there
// is none.
func Definitions(group string) []byte {
	paths, err := filepath.Glob(filepath.Join(root, "charts", Server, "files", "crds", "*."+group+".yaml"))
	var all [][]byte
	for _, path := range paths {
		text, readErr := os.ReadFile(path)
		err = errors.Join(err, readErr)
		all = append(all, text)
	}
	if err != nil || len(all) == 0 {
		panic(fmt.Sprintf("the chart has %d definitions of %s: %v", len(all), group, err))
	}
	return bytes.Join(all, []byte("\n---\n"))
}

// Objects takes a manifest apart.
func Objects(manifest []byte) (all []*unstructured.Unstructured, err error) {
	for document := range bytes.SplitSeq(manifest, []byte("\n---\n")) {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return nil, fmt.Errorf("%w\n%s", err, document)
		}
		if object.Object != nil {
			all = append(all, object)
		}
	}
	return all, nil
}

// Manifest puts objects together.
func Manifest(objects ...*unstructured.Unstructured) []byte {
	var b bytes.Buffer
	for _, o := range objects {
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			panic("BUG: an object that came from YAML cannot be encoded: " + err.Error())
		}
		b.WriteString("---\n")
		b.Write(text)
	}
	return b.Bytes()
}

// Renews reports whether a role is there to renew tokens: no server needs it.
func Renews(role *unstructured.Unstructured) bool { return strings.HasSuffix(role.GetName(), "-renew") }

// An Installation is a chart in a cluster.
type Installation struct {
	Objects  []*unstructured.Unstructured
	Identity *controlplane.Identity // of the chart's ServiceAccount, with all the rights that the chart gives it
	Args     []string               // what the container of chart fingerpost is started with, after serve
}

// Install installs a chart in a namespace of a cluster, which is made if need be. A Pod of it seems to run,
// and does nothing: the caller runs the process, with Args and as Identity.
func Install(ctx context.Context, c *controlplane.Cluster, chart, namespace, set string) (*Installation, error) {
	in, err := install(ctx, c, chart, namespace, set)
	if err != nil {
		return nil, fmt.Errorf("install chart %s in namespace %s of cluster %s: %w", chart, namespace, c.Name(), err)
	}
	return in, nil
}

func install(ctx context.Context, c *controlplane.Cluster, chart, namespace, set string) (*Installation, error) {
	objects, err := Render(ctx, chart, namespace, set)
	if err != nil {
		return nil, err
	}
	if err := c.Apply(ctx, fmt.Appendf(nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n",
		namespace)); err != nil {
		return nil, err
	}
	if err := c.Apply(ctx, Manifest(objects...)); err != nil {
		return nil, err
	}
	in := &Installation{Objects: objects}
	account := &controlplane.Identity{Namespace: namespace, Name: chart}
	for _, o := range objects {
		switch o.GetKind() {
		case "ClusterRole", "Role":
			if Renews(o) && chart == Server { // with an account of its own
				continue
			}
			rules, err := Rules(o)
			if err == nil {
				err = c.AwaitRules(ctx, account, o.GetNamespace(), rules)
			}
			if err != nil {
				return nil, err
			}
		case "Secret":
			if o.Object["type"] == "kubernetes.io/service-account-token" {
				if in.Identity, err = c.TokenOf(ctx, namespace, o.GetName()); err != nil {
					return nil, err
				}
			}
		case "Deployment":
			if o.GetName() == chart {
				if in.Args, err = args(o); err != nil {
					return nil, err
				}
			}
		}
	}
	if in.Identity == nil { // a kubelet would mint it
		in.Identity, err = c.Mint(ctx, account)
	}
	return in, err
}

// Rules returns what a role allows.
func Rules(role *unstructured.Unstructured) ([]rbacv1.PolicyRule, error) {
	var typed rbacv1.ClusterRole
	err := kruntime.DefaultUnstructuredConverter.FromUnstructured(role.Object, &typed)
	return typed.Rules, err
}

// args returns the arguments of a Deployment's container.
func args(deployment *unstructured.Unstructured) ([]string, error) {
	containers, _, err := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	if err != nil {
		return nil, err
	}
	if len(containers) != 1 {
		return nil, fmt.Errorf("there are %d containers in Deployment %s", len(containers), deployment.GetName())
	}
	args, _, err := unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
	if err != nil {
		return nil, err
	}
	if len(args) < 10 || args[0] != "serve" {
		return nil, fmt.Errorf("the container of Deployment %s is started with %q", deployment.GetName(), args)
	}
	// On one machine, servers would restore the state of each other's clusters, and listen at one port.
	return slices.DeleteFunc(args[1:], func(arg string) bool {
		return strings.HasPrefix(arg, "-state-dir=") || strings.HasPrefix(arg, "-peer")
	}), nil
}

package slices

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
)

// The rights that the charts give, and no others: those of the server in its own cluster, and those of whoever links a cluster.

// install applies the accounts and roles of both charts, in namespace system of a cluster, and returns the two accounts with tokens.
func (s *site) install(t *testing.T, system, links string) (server, link *controlplane.Identity) {
	t.Helper()
	do(t, s.Apply(t.Context(), fmt.Appendf(nil, `apiVersion: v1
kind: Namespace
metadata: {name: %s}
---
apiVersion: v1
kind: Namespace
metadata: {name: linkerd-multicluster}
`, system)))
	for chart, values := range map[string]string{
		"fingerpost":      fmt.Sprintf("{cluster: {name: %s}, links: {namespace: %s}, controllerNamespace: %s, mirror: {mode: auto}}", s.Name(), links, linkerd),
		"fingerpost-link": fmt.Sprintf("{write: {enabled: true, leaseNamespace: %s}}", linkerd),
	} {
		do(t, s.Apply(t.Context(), accounts(t, chart, system, values)))
	}
	var err error
	server, err = s.Mint(t.Context(), &controlplane.Identity{Namespace: system, Name: "fingerpost"})
	do(t, err)
	link, err = s.Mint(t.Context(), &controlplane.Identity{Namespace: system, Name: "fingerpost-link"})
	do(t, err)
	return server, link
}

// accounts renders a chart and returns what of it is about rights.
func accounts(t *testing.T, chart, namespace, values string) []byte {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "run", "-C", "../../tools/chart", ".", "-name", chart, "-namespace", namespace, "-set", values, "../../charts/"+chart)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	manifests, err := command.Output()
	if err != nil {
		t.Fatalf("render chart %s: %v\n%s", chart, err, stderr.String())
	}
	var kept []string
	for document := range strings.SplitSeq(string(manifests), "\n---\n") {
		o := &unstructured.Unstructured{}
		do(t, yaml.Unmarshal([]byte(document), &o.Object))
		if slices.Contains([]string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}, o.GetKind()) {
			kept = append(kept, document)
		}
	}
	if len(kept) < 3 {
		t.Fatalf("chart %s has no rights:\n%s", chart, manifests)
	}
	return []byte(strings.Join(kept, "\n---\n"))
}

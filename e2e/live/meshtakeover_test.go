package live

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// linkerdPart is as much of a part of Linkerd's control plane as matters to who takes its place: its Deployment, whose
// selector cannot be changed, with its containers, and the Service that selects its Pods.
const linkerdPart = `
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: linkerd-PART, namespace: NAMESPACE}
---
apiVersion: v1
kind: Service
metadata: {name: SERVICE, namespace: NAMESPACE}
spec:
  selector: {linkerd.io/control-plane-component: PART}
  ports: [{name: NAMED, port: PORT, targetPort: TARGET}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: linkerd-PART, namespace: NAMESPACE}
spec:
  selector:
    matchLabels: &labels
      linkerd.io/control-plane-component: PART
      linkerd.io/control-plane-ns: NAMESPACE
      linkerd.io/proxy-deployment: linkerd-PART
  template:
    metadata: {labels: *labels}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: linkerd-proxy, image: linkerd/proxy}
      - {name: PART, image: linkerd/controller}
      - {name: policy, image: linkerd/policy}
`

// takeOver is a cluster in which parts of Linkerd's control plane are taken over.
type takeOver struct {
	t         *testing.T
	c         *controlplane.Cluster
	namespace string
}

func (o *takeOver) kubectl(args ...string) string {
	o.t.Helper()
	out, err := o.c.Kubectl(o.t.Context(), append([]string{"-n", o.namespace}, args...)...)
	if err != nil {
		o.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// containers waits until all Pods behind a Service have these containers, and there is at least one.
func (o *takeOver) containers(service string, want ...string) {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), time.Minute)
	defer cancel()
	err := mesh.Eventually(ctx, func(ctx context.Context) error {
		pods, err := o.c.Kubectl(ctx, "-n", o.namespace, "get", "endpointslices", "-l",
			"kubernetes.io/service-name="+service, "-o", `jsonpath={range .items[*].endpoints[*]}{.targetRef.name} {end}`)
		if err != nil {
			return err
		}
		if strings.TrimSpace(pods) == "" {
			return fmt.Errorf("there is no Pod behind Service %s", service)
		}
		for pod := range strings.FieldsSeq(pods) {
			have, err := o.c.Kubectl(ctx, "-n", o.namespace, "get", "pod", pod, "-o",
				"jsonpath={.spec.containers[*].name}")
			if err != nil {
				return err
			}
			if !slices.Equal(strings.Fields(have), want) {
				return fmt.Errorf("behind Service %s is Pod %s with containers %s, want %s", service, pod, have, want)
			}
		}
		return nil
	})
	if err != nil {
		o.t.Fatal(err)
	}
}

// release gives up Deployments whose Pods go on: what is applied next adopts them.
func (o *takeOver) release(names ...string) {
	o.t.Helper()
	o.kubectl(append([]string{"delete", "deployment", "--cascade=orphan"}, names...)...)
}

// As docs/drop-in.md has it: the parts of Linkerd's control plane are taken over one by one, and given back. What is
// not taken over yet stays as it is, and certificates and anchors stay in any case.
func TestMeshTakeOver(t *testing.T) {
	o := &takeOver{t, claim(t)[0], "mesh-take-over"}
	helm := newHelm(t, o.c)
	theirs := "apiVersion: v1\nkind: Namespace\nmetadata: {name: NAMESPACE}\n"
	for _, part := range [][]string{
		{"destination", "linkerd-dst", "grpc", "8086", "8086"},
		{"identity", "linkerd-identity", "grpc", "8080", "8080"},
		{"proxy-injector", "linkerd-proxy-injector", "proxy-injector", "443", "8443"},
	} {
		theirs += strings.NewReplacer("PART", part[0], "SERVICE", part[1], "NAMED", part[2], "PORT", part[3],
			"TARGET", part[4]).Replace(linkerdPart)
	}
	for _, secret := range []string{"linkerd-sp-validator", "linkerd-policy-validator", "linkerd-proxy-injector"} {
		theirs += fmt.Sprintf("---\napiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\n"+
			"metadata: {name: %[1]s-k8s-tls, namespace: NAMESPACE}\nstringData: {tls.crt: crt of %[1]s, tls.key: key}\n", secret)
	}
	theirs += "---\napiVersion: v1\nkind: Secret\nmetadata: {name: linkerd-identity-issuer, namespace: NAMESPACE}\n" +
		"stringData: {crt.pem: issuer, key.pem: key}\n---\napiVersion: v1\nkind: ConfigMap\n" +
		"metadata: {name: linkerd-identity-trust-roots, namespace: NAMESPACE}\ndata: {ca-bundle.crt: anchors}\n"
	file := filepath.Join(t.TempDir(), "linkerd.yaml")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(file, []byte(strings.ReplaceAll(theirs, "NAMESPACE", o.namespace)), 0o600))
	must(o.c.Apply(t.Context(), []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+o.namespace+"}\n")))
	o.kubectl("apply", "-f", file)
	linkerd := func(part string) []string { return []string{"linkerd-proxy", part, "policy"} }
	o.containers("linkerd-dst", linkerd("destination")...)
	o.containers("linkerd-identity", linkerd("identity")...)
	o.containers("linkerd-proxy-injector", linkerd("proxy-injector")...)

	upgrade := func(values string) {
		t.Helper()
		must(helm("upgrade", "--install", "fingerpost", filepath.Join(chartFiles, "fingerpost"), "-n", o.namespace,
			"--set", "controlPlane.enabled=true"+values, "--take-ownership", "--server-side=true", "--force-conflicts"))
	}
	o.release("linkerd-identity")
	upgrade(",controlPlane.policy.enabled=false,controlPlane.injector.enabled=false")
	o.containers("linkerd-dst-headless", "fingerpost")
	o.containers("linkerd-identity", "identity")
	o.containers("linkerd-proxy-injector", linkerd("proxy-injector")...)
	if have := o.kubectl("get", "deployment", "linkerd-destination", "-o",
		"jsonpath={.spec.template.spec.containers[*].name}"); have != "linkerd-proxy destination policy" {
		t.Errorf("Linkerd's policy is taken over before it is asked for: %s", have)
	}

	o.release("linkerd-destination")
	upgrade(",controlPlane.injector.enabled=false")
	for _, service := range []string{
		"linkerd-dst", "linkerd-dst-headless", "linkerd-policy", "linkerd-policy-validator", "linkerd-sp-validator",
	} {
		o.containers(service, "fingerpost")
	}
	o.containers("linkerd-proxy-injector", linkerd("proxy-injector")...)

	o.release("linkerd-proxy-injector")
	upgrade("")
	o.containers("linkerd-proxy-injector", "proxy-injector")
	for hook, kind := range map[string]string{
		"linkerd-sp-validator": "validating", "linkerd-policy-validator": "validating",
		"linkerd-proxy-injector": "mutating",
	} {
		want := base64.StdEncoding.EncodeToString([]byte("crt of " + hook))
		have := o.kubectl("get", "secret", hook+"-k8s-tls", "-o", `jsonpath={.data.tls\.crt}`)
		trusted := o.kubectl("get", kind+"webhookconfiguration", hook+"-webhook-config", "-o",
			"jsonpath={.webhooks[*].clientConfig.caBundle}")
		if have != want || trusted != want {
			t.Errorf("%s: certificate %s, of which API servers trust %s, want %s", hook, have, trusted, want)
		}
	}

	o.release("linkerd-destination", "linkerd-identity", "linkerd-proxy-injector")
	o.kubectl("apply", "--server-side", "--force-conflicts", "-f", file)
	o.containers("linkerd-dst", linkerd("destination")...)
	o.containers("linkerd-identity", linkerd("identity")...)
	o.containers("linkerd-proxy-injector", linkerd("proxy-injector")...)
	if have := o.kubectl("get", "configmap", "linkerd-identity-trust-roots", "-o", "jsonpath={.data}") +
		o.kubectl("get", "secret", "linkerd-identity-issuer", "-o", `jsonpath={.data.crt\.pem}`); have !=
		`{"ca-bundle.crt":"anchors"}`+base64.StdEncoding.EncodeToString([]byte("issuer")) {
		t.Errorf("anchors and issuer have changed: %s", have)
	}
	must(helm("uninstall", "fingerpost", "-n", o.namespace))
}

package live

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The chart as a mesh's whole control plane, by helm itself: an upgrade keeps what was made at the first installation,
// also where it no longer gives the anchors and the issuer; another layout takes over in place; an uninstall leaves the
// key of the mesh alone, and an installation after it takes that one.
func TestControlPlaneChart(t *testing.T) {
	c := claim(t)[0]
	const namespace = "mesh-chart"
	helm := newHelm(t, c)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	get := func(args ...string) string {
		t.Helper()
		out, err := c.Kubectl(t.Context(), append([]string{"get"}, args...)...)
		must(err)
		return out
	}
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), name)
		must(os.WriteFile(path, []byte(text), 0o600))
		return path
	}

	const pem = "-----BEGIN CERTIFICATE-----\\nb\\n-----END CERTIFICATE-----\\n"
	anchors := write("anchors.yaml", `{controlPlane: {enabled: true, identity: {trustAnchorsPEM: "`+pem+`"}}}`)
	issuer := write("issuer.yaml", `{controlPlane: {identity: {issuer: {crtPEM: "`+pem+
		`", keyPEM: "-----BEGIN PRIVATE KEY-----\nb\n-----END PRIVATE KEY-----\n"}}}}`)
	chart := filepath.Join(chartFiles, "fingerpost")
	run := func(verb string, args ...string) error {
		return helm(append([]string{verb, "fingerpost", chart, "-n", namespace, "--create-namespace"}, args...)...)
	}
	err := run("upgrade", "--install", "--set", "controlPlane.enabled=true")
	if err == nil || !strings.Contains(err.Error(), "there are no trust anchors: set controlPlane.identity") {
		t.Fatalf("without anchors: %v", err)
	}
	must(run("install", "-f", anchors, "-f", issuer))

	// made returns what must stay: certificates of webhooks, with what API servers trust, anchors and issuer.
	made := func() string {
		t.Helper()
		var all []string
		for hook, kind := range map[string]string{
			"sp-validator": "validating", "policy-validator": "validating", "proxy-injector": "mutating",
		} {
			certificate := get("secret", "-n", namespace, "linkerd-"+hook+"-k8s-tls", "-o", `jsonpath={.data.tls\.crt}`)
			trusted := get(kind+"webhookconfiguration", "linkerd-"+hook+"-webhook-config", "-o",
				"jsonpath={.webhooks[*].clientConfig.caBundle}")
			if certificate == "" || certificate != trusted {
				t.Errorf("%s: API servers trust %q, and it presents %q", hook, trusted, certificate)
			}
			all = append(all, hook+" "+certificate)
		}
		slices.Sort(all)
		all = append(all,
			get("configmap", "-n", namespace, "linkerd-identity-trust-roots", "-o", "jsonpath={.data}"),
			get("secret", "-n", namespace, "linkerd-identity-issuer", "-o", "jsonpath={.data}"))
		return strings.Join(all, "\n")
	}
	deployments := func() string {
		t.Helper()
		return strings.Join(strings.Fields(get("deployments", "-n", namespace, "-o", "name")), " ")
	}

	first := made()
	const three = "deployment.apps/linkerd-destination deployment.apps/linkerd-identity " +
		"deployment.apps/linkerd-proxy-injector"
	if have := deployments(); have != three {
		t.Errorf("%s, want %s", have, three)
	}
	for layout, want := range map[string]string{"three": three, "one": "deployment.apps/linkerd-destination"} {
		must(run("upgrade", "--reset-values", "--set", "controlPlane.enabled=true,controlPlane.layout="+layout))
		if have := made(); have != first {
			t.Errorf("layout %s: an upgrade has changed what was made:\n%s\nwant\n%s", layout, have, first)
		}
		if have := deployments(); have != want {
			t.Errorf("layout %s: %s, want %s", layout, have, want)
		}
	}

	must(helm("uninstall", "fingerpost", "-n", namespace))
	left := get("secrets,configmaps,services,serviceaccounts,deployments,cronjobs,roles,rolebindings,"+
		"poddisruptionbudgets,networkpolicies", "-n", namespace, "-l", "app.kubernetes.io/instance=fingerpost",
		"-o", "name")
	if strings.TrimSpace(left) != "secret/linkerd-identity-issuer" {
		t.Errorf("after an uninstall there is\n%s", left)
	}
	left = get("clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations",
		"-l", "app.kubernetes.io/instance=fingerpost", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.metadata.annotations}{"\n"}{end}`)
	for line := range strings.Lines(left) {
		if strings.Contains(line, `"meta.helm.sh/release-namespace":"`+namespace+`"`) {
			t.Errorf("after an uninstall there is %s", line)
		}
	}

	must(run("install", "-f", anchors))
	if have := made(); !strings.HasSuffix(have, first[strings.LastIndex(first, "\n"):]) {
		t.Errorf("an installation after it has another issuer: %s", have)
	}
	must(helm("uninstall", "fingerpost", "-n", namespace))
	_, err = c.Kubectl(t.Context(), "delete", "secret", "-n", namespace, "linkerd-identity-issuer")
	must(err)
}

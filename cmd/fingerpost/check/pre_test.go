package check

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/identity/ca"
)

// The oldest version of Kubernetes is that of both charts.
func TestMinimumIsThatOfCharts(t *testing.T) {
	for _, chart := range []string{"fingerpost", "fingerpost-link"} {
		text, err := os.ReadFile("../../../charts/" + chart + "/Chart.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if want := `kubeVersion: ">=` + minKubernetes.String() + `.0-0"`; !strings.Contains(string(text), want) {
			t.Errorf("chart %s lacks %s", chart, want)
		}
	}
}

const (
	configMaps = "/api/v1/namespaces/linkerd/configmaps/"
	issuerPath = "/api/v1/namespaces/linkerd/secrets/linkerd-identity-issuer"
)

// prepared is a cluster for an installation in which nothing is missing: an issuer that lasts for so long, and all
// kinds.
func prepared(t *testing.T, life time.Duration) *clusterAPI {
	t.Helper()
	domain := identity.Domain{Namespace: "linkerd", TrustDomain: "cluster.local"}
	anchor, err := ca.NewAnchor(domain, 9*8760*time.Hour, time.Now().Add(-4000*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := anchor.NewIssuer(domain, 3000*time.Hour, time.Now().Add(life-3000*time.Hour))
	if err != nil {
		t.Fatal(err)
	}

	object := func(kind, name string) (metav1.TypeMeta, metav1.ObjectMeta) {
		return metav1.TypeMeta{Kind: kind, APIVersion: "v1"}, metav1.ObjectMeta{Name: name, Namespace: "linkerd"}
	}
	bundle, secret := corev1.ConfigMap{}, corev1.Secret{}
	bundle.TypeMeta, bundle.ObjectMeta = object("ConfigMap", "linkerd-identity-trust-roots")
	bundle.Data = map[string]string{"ca-bundle.crt": string(anchor.PEM())}
	secret.TypeMeta, secret.ObjectMeta = object("Secret", "linkerd-identity-issuer")
	secret.Data = map[string][]byte{"crt.pem": issuer.PEM()}
	a := &clusterAPI{codes: map[string]int{}, denied: map[string]bool{}, objects: map[string]any{
		configMaps + "linkerd-identity-trust-roots": bundle, issuerPath: secret,
	}}
	a.objects["/api/v1/namespaces/linkerd"] = corev1.Namespace{
		TypeMeta: metav1.TypeMeta{Kind: "Namespace", APIVersion: "v1"},
	}
	a.serve(slices.Concat(meshResources, gatewayResources))
	return a
}

// serve has the API server serve kinds.
func (a *clusterAPI) serve(resources []schema.GroupResource) {
	const v = "v1"
	byGroup := map[string][]metav1.APIResource{"multicluster.linkerd.io": {{Name: "links"}}}
	for _, r := range resources {
		byGroup[r.Group] = append(byGroup[r.Group], metav1.APIResource{Name: r.Resource})
	}
	groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, group := range slices.Sorted(maps.Keys(byGroup)) {
		name := v
		if group == "multicluster.linkerd.io" {
			name = "v1alpha3"
		}
		served := metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + name, Version: name}
		groups.Groups = append(groups.Groups, metav1.APIGroup{
			Name: group, Versions: []metav1.GroupVersionForDiscovery{served}, PreferredVersion: served,
		})
		a.objects["/apis/"+served.GroupVersion] = metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: served.GroupVersion, APIResources: byGroup[group],
		}
	}
	a.objects["/apis"] = groups
}

// What is missing before an installation is reported, and nothing where nothing is.
func TestPre(t *testing.T) {
	for name, c := range map[string]struct {
		life   time.Duration // of the issuer
		change func(*clusterAPI)
		want   string // prefix of the only line; empty for none
		passes string // in the report
	}{
		"nothing is missing": {2000 * time.Hour, func(*clusterAPI) {}, "", "the first of them ends at "},
		"an old API server": {2000 * time.Hour, func(a *clusterAPI) {
			a.objects["/version"] = version.Info{GitVersion: "v1.32.9"}
		}, "error install/Kubernetes is 1.33 or newer: it is v1.32.9", ""},
		"no kinds of policy": {2000 * time.Hour, func(a *clusterAPI) {
			a.serve(slices.Concat(meshResources[:2], gatewayResources))
		}, "warning install/the kinds of Linkerd are defined: not served: servers.policy.linkerd.io, ", ""},
		"an issuer that ends soon": {
			100 * time.Hour, func(*clusterAPI) {},
			"warning install/the mesh has a trust anchor and an issuer: issuer CN=identity.linkerd.cluster.local: it ends soon",
			"",
		},
		"an issuer that has ended": {
			-time.Hour, func(*clusterAPI) {},
			"error install/the mesh has a trust anchor and an issuer: issuer CN=identity.linkerd.cluster.local: it has ended",
			"",
		},
		"a Secret that may not be read": {2000 * time.Hour, func(a *clusterAPI) {
			a.codes[issuerPath] = http.StatusForbidden
		}, "", ""},
		"a control plane": {2000 * time.Hour, func(a *clusterAPI) {
			a.objects["/apis/apps/v1/namespaces/linkerd/deployments"] = appsv1.DeploymentList{
				TypeMeta: metav1.TypeMeta{Kind: "DeploymentList", APIVersion: "apps/v1"},
				Items:    []appsv1.Deployment{{ObjectMeta: metav1.ObjectMeta{Name: "linkerd-identity"}}},
			}
		}, "", "linkerd-identity in namespace linkerd"},
	} {
		t.Run(name, func(t *testing.T) {
			a := prepared(t, c.life)
			c.change(a)
			server := httptest.NewServer(a)
			defer server.Close()
			kubeconfig := cmdtest.WriteKubeconfig(t, server.URL)
			w := &checkWorld{api: a, args: []string{"--timeout", "1s", "--pre"}}
			got := strings.Join(w.lines(t, kubeconfig), "\n")
			if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") || strings.Contains(got, "\n") {
				t.Errorf("it reports %q, want %q", got, c.want)
			}
			if c.passes != "" {
				out, _ := fingerpostCheck(t, "check", "--kubeconfig", kubeconfig, "--wait", "0s", "-o", "json", "--pre")
				if !strings.Contains(out, c.passes) {
					t.Errorf("%s does not have %q", out, c.passes)
				}
			}
		})
	}
}

package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	sigsyaml "sigs.k8s.io/yaml"
)

// givenMesh are values of a control plane whose trust anchors and issuer are given; each webhook's certificate is.
const givenMesh = `
controlPlane:
  enabled: true
  identity:
    trustAnchorsPEM: "-----BEGIN CERTIFICATE-----\nanchors\n-----END CERTIFICATE-----\n"
    issuer:
      crtPEM: "-----BEGIN CERTIFICATE-----\nissuer\n-----END CERTIFICATE-----\n"
      keyPEM: "-----BEGIN EC PRIVATE KEY-----\nissuer\n-----END EC PRIVATE KEY-----\n"
  injector: {tls: {secretName: own-injector, caBundle: "-----BEGIN CERTIFICATE-----"}}
policy: {webhook: {tls: {secretName: own-policy, caBundle: "-----BEGIN CERTIFICATE-----"}}}
spValidator: {tls: {secretName: own-profiles, caBundle: "-----BEGIN CERTIFICATE-----"}}
`

// everythingOfMesh has a control plane in one Deployment, whose certificates others make, and all that may be beside
// it.
const everythingOfMesh = `
controlPlane:
  enabled: true
  layout: one
  identity: {externalCA: true, requireAudience: false, issuer: {scheme: kubernetes.io/tls}}
  injector: {tls: {certManager: {enabled: true, issuerRef: {name: hooks}}}}
  values: {cniEnabled: true, linkerdVersion: edge-1, proxy: {resources: {cpu: {request: 10m}}}}
  configReaders: [{name: metrics-api, namespace: linkerd-viz}]
  podMonitor: {proxy: true}
policy: {webhook: {tls: {certManager: {enabled: true, issuerRef: {name: hooks}}}}}
spValidator: {tls: {certManager: {enabled: true, issuerRef: {name: hooks}}}}
links: {namespace: linkerd-multicluster}
networkPolicy: {enabled: true}
podMonitor: {enabled: true}
serviceMonitor: {enabled: true}
`

// mesh returns the release of a control plane, in the namespace that is its own.
func mesh(set string, files ...string) release {
	return release{name: "fingerpost", namespace: "linkerd", set: set, values: files}
}

// objects are what a chart renders to, by kind and name.
type objects map[string]string

func objectsOf(t *testing.T, r release) objects {
	t.Helper()
	manifests, _, err := r.render(server)
	if err != nil {
		t.Fatal(err)
	}
	all := objects{}
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		var o struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		if err := sigsyaml.UnmarshalStrict([]byte(document), &map[string]any{}); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if err := sigsyaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatal(err)
		}
		key := o.Kind + " " + o.Metadata.Name
		if _, twice := all[key]; twice && o.Metadata.Namespace == r.namespace {
			t.Errorf("%s is rendered twice", key)
		}
		all[key] = document
	}
	return all
}

// read decodes the object of a kind and name, which must be there, without unknown fields.
func (o objects) read(t *testing.T, key string, into any) {
	t.Helper()
	text, found := o[key]
	if !found {
		t.Fatalf("there is no %s", key)
	}
	if err := sigsyaml.UnmarshalStrict([]byte(text), into); err != nil {
		t.Fatalf("%s: %v", key, err)
	}
}

// layouts are those of a control plane, by name.
func layouts() map[string]release {
	one := strings.Replace(givenMesh, "enabled: true", "enabled: true\n  layout: one", 1)
	ha := server + "/values-ha.yaml"
	return map[string]release{
		"three": mesh(givenMesh), "one": mesh(one), "three, HA": mesh(givenMesh, ha), "one, HA": mesh(one, ha),
	}
}

func isOne(layout string) bool { return strings.HasPrefix(layout, "one") }

// Proxies and API servers find each part at the Service, the port and behind the label that Linkerd's chart has.
func TestMeshServices(t *testing.T) {
	for layout, r := range layouts() {
		all := objectsOf(t, r)
		identity, injector := "identity", "proxy-injector"
		if isOne(layout) {
			identity, injector = "destination", "destination"
		}
		for name, want := range map[string]string{
			"linkerd-dst":               "grpc 8086 to 8086 of destination",
			"linkerd-dst-headless":      "headless grpc 8086 to 8086 of destination",
			"linkerd-policy":            "headless grpc 8090 to 8090 of destination",
			"linkerd-identity":          "grpc 8080 to 8080 of " + identity,
			"linkerd-identity-headless": "headless grpc 8080 to 8080 of " + identity,
			"linkerd-sp-validator":      "sp-validator 443 to 8443 of destination",
			"linkerd-policy-validator":  "policy-https 443 to 9443 of destination",
			"linkerd-proxy-injector":    "proxy-injector 443 to 8443 of " + injector,
		} {
			var s corev1.Service
			all.read(t, "Service "+name, &s)
			have := fmt.Sprintf("%s %d to %s of %s", s.Spec.Ports[0].Name, s.Spec.Ports[0].Port,
				s.Spec.Ports[0].TargetPort.String(), s.Spec.Selector["linkerd.io/control-plane-component"])
			if s.Spec.ClusterIP == corev1.ClusterIPNone {
				have = "headless " + have
			}
			if have != want || len(s.Spec.Ports) != 1 || len(s.Spec.Selector) != 1 || s.Namespace != "linkerd" {
				t.Errorf("%s: %s: %s in %s, want %s", layout, name, have, s.Namespace, want)
			}
		}
	}
}

// Each Service selects Pods of a Deployment that has its port, and each Deployment has the selector of Linkerd's, which
// cannot be changed.
func TestMeshDeployments(t *testing.T) {
	for layout, r := range layouts() {
		all := objectsOf(t, r)
		names := []string{"linkerd-destination", "linkerd-identity", "linkerd-proxy-injector"}
		if isOne(layout) {
			names = names[:1]
		}
		ports := map[string][]int32{}
		found := 0
		for key := range all {
			if strings.HasPrefix(key, "Deployment ") {
				found++
			}
		}
		if found != len(names) {
			t.Errorf("%s: %d Deployments, want %q", layout, found, names)
		}
		for _, name := range names {
			component := strings.TrimPrefix(name, "linkerd-")
			var d appsv1.Deployment
			all.read(t, "Deployment "+name, &d)
			want := map[string]string{
				"linkerd.io/control-plane-component": component, "linkerd.io/control-plane-ns": "linkerd",
				"linkerd.io/proxy-deployment": name,
			}
			if diff := cmp.Diff(want, d.Spec.Selector.MatchLabels); diff != "" {
				t.Errorf("%s: %s: selector (-want +got):\n%s", layout, name, diff)
			}
			pod := d.Spec.Template
			for key, value := range want {
				if pod.Labels[key] != value {
					t.Errorf("%s: Pods of %s are not selected: %v", layout, name, pod.Labels)
				}
			}
			if pod.Labels["linkerd.io/workload-ns"] != "linkerd" ||
				d.Labels["linkerd.io/control-plane-component"] != component {
				t.Errorf("%s: labels of %s: %v %v", layout, name, d.Labels, pod.Labels)
			}
			for key, value := range map[string]string{
				"config.linkerd.io/default-inbound-policy": "all-unauthenticated",
				"config.linkerd.io/opaque-ports":           "8443",
				"linkerd.io/created-by":                    "fingerpost/helm 0.1.0",
				"linkerd.io/inject":                        "disabled",
			} {
				if pod.Annotations[key] != value {
					t.Errorf("%s: Pods of %s: %s is %q, want %q", layout, name, key, pod.Annotations[key], value)
				}
			}
			if pod.Spec.ServiceAccountName != name {
				t.Errorf("%s: %s has the account %s", layout, name, pod.Spec.ServiceAccountName)
			}
			for _, port := range pod.Spec.Containers[0].Ports {
				ports[component] = append(ports[component], port.ContainerPort)
			}
			mountsAreThere(t, all, name, &pod.Spec)
		}
		for key := range all {
			if name, is := strings.CutPrefix(key, "Service "); is {
				var s corev1.Service
				all.read(t, "Service "+name, &s)
				of := s.Spec.Selector["linkerd.io/control-plane-component"]
				target := s.Spec.Ports[0].TargetPort.IntVal
				if of != "" && target > 0 && !slices.Contains(ports[of], target) {
					t.Errorf("%s: Pods of %s do not have port %d of Service %s", layout, of, target, name)
				}
			}
		}
	}
}

// mountsAreThere checks that each mount has a volume, and that Secrets and ConfigMaps are rendered or given.
func mountsAreThere(t *testing.T, all objects, name string, pod *corev1.PodSpec) {
	t.Helper()
	given := []string{"kube-root-ca.crt", "own-injector", "own-policy", "own-profiles"}
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		if v.Secret != nil && all["Secret "+v.Secret.SecretName] == "" && !slices.Contains(given, v.Secret.SecretName) {
			t.Errorf("%s: there is no Secret %s", name, v.Secret.SecretName)
		}
		if v.ConfigMap != nil && all["ConfigMap "+v.ConfigMap.Name] == "" && !slices.Contains(given, v.ConfigMap.Name) {
			t.Errorf("%s: there is no ConfigMap %s", name, v.ConfigMap.Name)
		}
	}
	for _, m := range pod.Containers[0].VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("%s: there is no volume %s", name, m.Name)
		}
	}
}

// A server without files asks the authority of the mesh for its certificate, unless it is that authority; only who
// certifies mounts the key.
func TestMeshCertificates(t *testing.T) {
	for layout, r := range layouts() {
		all := objectsOf(t, r)
		for key := range all {
			if !strings.HasPrefix(key, "Deployment ") {
				continue
			}
			var d appsv1.Deployment
			all.read(t, key, &d)
			args := strings.Join(d.Spec.Template.Spec.Containers[0].Args, " ")
			certifies := strings.HasSuffix(key, "-identity") || isOne(layout)
			if have := strings.Contains(all[key], "secretName: linkerd-identity-issuer"); have != certifies {
				t.Errorf("%s: %s mounts the key of the issuer: %t", layout, key, have)
			}
			asks := strings.HasSuffix(key, "-destination") && !isOne(layout)
			const from = "-identity-from=linkerd-identity-headless.linkerd.svc.cluster.local:8080"
			if have := strings.Contains(args, from); have != asks {
				t.Errorf("%s: %s asks for a certificate: %t", layout, key, have)
			}
			if have := strings.Contains(all[key], "audience: identity.l5d.io"); have != asks {
				t.Errorf("%s: %s has a token to ask with: %t", layout, key, have)
			}
		}
	}
	const name = "linkerd-destination.linkerd.serviceaccount.identity.linkerd.cluster.local"
	for layout, r := range layouts() {
		text := objectsOf(t, r)["Deployment linkerd-destination"]
		if !strings.Contains(text, "- -peer-server-name="+name+"\n") {
			t.Errorf("%s: replicas expect another name of one another than %s", layout, name)
		}
	}
	own := objectsOf(t, mesh(givenMesh+"\ntls: {secretName: own}\n"))["Deployment linkerd-destination"]
	if strings.Contains(own, "-identity-from=") || !strings.Contains(own, "-tls-cert-file=") {
		t.Error("a server with files asks for a certificate besides")
	}
}

// API servers ask the webhooks about the same objects as with Linkerd's chart, and do the same without an answer.
func TestMeshWebhooks(t *testing.T) {
	disabled := metaExpression("config.linkerd.io/admission-webhooks", "NotIn", "disabled")
	for layout, r := range layouts() {
		all := objectsOf(t, r)
		policy := "Ignore"
		if strings.HasSuffix(layout, "HA") {
			policy = "Fail"
		}
		const policyRules = "CREATE,UPDATE policy.linkerd.io/*: authorizationpolicies,egressnetworks," +
			"httplocalratelimitpolicies,httproutes,meshtlsauthentications,networkauthentications,serverauthorizations,servers; " +
			"CREATE,UPDATE gateway.networking.k8s.io/*: grpcroutes,httproutes,tcproutes,tlsroutes"
		for _, c := range []struct{ kind, name, hook, service, rules, namespaces, objects string }{
			{
				"Validating", "linkerd-sp-validator-webhook-config", "linkerd-sp-validator.linkerd.io",
				"linkerd-sp-validator",
				"CREATE,UPDATE linkerd.io/v1alpha1,v1alpha2: serviceprofiles", disabled, "",
			},
			{
				"Validating", "linkerd-policy-validator-webhook-config", "linkerd-policy-validator.linkerd.io",
				"linkerd-policy-validator", policyRules, disabled, "",
			},
			{
				"Mutating", "linkerd-proxy-injector-webhook-config", "linkerd-proxy-injector.linkerd.io",
				"linkerd-proxy-injector", "CREATE /v1: pods,services Namespaced",
				disabled + " " + metaExpression("kubernetes.io/metadata.name", "NotIn", "kube-system,cert-manager"),
				metaExpression("linkerd.io/control-plane-component", "DoesNotExist", "") + " " +
					metaExpression("linkerd.io/cni-resource", "DoesNotExist", ""),
			},
		} {
			var configuration admissionv1.MutatingWebhookConfiguration // has all that a validating one has
			all.read(t, c.kind+"WebhookConfiguration "+c.name, &configuration)
			h := configuration.Webhooks[0]
			want := []string{
				c.hook, policy, "10", "None", "v1 v1beta1", "linkerd/" + c.service + " / 443",
				c.rules, c.namespaces, c.objects,
			}
			have := []string{
				h.Name, string(*h.FailurePolicy), fmt.Sprint(*h.TimeoutSeconds), string(*h.SideEffects),
				strings.Join(h.AdmissionReviewVersions, " "),
				fmt.Sprintf("%s/%s %s %d", h.ClientConfig.Service.Namespace, h.ClientConfig.Service.Name,
					*h.ClientConfig.Service.Path, *h.ClientConfig.Service.Port),
				rulesText(h.Rules), selectorText(h.NamespaceSelector), selectorText(h.ObjectSelector),
			}
			if diff := cmp.Diff(want, have); diff != "" {
				t.Errorf("%s: %s (-want +got):\n%s", layout, c.name, diff)
			}
			if len(configuration.Webhooks) != 1 || len(h.ClientConfig.CABundle) == 0 {
				t.Errorf("%s: %s: %d webhooks, authority %q", layout, c.name, len(configuration.Webhooks),
					h.ClientConfig.CABundle)
			}
		}
	}
}

// What each account may do is what its parts need, and nothing else.
func TestMeshRights(t *testing.T) {
	identity := []string{"create authentication.k8s.io/tokenreviews", "create events.k8s.io/events"}
	injector := []string{"create events.k8s.io/events"}
	for _, verb := range []string{"get", "list", "watch"} {
		injector = append(injector, verb+" /namespaces", verb+" apps/replicasets", verb+" batch/jobs")
	}
	alone := rightsOf(t, objectsOf(t, release{
		name: "fingerpost", namespace: "linkerd",
		set: `{policy: {enabled: true, webhook: {enabled: true, tls: {caBundle: "-----BEGIN CERTIFICATE-----"}}}}`,
	}), "fingerpost")
	for layout, r := range layouts() {
		all := objectsOf(t, r)
		want := map[string][]string{
			"linkerd-destination": alone, "linkerd-identity": identity, "linkerd-proxy-injector": injector,
		}
		if isOne(layout) {
			want = map[string][]string{"linkerd-destination": slices.Concat(alone, identity, injector)}
		}
		for _, account := range []string{"linkerd-destination", "linkerd-identity", "linkerd-proxy-injector"} {
			rights := slices.Compact(slices.Sorted(slices.Values(want[account])))
			if diff := cmp.Diff(rights, rightsOf(t, all, account)); diff != "" {
				t.Errorf("%s: rights of %s (-want +got):\n%s", layout, account, diff)
			}
		}
		for _, key := range []string{
			"ClusterRole linkerd-linkerd-destination", "ClusterRole linkerd-policy",
			"ClusterRole linkerd-linkerd-identity", "ClusterRole linkerd-linkerd-proxy-injector",
			"Role ext-namespace-metadata-linkerd-config", "Namespace linkerd-multicluster",
		} {
			if all[key] == "" {
				t.Errorf("%s: there is no %s", layout, key)
			}
		}
	}
}

// The namespace of Links is made where nothing has made it, and is left to who has. One that values name is another
// matter: it is not made.
func TestMeshLinkNamespace(t *testing.T) {
	theirs := &corev1.Namespace{}
	theirs.Name = "linkerd-multicluster"
	ours := theirs.DeepCopy()
	ours.Annotations = map[string]string{
		"meta.helm.sh/release-name": "fingerpost", "meta.helm.sh/release-namespace": "linkerd",
	}
	for name, c := range map[string]struct {
		set     string
		there   *corev1.Namespace
		made    bool
		readsIn string
	}{
		"from nothing":        {"", nil, true, "linkerd-multicluster"},
		"of Linkerd's chart":  {"", theirs, false, "linkerd-multicluster"},
		"of this release":     {"", ours, true, "linkerd-multicluster"},
		"named by the values": {"far", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "far"}}, false, "far"},
	} {
		r := mesh(givenMesh)
		if c.set != "" {
			r.set = strings.TrimSpace(r.set) + "\nlinks: {namespace: far}\n"
		}
		there := []runtime.Object{}
		if c.there != nil {
			there = append(there, c.there)
		}
		r.cluster = holding(there...)
		all := objectsOf(t, r)
		if _, made := all["Namespace linkerd-multicluster"]; made != c.made {
			t.Errorf("%s: made: %t", name, made)
		}
		var server appsv1.Deployment
		all.read(t, "Deployment linkerd-destination", &server)
		args := server.Spec.Template.Spec.Containers[0].Args
		for _, want := range []string{"-link-namespace=" + c.readsIn, "-labelled-secrets=false"} {
			if !slices.Contains(args, want) {
				t.Errorf("%s: the server has no %s: %q", name, want, args)
			}
		}
	}
}

// rightsOf returns what an account is bound to: verbs on resources, sorted.
func rightsOf(t *testing.T, all objects, account string) []string {
	t.Helper()
	rights := map[string]bool{}
	for key := range all {
		kind, _, _ := strings.Cut(key, " ")
		if kind != "ClusterRoleBinding" && kind != "RoleBinding" {
			continue
		}
		var binding rbacv1.ClusterRoleBinding
		all.read(t, key, &binding)
		if binding.Subjects[0].Name != account {
			continue
		}
		var role rbacv1.ClusterRole
		all.read(t, binding.RoleRef.Kind+" "+binding.RoleRef.Name, &role)
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					right := verb + " " + rule.APIGroups[0] + "/" + resource
					rights[strings.TrimSpace(right+" "+strings.Join(rule.ResourceNames, ","))] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(rights))
}

// Of each part no more replicas are evicted at once than the budget lets.
func TestMeshBudgets(t *testing.T) {
	for layout, r := range layouts() {
		all := objectsOf(t, r)
		replicas := int32(2)
		if strings.HasSuffix(layout, "HA") {
			replicas = 3
		}
		for budget, deployment := range map[string]string{
			"linkerd-dst": "linkerd-destination", "linkerd-identity": "linkerd-identity",
			"linkerd-proxy-injector": "linkerd-proxy-injector",
		} {
			if isOne(layout) && budget != "linkerd-dst" {
				continue
			}
			var pdb policyv1.PodDisruptionBudget
			var d appsv1.Deployment
			all.read(t, "PodDisruptionBudget "+budget, &pdb)
			all.read(t, "Deployment "+deployment, &d)
			if diff := cmp.Diff(d.Spec.Selector, pdb.Spec.Selector); diff != "" || pdb.Spec.MaxUnavailable.IntVal != 1 {
				t.Errorf("%s: %s: %v %s", layout, budget, pdb.Spec.MaxUnavailable, diff)
			}
			if *d.Spec.Replicas != replicas {
				t.Errorf("%s: %s has %d replicas, want %d", layout, deployment, *d.Spec.Replicas, replicas)
			}
		}
	}
}

// The values of the mesh are Linkerd's by default, with what follows from this chart's own values, and the user's
// over both. There is no key among them.
func TestMeshValues(t *testing.T) {
	all := objectsOf(t, mesh(everythingOfMesh+"\nmesh: {ipv6: true}\ncluster: {domain: east.example}\n"))
	var config corev1.ConfigMap
	all.read(t, "ConfigMap linkerd-config", &config)
	var have struct {
		ClusterDomain, ClusterNetworks, IdentityTrustDomain, LinkerdVersion string
		WebhookFailurePolicy                                                string
		DisableIPv6                                                         bool
		CNIEnabled                                                          bool `json:"cniEnabled"`
		Identity                                                            struct {
			ExternalCA, ServiceAccountTokenProjection bool
			Issuer                                    struct{ Scheme, ClockSkewAllowance, IssuanceLifetime string }
		}
		Proxy struct {
			OpaquePorts, LogLevel string
			Resources             struct {
				CPU struct{ Request, Limit string }
			}
			UID int
		}
	}
	if err := sigsyaml.Unmarshal([]byte(config.Data["values"]), &have); err != nil {
		t.Fatal(err)
	}
	want := have
	want.ClusterDomain, want.IdentityTrustDomain = "east.example", "east.example"
	want.ClusterNetworks = "10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8"
	want.WebhookFailurePolicy = "Ignore"
	want.LinkerdVersion, want.DisableIPv6, want.CNIEnabled = "edge-1", false, true
	want.Identity.ExternalCA, want.Identity.ServiceAccountTokenProjection = true, true
	want.Identity.Issuer.Scheme = "kubernetes.io/tls"
	want.Identity.Issuer.ClockSkewAllowance, want.Identity.Issuer.IssuanceLifetime = "20s", "24h0m0s"
	want.Proxy.OpaquePorts = "25,587,3306,4444,5432,6379,9300,11211"
	want.Proxy.LogLevel, want.Proxy.UID = "warn,linkerd=info,hickory=error", 2102
	want.Proxy.Resources.CPU.Request, want.Proxy.Resources.CPU.Limit = "10m", ""
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("values of the mesh (-want +got):\n%s", diff)
	}
	given := objectsOf(t, mesh(givenMesh))["ConfigMap linkerd-config"]
	if strings.Contains(given, "PRIVATE KEY") || !strings.Contains(given, "\n      anchors\n") {
		t.Errorf("anchors are among the values, and keys are not:\n%s", given)
	}
}

// Each of the three may stay Linkerd's: nothing of its name is then rendered.
func TestMeshInPart(t *testing.T) {
	for part, gone := range map[string][]string{
		"identity": {
			"Service linkerd-identity", "Service linkerd-identity-headless", "Deployment linkerd-identity",
			"ServiceAccount linkerd-identity", "ClusterRole linkerd-linkerd-identity", "Secret linkerd-identity-issuer",
			"ConfigMap linkerd-identity-trust-roots", "PodDisruptionBudget linkerd-identity",
		},
		"injector": {
			"Service linkerd-proxy-injector", "Deployment linkerd-proxy-injector",
			"ServiceAccount linkerd-proxy-injector",
			"MutatingWebhookConfiguration linkerd-proxy-injector-webhook-config", "ConfigMap linkerd-config",
			"Role ext-namespace-metadata-linkerd-config", "ClusterRole linkerd-linkerd-proxy-injector",
		},
		"policy": {
			"Service linkerd-policy", "Service linkerd-policy-validator", "Service linkerd-sp-validator",
			"Deployment linkerd-destination", "ServiceAccount linkerd-destination", "PodDisruptionBudget linkerd-dst",
			"ClusterRole linkerd-policy", "ClusterRole linkerd-linkerd-destination",
			"ValidatingWebhookConfiguration linkerd-sp-validator-webhook-config",
			"ValidatingWebhookConfiguration linkerd-policy-validator-webhook-config",
		},
	} {
		for layout, r := range layouts() {
			whole := objectsOf(t, r)
			given, off := filepath.Join(t.TempDir(), "given.yaml"), "{controlPlane: {"+part+": {enabled: false}}}"
			if err := os.WriteFile(given, []byte(r.set), 0o600); err != nil {
				t.Fatal(err)
			}
			r.values, r.set = append(slices.Clone(r.values), given), off
			less := objectsOf(t, r)
			for _, key := range gone {
				if whole[key] == "" && !isOne(layout) {
					t.Errorf("%s: %s is not rendered with all parts", layout, key)
				}
				if less[key] != "" {
					t.Errorf("%s: %s is rendered, and %s is Linkerd's", layout, key, part)
				}
			}
			var s corev1.Service
			less.read(t, "Service linkerd-dst-headless", &s)
			var server appsv1.Deployment
			name := "linkerd-destination"
			if part == "policy" {
				name = "fingerpost"
			}
			less.read(t, "Deployment "+name, &server)
			for key, value := range s.Spec.Selector {
				if server.Spec.Template.Labels[key] != value {
					t.Errorf("%s: without %s linkerd-dst-headless selects %v", layout, part, s.Spec.Selector)
				}
			}
			if account := server.Spec.Template.Spec.ServiceAccountName; account != "linkerd-destination" {
				t.Errorf("%s: without %s the identity is %s", layout, part, account)
			}
			if part == "policy" && s.Spec.Selector["linkerd.io/control-plane-component"] == "destination" {
				t.Errorf("%s: Linkerd's Pods answer as well: %v", layout, s.Spec.Selector)
			}
		}
	}
}

// A webhook's certificate is made once: the Secret that is there counts, with the authority that has signed it.
func TestMadeCertificates(t *testing.T) {
	const set = "{controlPlane: {enabled: true, identity: {externalCA: true, issuer: {scheme: kubernetes.io/tls}}}}"
	for name, hook := range map[string]string{
		"linkerd-sp-validator":     "ValidatingWebhookConfiguration linkerd-sp-validator-webhook-config",
		"linkerd-policy-validator": "ValidatingWebhookConfiguration linkerd-policy-validator-webhook-config",
		"linkerd-proxy-injector":   "MutatingWebhookConfiguration linkerd-proxy-injector-webhook-config",
	} {
		made := func(r release) (secret corev1.Secret, authority string) {
			all := objectsOf(t, r)
			all.read(t, "Secret "+name+"-k8s-tls", &secret)
			var configuration admissionv1.MutatingWebhookConfiguration
			all.read(t, hook, &configuration)
			return secret, string(configuration.Webhooks[0].ClientConfig.CABundle)
		}
		first, authority := made(mesh(set))
		if string(first.Data["tls.crt"]) != authority || first.Type != corev1.SecretTypeTLS {
			t.Errorf("%s: API servers trust another certificate than the one that is made", name)
		}
		verify(t, name+".linkerd.svc", first.Data["tls.crt"], first.Data["tls.key"], []byte(authority))
		second, _ := made(mesh(set))
		if string(second.Data["tls.key"]) == string(first.Data["tls.key"]) {
			t.Errorf("%s: without a cluster two renderings have one key", name)
		}

		for _, ca := range []string{"", "-----BEGIN CERTIFICATE-----\nsigner"} {
			there := first.DeepCopy()
			want := string(there.Data["tls.crt"])
			if ca != "" {
				there.Data["ca.crt"], want = []byte(ca), ca
			}
			r := mesh(set)
			r.cluster = holding(there)
			kept, authority := made(r)
			if string(kept.Data["tls.key"]) != string(first.Data["tls.key"]) || authority != want {
				t.Errorf("%s: the Secret that is there is not kept: authority %q, want %q", name, authority, want)
			}
		}
	}
}

// Trust anchors that this release has made stay when a later upgrade does not give them; those of others are left
// alone. Without any the installation is refused, once there is a cluster to look at.
func TestKeptAnchors(t *testing.T) {
	const bare = "{controlPlane: {enabled: true}}"
	anchors := func(release string) *corev1.ConfigMap {
		c := &corev1.ConfigMap{Data: map[string]string{"ca-bundle.crt": "kept"}}
		c.Name, c.Namespace = "linkerd-identity-trust-roots", "linkerd"
		c.Annotations = map[string]string{"meta.helm.sh/release-name": release}
		return c
	}
	issuer := &corev1.Secret{}
	issuer.Name, issuer.Namespace = "linkerd-identity-issuer", "linkerd"

	r := mesh(bare)
	r.cluster = holding(anchors("fingerpost"), issuer)
	const bundle, key = "ConfigMap linkerd-identity-trust-roots", "Secret linkerd-identity-issuer"
	if kept := objectsOf(t, r)[bundle]; !strings.Contains(kept, "ca-bundle.crt: |-\n    kept") {
		t.Errorf("anchors of this release are not kept:\n%s", kept)
	}
	r.cluster = holding(anchors("linkerd-control-plane"), issuer)
	if of := objectsOf(t, r); of[bundle] != "" || of[key] != "" {
		t.Error("what others have made is rendered")
	}
	r.cluster = holding(issuer)
	refuses(t, r, "there are no trust anchors: set controlPlane.identity.trustAnchorsPEM")
	r.cluster = holding(anchors("x"))
	refuses(t, r, "there is no issuer: set controlPlane.identity.issuer.crtPEM")

	var secret corev1.Secret
	objectsOf(t, mesh(givenMesh)).read(t, key, &secret)
	if secret.Annotations["helm.sh/resource-policy"] != "keep" ||
		len(secret.Data["crt.pem"]) == 0 || len(secret.Data["key.pem"]) == 0 {
		t.Errorf("the key of the mesh goes with the release: %v", secret.Annotations)
	}
}

func refuses(t *testing.T, r release, want string) {
	t.Helper()
	if _, _, err := r.render(server); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want an error with %q", err, want)
	}
}

// holding is a cluster that has a namespace of its own, and objects.
func holding(all ...runtime.Object) held {
	system := &corev1.Namespace{}
	system.Name = "kube-system"
	return append(held{system}, all...)
}

type held []runtime.Object

func (h held) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	resources := map[string]string{"Namespace": "namespaces", "Secret": "secrets", "ConfigMap": "configmaps"}
	if apiVersion != "v1" || resources[kind] == "" {
		return nil, false, fmt.Errorf("a template looks up a %s", kind)
	}
	var objects []runtime.Object
	for _, o := range h {
		objects = append(objects, o.DeepCopyObject())
	}
	client := fake.NewSimpleDynamicClient(scheme.Scheme, objects...)
	resource := schema.GroupVersionResource{Version: "v1", Resource: resources[kind]}
	return client.Resource(resource), kind != "Namespace", nil
}

// verify checks that a certificate has its key, and is one of a name for those who trust an authority.
func verify(t *testing.T, name string, cert, key, authority []byte) {
	t.Helper()
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots}); err != nil {
		t.Error(err)
	}
	if left := time.Until(pair.Leaf.NotAfter); left < 5*365*24*time.Hour {
		t.Errorf("the certificate of %s lasts for %s, and nothing renews it", name, left)
	}
}

// metaExpression writes a requirement of a selector.
func metaExpression(key, operator, values string) string {
	return strings.TrimSpace(key + " " + operator + " " + values)
}

func selectorText(s *metav1.LabelSelector) string {
	if s == nil {
		return ""
	}
	var all []string
	for _, e := range s.MatchExpressions {
		all = append(all, metaExpression(e.Key, string(e.Operator), strings.Join(e.Values, ",")))
	}
	return strings.Join(all, " ")
}

func rulesText(rules []admissionv1.RuleWithOperations) string {
	var all []string
	for _, r := range rules {
		var operations []string
		for _, o := range r.Operations {
			operations = append(operations, string(o))
		}
		slices.Sort(r.Resources)
		text := fmt.Sprintf("%s %s/%s: %s", strings.Join(operations, ","), r.APIGroups[0],
			strings.Join(r.APIVersions, ","), strings.Join(r.Resources, ","))
		if r.Scope != nil {
			text += " " + string(*r.Scope)
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

// Each process of a control plane starts with what its container is given.
func TestMeshStarts(t *testing.T) {
	binary := buildServer(t)
	all := layouts()
	all["one, others' certificates"] = mesh(everythingOfMesh)
	all["own certificate"] = mesh(givenMesh + "\ntls: {secretName: own}\n")
	for _, part := range []string{"identity", "injector", "policy"} {
		all["without "+part] = mesh("{controlPlane: {enabled: true, " + part + ": {enabled: false}}}")
	}
	started := 0
	for layout, r := range all {
		for key, text := range objectsOf(t, r) {
			if !strings.HasPrefix(key, "Deployment ") {
				continue
			}
			started++
			d := deployment(t, text)
			p := processOf(binary, &d)
			if reason := p.refusal(t); reason != "" {
				t.Errorf("%s: %s does not start: %s", layout, key, reason)
			}
		}
	}
	if started < 15 {
		t.Errorf("%d processes were started", started)
	}
}

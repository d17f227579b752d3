package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/links"
)

const (
	deploymentsPath = "/apis/apps/v1/deployments"
	tokenPath       = "/api/v1/namespaces/fingerpost/serviceaccounts/fingerpost-link/token"
)

// kubeconfigOf writes a kubeconfig with a context for each cluster, which has these objects by their paths, and
// creates tokens of the chart's account.
func kubeconfigOf(t *testing.T, clusters map[string]map[string]any) string {
	t.Helper()
	whole := clientcmdapi.NewConfig()
	for name, objects := range clusters {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var object any = metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
				Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
			}
			if found, has := objects[r.URL.Path]; has {
				object = found
			} else if r.URL.Path == tokenPath {
				object = authenticationv1.TokenRequest{
					TypeMeta: metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"},
					Status: authenticationv1.TokenRequestStatus{
						Token:               "token-of-" + name,
						ExpirationTimestamp: metav1.NewTime(time.Date(2030, 1, len(name), 0, 0, 0, 0, time.UTC)),
					},
				}
			}

			w.Header().Set("Content-Type", "application/json")
			if status, failed := object.(metav1.Status); failed {
				w.WriteHeader(int(status.Code))
			}
			_ = json.NewEncoder(w).Encode(object)
		}))
		t.Cleanup(server.Close)

		one, err := clientcmd.Load(cmdtest.Kubeconfig(t, server, server.URL))
		if err != nil {
			t.Fatal(err)
		}
		whole.Clusters[name], whole.AuthInfos[name] = one.Clusters["c"], one.AuthInfos["u"]
		whole.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}

	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*whole, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// deployments is a list of Deployments that serve with these arguments, one each.
func deployments(args ...[]string) map[string]any {
	list := appsv1.DeploymentList{TypeMeta: metav1.TypeMeta{Kind: "DeploymentList", APIVersion: "apps/v1"}}
	for i, of := range args {
		var one appsv1.Deployment
		one.Namespace, one.Name = "fingerpost", fmt.Sprintf("d%d", i)
		one.Spec.Template.Spec.Containers = []corev1.Container{{Args: of}}
		list.Items = append(list.Items, one)
	}
	return map[string]any{deploymentsPath: list}
}

// What link gen prints is where the installation reads it: for each way in which the chart is installed, the Secret is
// beside its Link, named in it, in a namespace whose Secrets the account may read.
func TestLinkGenForInstallations(t *testing.T) {
	goldens, err := filepath.Glob("../../../tools/chart/testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}

	installations := 0
	for _, path := range goldens {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		list := appsv1.DeploymentList{TypeMeta: metav1.TypeMeta{Kind: "DeploymentList", APIVersion: "apps/v1"}}
		var readable []string
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var role rbacv1.Role
			var deployment appsv1.Deployment
			_, _ = yaml.Unmarshal([]byte(document), &role), yaml.Unmarshal([]byte(document), &deployment)
			switch {
			case role.Kind == "Role" && slices.ContainsFunc(role.Rules, listsSecrets):
				readable = append(readable, role.Namespace)
			case deployment.Kind == "Deployment" && deployment.Labels["app.kubernetes.io/component"] == "destination":
				list.Items = append(list.Items, deployment)
			}
		}
		if len(list.Items) == 0 { // of chart fingerpost-link
			continue
		}

		installations++
		kubeconfig := kubeconfigOf(t, map[string]map[string]any{"east": {deploymentsPath: list}, "west": {}})
		args := []string{"link", "gen", "west", "--kubeconfig", kubeconfig, "--context", "west", "--into", "east"}
		out, err := fingerpost(t, args...)
		link, secrets := readManifests(t, out)
		named, _, _ := unstructured.NestedString(link.Object, "spec", "clusterCredentialsSecret")
		if err != nil || len(secrets) != 1 || secrets[0].Name != named || secrets[0].Namespace != link.GetNamespace() ||
			!slices.Contains(readable, link.GetNamespace()) {
			t.Errorf("%s: Secrets are read in %v: %v\n%s", path, readable, err, out)
		}
	}
	if installations < 5 {
		t.Errorf("there are %d installations", installations)
	}
}

func listsSecrets(rule rbacv1.PolicyRule) bool {
	return slices.Contains(rule.Resources, "secrets") && slices.Contains(rule.Verbs, "list")
}

func readManifests(t *testing.T, out string) (link unstructured.Unstructured, secrets []corev1.Secret) {
	t.Helper()
	_, out, _ = strings.Cut(out, "apiVersion:") // after what stderr has
	for document := range strings.SplitSeq("apiVersion:"+out, "---\n") {
		var secret corev1.Secret
		if err := yaml.Unmarshal([]byte(document), &secret); err == nil && secret.Kind == "Secret" {
			secrets = append(secrets, secret)
			continue
		}
		if err := yaml.Unmarshal([]byte(document), &link.Object); err != nil {
			t.Errorf("%v:\n%s", err, document)
		}
	}
	return link, secrets
}

// Namespaces and domains are those of flags, or else those that the installations pass, or else those of the charts.
func TestLinkGenFindsOut(t *testing.T) {
	west := []string{
		"serve", "--link-namespace=wests", "-controller-namespace", "mesh", "-cluster-domain=west.dns",
		"-identity-trust-domain=west.trust",
	}
	east := []string{"serve", "-link-namespace=first", "-link-namespace=easts"}
	const into = "--into east"
	for name, c := range map[string]struct {
		east, west map[string]any
		args       string
		want       string // namespace, that of the mesh, domains; or an error
	}{
		"nothing is found": {nil, nil, "", "fingerpost linkerd cluster.local cluster.local"},
		"the linked one":   {nil, deployments(west), "", "wests mesh west.trust west.dns"},
		"both":             {deployments(east), deployments(west), into, "easts mesh west.trust west.dns"},
		"flags": {
			nil, deployments(west), into + " --link-namespace l -L c --trust-domain t --cluster-domain d", "l c t d",
		},
		"no installation": {nil, nil, into, "--into east: in which namespace does it read Links? Set --link-namespace: list Deployments: "},
		"no Deployment":   {deployments(), nil, into, "Set --link-namespace: there is no Deployment of Fingerpost"},
		"something else":  {deployments([]string{"web"}), nil, into, "there is no Deployment of Fingerpost"},
		"two that agree":  {deployments(east, east), nil, into, "easts linkerd cluster.local cluster.local"},
		"two that differ": {
			deployments(east, west), nil, into,
			"two Deployments, fingerpost/d0 and fingerpost/d1, read Links in different namespaces",
		},
		"no namespace": {
			deployments([]string{"serve", "-link-namespace=\x1b[31m"}), nil, into,
			`an argument of Deployment fingerpost/d0 has "\x1b[31m", which names no namespace`,
		},
		"all namespaces": {
			deployments([]string{"destination"}), nil, into, "fingerpost linkerd cluster.local cluster.local",
		},
		"no context": {nil, nil, "--into nowhere", `context "nowhere" does not exist`},
	} {
		t.Run(name, func(t *testing.T) {
			kubeconfig := kubeconfigOf(t, map[string]map[string]any{"east": c.east, "west": c.west})
			args := []string{"link", "gen", "west", "--kubeconfig", kubeconfig, "--context", "west"}
			out, err := fingerpost(t, append(args, strings.Fields(c.args)...)...)
			got := out
			if err != nil {
				got = err.Error()
			} else if link, secrets := readManifests(t, out); len(secrets) == 1 {
				mesh, _, _ := unstructured.NestedString(link.Object, "spec", "targetClusterLinkerdNamespace")
				a := secrets[0].Annotations
				got = strings.Join([]string{
					link.GetNamespace(), mesh, a[links.TrustDomainAnnotation], a[links.ClusterDomainAnnotation],
				}, " ")
			}
			if !strings.Contains(got, c.want) {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

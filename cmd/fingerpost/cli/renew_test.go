package cli

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/links"
)

// jwt is a token of a ServiceAccount that was issued so long ago, and ends then.
func jwt(account string, age, left time.Duration) string {
	writer, _ := json.Marshal(map[string]any{
		"sub": account, "aud": []string{"api"}, "iat": time.Now().Add(-age).Unix(), "exp": time.Now().Add(left).Unix(),
	})
	return "e30." + base64.RawURLEncoding.EncodeToString(writer) + ".c2ln"
}

// received is the object in a request; nil for none.
func received(t *testing.T, r *http.Request) runtime.Object {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil || len(body) == 0 {
		return nil
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		t.Error(err)
	}
	return object
}

// linkedServer is an API server that makes tokens, and what it was asked for.
type linkedServer struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
	token string // that it makes
}

func newLinkedServer(t *testing.T) *linkedServer {
	t.Helper()
	s := &linkedServer{token: jwt("system:serviceaccount:mc:reader", 0, time.Hour)}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, _ := received(t, r).(*authenticationv1.TokenRequest)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked = append(s.asked, fmt.Sprint(r.Method, " ", r.URL.Path))
		if request != nil {
			s.asked = append(s.asked, fmt.Sprint(request.Spec.Audiences, " ", *request.Spec.ExpirationSeconds))
		}
		if request == nil || !strings.HasSuffix(r.URL.Path, "/serviceaccounts/reader/token") {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		request.TypeMeta = metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"}
		request.Status = authenticationv1.TokenRequestStatus{
			Token: s.token, ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour)),
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(request)
	}))
	t.Cleanup(s.Close)
	return s
}

// secretOf is the Secret of a linked cluster, with a token.
func secretOf(t *testing.T, name string, s *linkedServer, token string) corev1.Secret {
	t.Helper()
	config, err := clientcmd.Load(cmdtest.Kubeconfig(t, s.Server, s.URL))
	if err != nil {
		t.Fatal(err)
	}
	config.AuthInfos["u"].Token = token
	kubeconfig, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: "cluster-credentials-" + name, Namespace: "linkerd", ResourceVersion: "7",
			Labels: map[string]string{links.ClusterNameLabel: name},
		},
		Type: links.SecretType, Data: map[string][]byte{links.KubeconfigKey: kubeconfig},
	}
}

// secretServer is the API server of the cluster that links others: it has Secrets, and keeps updates of them.
type secretServer struct {
	t       *testing.T
	mu      sync.Mutex
	secrets []corev1.Secret
	updated map[string]corev1.Secret
}

func (s *secretServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/api/v1/namespaces/linkerd/secrets" &&
		r.URL.Query().Get("fieldSelector") == "type=mirror.linkerd.io/remote-kubeconfig":
		_ = json.NewEncoder(w).Encode(corev1.SecretList{
			TypeMeta: metav1.TypeMeta{Kind: "SecretList", APIVersion: "v1"}, Items: s.secrets,
		})
	case r.Method == http.MethodPut:
		secret, is := received(s.t, r).(*corev1.Secret)
		if !is || secret.ResourceVersion != "7" {
			http.Error(w, "another version", http.StatusConflict)
			return
		}
		s.updated[secret.Name] = *secret
		secret.TypeMeta = metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"}
		_ = json.NewEncoder(w).Encode(secret)
	default:
		http.Error(w, "no", http.StatusForbidden)
	}
}

// Tokens past half of their life are replaced by new ones of the same account, others are left; what fails
// for one cluster keeps no other from it.
func TestLinkRenew(t *testing.T) {
	const account = "system:serviceaccount:mc:reader"
	linked, refuses := newLinkedServer(t), newLinkedServer(t)
	gone := newLinkedServer(t)
	gone.Close()
	local := &secretServer{t: t, updated: map[string]corev1.Secret{}, secrets: []corev1.Secret{
		secretOf(t, "fresh", linked, jwt(account, time.Hour, 2*time.Hour)),
		secretOf(t, "old", linked, jwt(account, 2*time.Hour, time.Hour)),
		secretOf(t, "static", linked, "a-token"),
		secretOf(t, "user", linked, jwt("alice", 2*time.Hour, time.Hour)),
		secretOf(t, "escape", linked, jwt("system:serviceaccount:mc:../secrets", 2*time.Hour, time.Hour)),
		secretOf(t, "forbidden", refuses, jwt("system:serviceaccount:mc:other", 2*time.Hour, time.Hour)),
		secretOf(t, "gone", gone, jwt(account, 2*time.Hour, time.Hour)),
	}}
	server := httptest.NewServer(local)
	defer server.Close()
	kubeconfig := cmdtest.WriteKubeconfig(t, server.URL)

	out, err := fingerpost(t, "link", "renew", "-n", "linkerd", "--kubeconfig", kubeconfig)
	if ExitCode(err) != ExitFailed {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"fresh (Secret linkerd/cluster-credentials-fresh): valid until",
		"old (Secret linkerd/cluster-credentials-old): renewed",
		"static (Secret linkerd/cluster-credentials-static): its credentials do not end",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q:\n%s", want, out)
		}
	}
	for _, want := range []string{
		`its token is of "alice", which is no ServiceAccount`, "escape (Secret",
		"create a token of ServiceAccount mc/other", "gone (Secret linkerd/cluster-credentials-gone)",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q: %v", want, err)
		}
	}
	if diff := cmp.Diff([]string{
		"POST /api/v1/namespaces/mc/serviceaccounts/reader/token", "[api] 10800",
	}, linked.asked); diff != "" {
		t.Errorf("the linked cluster was asked for other things: %s", diff)
	}
	renewed, found := local.updated["cluster-credentials-old"]
	if !found || len(local.updated) != 1 {
		t.Fatalf("%d Secrets were updated", len(local.updated))
	}
	config, err := links.Credentials(renewed.Data[links.KubeconfigKey], anyHost)
	if err != nil || config.BearerToken != linked.token || config.Host != linked.URL ||
		renewed.Labels[links.ClusterNameLabel] != "old" {
		t.Errorf("%v, %+v", err, renewed)
	}

	renew := []string{"link", "renew", "-n", "linkerd", "--kubeconfig", kubeconfig}
	out, err = fingerpost(t, append(renew, "fresh", "--force", "--token-duration", "2h")...)
	if err != nil || linked.asked[3] != "[api] 7200" || !strings.Contains(out, ": renewed, valid until") {
		t.Errorf("by force: %v\n%s", err, out)
	}
	out, err = fingerpost(t, "link", "renew", "-n", "linkerd", "static", "nosuch", "--kubeconfig", kubeconfig)
	if ExitCode(err) != ExitNotFound || err.Error() != `no Secret is of cluster "nosuch"` ||
		strings.Count(out, "\n") != 1 {
		t.Errorf("named clusters: %v\n%s", err, out)
	}
}

// The CronJob of the chart runs what renews tokens, in the namespace whose Secrets its account may list and update.
func TestLinkRenewByChart(t *testing.T) {
	text, err := os.ReadFile("../../../tools/chart/testdata/drop-in.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var job batchv1.CronJob
	var role rbacv1.Role
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var kind metav1.TypeMeta
		var named metav1.PartialObjectMetadata
		err := errors.Join(yaml.Unmarshal([]byte(document), &kind), yaml.Unmarshal([]byte(document), &named))
		switch {
		case err != nil:
			t.Fatal(err)
		case kind.Kind == "CronJob":
			err = yaml.UnmarshalStrict([]byte(document), &job)
		case kind.Kind == "Role" && strings.HasSuffix(named.Name, "-renew"):
			err = yaml.UnmarshalStrict([]byte(document), &role)
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	linked := newLinkedServer(t)
	local := &secretServer{t: t, updated: map[string]corev1.Secret{}, secrets: []corev1.Secret{
		secretOf(t, "old", linked, jwt("system:serviceaccount:mc:reader", 2*time.Hour, time.Hour)),
	}}
	var listed []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		namespace, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/"), "/")
		if r.Method == http.MethodGet {
			listed = append(listed, namespace)
			r.URL.Path = strings.Replace(r.URL.Path, namespace, "linkerd", 1) // that of the Secrets of tests
		}
		local.ServeHTTP(w, r)
	}))
	defer server.Close()

	args := job.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Args
	out, err := fingerpost(t, append(slices.Clone(args), "--kubeconfig", cmdtest.WriteKubeconfig(t, server.URL))...)
	if err != nil || len(local.updated) != 1 || !slices.Equal(listed, []string{role.Namespace}) {
		t.Errorf("%q lists Secrets of %v, and renews %d: %v\n%s", args, listed, len(local.updated), err, out)
	}
	secrets := rbacv1.PolicyRule{Verbs: []string{"list", "update"}, APIGroups: []string{""}}
	secrets.Resources = []string{"secrets"}
	if diff := cmp.Diff([]rbacv1.PolicyRule{secrets}, role.Rules); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The Secrets are those of the namespaces that the installation reads, unless flags name others.
func TestLinkRenewFindsNamespaces(t *testing.T) {
	both := deployments([]string{"serve", "-link-namespace=mc", "-controller-namespace=linkerd"})
	one := deployments([]string{"serve", "-link-namespace=linkerd", "-controller-namespace=linkerd"})
	for name, c := range map[string]struct {
		objects map[string]any
		args    string
		want    string
	}{
		"both":             {both, "", "^list Secrets in namespace mc: .* list Secrets in namespace linkerd: "},
		"one and the same": {one, "", "^list Secrets in namespace linkerd: [^L]*$"},
		"flags":            {both, "-n a,b", "^list Secrets in namespace a: .* list Secrets in namespace b: "},
		"no installation":  {deployments(), "", "Set --namespace: there is no Deployment of Fingerpost"},
	} {
		kubeconfig := kubeconfigOf(t, map[string]map[string]any{"east": c.objects})
		args := []string{"link", "renew", "--kubeconfig", kubeconfig, "--context", "east"}
		out, err := fingerpost(t, append(args, strings.Fields(c.args)...)...)
		if got := strings.ReplaceAll(fmt.Sprint(err), "\n", " "); !regexp.MustCompile(c.want).MatchString(got) {
			t.Errorf("%s: %s, want %s\n%s", name, got, c.want, out)
		}
	}
}

// What is wrong with a flag is a wrong command line.
func TestLinkRenewUsage(t *testing.T) {
	for flags, want := range map[string]string{
		"--token-duration 5m":        "--token-duration 5m0s is too short",
		"--allow-kubeconfig-hosts /": "--allow-kubeconfig-hosts: ",
		"--namespace a,A":            `--namespace: "A" names no namespace`,
	} {
		_, err := fingerpost(t, append([]string{"link", "renew"}, strings.Fields(flags)...)...)
		if ExitCode(err) != ExitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", flags, err)
		}
	}
}

package cli

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
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

// The CronJob runs what renews tokens, with the permissions that this takes.
func TestLinkRenewManifest(t *testing.T) {
	out, err := fingerpost(t, "link", "renew", "old", "--manifest", "--image", "a.example/b:c", "-n", "linkerd",
		"--schedule", "0 * * * *")
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]string{}
	for text := range strings.SplitSeq(out, "---\n") {
		var kind metav1.TypeMeta
		if err := yaml.UnmarshalStrict([]byte(text), &kind); kind.Kind == "" {
			t.Fatal(err)
		}
		objects[kind.Kind] = text
	}
	var job batchv1.CronJob
	if err := yaml.UnmarshalStrict([]byte(objects["CronJob"]), &job); err != nil || job.Spec.Schedule != "0 * * * *" {
		t.Errorf("%v\n%s", err, objects["CronJob"])
	}
	for _, kind := range []string{"ServiceAccount", "Role", "RoleBinding"} {
		if !strings.Contains(objects[kind], "namespace: linkerd") {
			t.Errorf("no %s in namespace linkerd:\n%s", kind, out)
		}
	}
	linked := newLinkedServer(t)
	local := &secretServer{t: t, updated: map[string]corev1.Secret{}, secrets: []corev1.Secret{
		secretOf(t, "old", linked, jwt("system:serviceaccount:mc:reader", 2*time.Hour, time.Hour)),
		secretOf(t, "other", linked, jwt("system:serviceaccount:mc:reader", 2*time.Hour, time.Hour)),
	}}
	server := httptest.NewServer(local)
	defer server.Close()
	args := job.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Args
	out, err = fingerpost(t, append(slices.Clone(args), "--kubeconfig", cmdtest.WriteKubeconfig(t, server.URL))...)
	if err != nil || len(local.updated) != 1 {
		t.Errorf("%q renews %d Secrets: %v\n%s", args, len(local.updated), err, out)
	}
}

// No CronJob is printed that could not run: one of a flag that it refuses, or of an image that does not exist.
func TestLinkRenewManifestThatCannotRun(t *testing.T) {
	for _, c := range []struct{ version, flags, want, refused string }{
		{version: "v1.2.3", want: `image: "ghcr.io/fingerpost/fingerpost:1.2.3"`},
		{version: "1.2.3", flags: "--image a.example/b", want: `image: "a.example/b"`},
		{version: "1.2.3", flags: "--token-duration 5m", refused: "--token-duration 5m0s is too short"},
		{version: "1.2.3", flags: "--allow-kubeconfig-hosts /", refused: "--allow-kubeconfig-hosts: "},
		{version: "1.2.3", flags: "--namespace=", refused: "--namespace names no namespace"},
		{version: "development", refused: "--image is needed: version development of this binary is no release"},
		{version: "1.2.3-4-g8d1916d", refused: "--image is needed"},
	} {
		args := append([]string{"link", "renew", "--manifest"}, strings.Fields(c.flags)...)
		root := cmdtest.Root(Commands(c.version), args...)
		Prepare(root, "fingerpost")
		out, err := cmdtest.Execute(t, root)
		if (c.refused == "") != (err == nil) || !strings.Contains(out, c.want) {
			t.Errorf("%s %s: %v\n%s", c.version, c.flags, err, out)
		}
		if err != nil && (ExitCode(err) != ExitUsage || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%s %s: %v, want %s", c.version, c.flags, err, c.refused)
		}
	}
}

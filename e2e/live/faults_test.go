package live

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/links"
)

// A linked cluster that does not answer at the start: the server is ready at once, plain Services are
// answered at once, federated ones after 2 s, and the cluster joins within 5 s of its return.
func TestBlackHoleAtStart(t *testing.T) {
	w := newWorld(t, "black-hole", 2)
	west := w.Remotes[0]
	w.do(west.Proxy.Silence())
	w.do(w.Link(t.Context(), west))
	w.serve()
	w.within(2*time.Second, "ready", func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(ctx context.Context) error {
			if !w.Server.Ready(ctx) {
				return fmt.Errorf("not ready")
			}
			return nil
		})
	})
	plain, federated := w.watch(mesh.Service), w.watch(mesh.Federated)
	w.holds(plain, time.Second, "a plain Service", map[*mesh.Site]int{w.Local: 2})
	w.holds(federated, 3*time.Second, "what is known", map[*mesh.Site]int{w.Local: 2, west: 0})
	if n := w.mark(federated); n != 1 {
		t.Errorf("one Add was due:\n%s", federated.Transcript(0))
	}
	w.do(west.Proxy.Pass())
	w.holds(federated, 5*time.Second, "west joins", map[*mesh.Site]int{w.Local: 2, west: 2})
	w.state(west, "Live", 5*time.Second)
}

// A replica is killed while a linked cluster does not answer. A replica that has started since, and one that starts in
// its place, have no state of their own: they ask each other, and their first answers are complete.
func TestKilledReplica(t *testing.T) {
	w := newWorld(t, "killed", 2)
	west := w.Remotes[0]
	peers := [2]string{freeAddress(t), freeAddress(t)}
	token := w.peerToken(w.Local.Identity)
	tokenFile := filepath.Join(t.TempDir(), "token")
	w.do(os.WriteFile(tokenFile, []byte(token), 0o600))
	start := func(i int) *fingerpost.Server {
		t.Helper()
		w.do(w.Serve(t.Context(), fingerpost.Options{
			Binary: binary, Dir: t.TempDir(), Args: []string{
				"-probe-interval=1s", "-suspect-after=3s", "-stale-after=8s",
				"-peer-addr=" + peers[i], "-peers=" + peers[1-i], "-peer-token-file=" + tokenFile,
			},
		}))
		s := w.Server
		t.Cleanup(func() {
			_ = s.Stop() // two are killed
			if t.Failed() {
				t.Logf("the end of the log of replica %d:\n%s", i, s.Tail())
			}
		})
		return s
	}
	complete := func(what string) {
		t.Helper()
		s := w.watch(mesh.Federated)
		w.holds(s, 3*time.Second, what, map[*mesh.Site]int{w.Local: 2, west: 2})
		if n := w.mark(s); n != 1 {
			t.Errorf("%s: one Add was due:\n%s", what, s.Transcript(0))
		}
	}
	kill := func(s *fingerpost.Server) {
		t.Helper()
		w.do(syscall.Kill(s.PID(), syscall.SIGKILL))
		<-s.Exited()
	}
	first := start(0)
	w.link(west)
	w.do(west.Proxy.Silence())
	second := start(1)
	complete("a replica that starts beside the first one")
	w.knowsPeers(peers[1], token)
	kill(first)
	start(0)
	complete("a replica that starts in place of the first one")
	kill(second)
	w.state(west, "Stale", 12*time.Second)
	complete("the last one")
	w.do(west.Proxy.Pass())
	w.state(west, "Live", 5*time.Second)
	complete("after the return")
}

// peerToken returns a token of an account in the local cluster by which replicas know each other.
func (w *world) peerToken(account *controlplane.Identity) string {
	w.t.Helper()
	token, err := w.Local.TokenFor(w.t.Context(), account, "peers.fingerpost.io")
	w.do(err)
	return token
}

// knowsPeers checks that the peer port of a server is open to its own account, and to no other.
func (w *world) knowsPeers(address, own string) {
	w.t.Helper()
	other, err := w.Local.CreateIdentity(w.t.Context(), w.Namespace, "other", nil)
	w.do(err)
	elsewhere, err := w.Local.TokenFor(w.t.Context(), w.Local.Identity, "elsewhere.test")
	w.do(err)
	for name, c := range map[string]struct {
		token string
		want  int
	}{
		"no token": {"", http.StatusUnauthorized}, "garbage": {"a.b.c", http.StatusUnauthorized},
		"its token for the API server": {w.Local.Identity.Token, http.StatusUnauthorized},
		"its token for others":         {elsewhere, http.StatusUnauthorized},
		"another account":              {w.peerToken(other), http.StatusForbidden},
		"a replica":                    {own, http.StatusOK},
	} {
		for _, path := range []string{"/clusters/", "/clusters/west"} {
			request, err := http.NewRequestWithContext(
				w.t.Context(),
				http.MethodGet,
				"http://"+address+path,
				http.NoBody,
			)
			w.do(err)
			if c.token != "" {
				request.Header.Set("Authorization", "Bearer "+c.token)
			}
			response, err := http.DefaultClient.Do(request)
			w.do(err)
			_ = response.Body.Close()
			if response.StatusCode != c.want {
				w.t.Errorf("%s gets %d for %s, want %d", name, response.StatusCode, path, c.want)
			}
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// freeAddress returns an address on loopback at which a server may listen.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return address
}

// A cluster that is cut off, frozen or killed later: not one endpoint is withdrawn, its state is Suspect and
// then Stale, and what it did meanwhile arrives within 2 s of its return.
func TestOutages(t *testing.T) {
	w := newWorld(t, "outages", 2)
	west := w.Remotes[0]
	w.serve()
	w.link(west)
	s := w.watch(mesh.Federated)
	size := 2
	w.holds(s, 3*time.Second, "the union", map[*mesh.Site]int{w.Local: 2, west: size})
	for _, outage := range []struct {
		name     string
		down, up func() error
		alive    bool // the cluster goes on working by itself
	}{
		{"silence", west.Proxy.Silence, west.Proxy.Pass, true},
		{"refuse", func() error { west.Proxy.Refuse(); return nil }, west.Proxy.Pass, true},
		{"frozen API server", func() error { return west.Pause() }, func() error { return west.Continue() }, false},
		{
			"killed API server", func() error { return west.Kill() },
			func() error { return west.Restart(t.Context()) }, false,
		},
	} {
		t.Run(outage.name, func(t *testing.T) {
			w := &world{w.Mesh, t}
			mark := w.mark(s)
			w.do(outage.down())
			w.state(west, "Suspect", 6*time.Second)
			w.state(west, "Stale", 12*time.Second)
			if n := w.mark(s); n != mark {
				t.Errorf("an outage is no message:\n%s", s.Transcript(mark))
			}
			if outage.alive {
				size++
				w.do(west.Scale(t.Context(), w.Namespace, mesh.Service, size))
				_, err := west.WaitEndpoints(t.Context(), w.Namespace, mesh.Service, size)
				w.do(err)
			}
			w.do(outage.up())
			w.holds(s, 2*time.Second, "converged", map[*mesh.Site]int{w.Local: 2, west: size})
			w.state(west, "Live", 3*time.Second)
			if _, removed := w.since(s, mark); len(removed) > 0 {
				t.Errorf("nothing was to be withdrawn:\n%s", s.Transcript(mark))
			}
			size++
			w.do(west.Scale(t.Context(), w.Namespace, mesh.Service, size))
			_, err := west.WaitEndpoints(t.Context(), w.Namespace, mesh.Service, size)
			w.do(err)
			w.holds(s, time.Second, "a change afterwards", map[*mesh.Site]int{w.Local: 2, west: size})
		})
	}
	select {
	case <-w.Server.Exited():
		t.Fatal("the server has ended")
	default:
	}
}

// What is no outage: a slow network, a right that is taken away, a certificate that expires. Nothing is
// withdrawn, the Link reports what is wrong, and once it is put right the server catches up by itself.
func TestFaults(t *testing.T) {
	w := newWorld(t, "faults", 2)
	west := w.Remotes[0]
	w.serve()
	w.link(west)
	s := w.watch(mesh.Federated)
	size := 2
	w.holds(s, 3*time.Second, "the union", map[*mesh.Site]int{w.Local: 2, west: size})
	grow := func(w *world) {
		w.t.Helper()
		size++
		w.do(west.Scale(w.t.Context(), w.Namespace, mesh.Service, size))
		_, err := west.WaitEndpoints(w.t.Context(), w.Namespace, mesh.Service, size)
		w.do(err)
	}

	t.Run("delay", func(t *testing.T) {
		w := &world{w.Mesh, t}
		mark := w.mark(s)
		w.do(west.Proxy.Delay(300 * time.Millisecond))
		grow(w)
		w.holds(s, 2*time.Second, "a change over watches that were open", map[*mesh.Site]int{w.Local: 2, west: size})
		west.Proxy.CutConnections()
		grow(w)
		w.holds(s, 5*time.Second, "a change over watches that were opened slowly",
			map[*mesh.Site]int{w.Local: 2, west: size})
		w.state(west, "Live", 3*time.Second)
		w.do(west.Proxy.Pass())
		grow(w)
		w.holds(s, time.Second, "a change afterwards", map[*mesh.Site]int{w.Local: 2, west: size})
		if added, removed := w.since(s, mark); len(added) != 3 || len(removed) != 0 {
			t.Errorf("three Pods more must be three addresses more:\n%s", s.Transcript(mark))
		}
	})

	t.Run("denied watch", func(t *testing.T) {
		w := &world{w.Mesh, t}
		const verb, resource = "watch", "endpointslices.discovery.k8s.io"
		mark := w.mark(s)
		w.do(west.Deny(t.Context(), west.Identity, verb, resource))
		w.state(west, "Suspect", 6*time.Second)
		w.state(west, "Stale", 12*time.Second)
		const why = "the API server refuses to watch " + resource + " (Forbidden)"
		w.condition(west, links.Connected, "False Stale: "+why, 3*time.Second)
		page, err := w.Server.Cluster(t.Context(), west.Name)
		w.do(err)
		if page.Contact != why {
			t.Errorf("/debug/clusters shows %q, want %q", page.Contact, why)
		}
		for _, kind := range page.Kinds {
			if strings.HasSuffix(kind.Resource, ".linkerd.io") {
				continue // which may or may not be there
			}
			if denied := kind.Resource == resource; denied != (kind.Refused == "Forbidden") || denied == kind.Open {
				t.Errorf("/debug/clusters shows of %s: refused %q, open %t", kind.Resource, kind.Refused, kind.Open)
			}
		}
		grow(w)
		if n := w.mark(s); n != mark {
			t.Errorf("a refusal is no message:\n%s", s.Transcript(mark))
		}
		w.do(west.Allow(t.Context(), west.Identity, verb, resource))
		w.holds(s, 15*time.Second, "converged", map[*mesh.Site]int{w.Local: 2, west: size})
		w.state(west, "Live", 3*time.Second)
		if added, removed := w.since(s, mark); len(added) != 1 || len(removed) != 0 {
			t.Errorf("one Pod more must be one address more:\n%s", s.Transcript(mark))
		}
	})

	t.Run("expired certificate", func(t *testing.T) {
		w := &world{w.Mesh, t}
		w.do(w.Unlink(t.Context(), west))
		w.holds(s, 3*time.Second, "west leaves", map[*mesh.Site]int{w.Local: 2, west: 0})
		brief, err := west.Certify(west.Identity, 15*time.Second)
		w.do(err)
		west.Identity = brief
		w.link(west) // so the certificate is in use
		w.holds(s, 3*time.Second, "west joins", map[*mesh.Site]int{w.Local: 2, west: size})
		mark := w.mark(s)
		w.do(west.Expire(t.Context(), brief))
		w.state(west, "Stale", 12*time.Second)
		const why = "the API server refuses the credentials (401)"
		w.condition(west, links.CredentialsValid, "False Unauthorized: "+why, 3*time.Second)
		w.condition(west, links.Connected, "False Stale: "+why, 3*time.Second)

		west.Identity, err = west.Certify(brief, time.Hour)
		w.do(err)
		w.do(w.Link(t.Context(), west))
		w.state(west, "Live", 5*time.Second)
		w.credentials(west, "True Valid", 3*time.Second)
		if n := w.mark(s); n != mark {
			t.Errorf("nothing has changed, so there is nothing to send:\n%s", s.Transcript(mark))
		}
		grow(w)
		w.holds(s, time.Second, "a change afterwards", map[*mesh.Site]int{w.Local: 2, west: size})
	})
}

// New credentials cause no message where nothing has changed: a token, a new authority, another address. What
// fails leaves the old ones in use, and the Link reports it.
func TestCredentials(t *testing.T) {
	w := newWorld(t, "credentials", 2)
	west := w.Remotes[0]
	w.serve()
	w.link(west)
	s := w.watch(mesh.Federated)
	size := 2
	w.holds(s, 3*time.Second, "the union", map[*mesh.Site]int{w.Local: 2, west: size})
	mark := w.mark(s)

	unchanged := func(what string) {
		t.Helper()
		w.state(west, "Live", 5*time.Second)
		if n := w.mark(s); n != mark {
			t.Errorf("%s is no message:\n%s", what, s.Transcript(mark))
		}
		size++
		w.do(west.Scale(t.Context(), w.Namespace, mesh.Service, size))
		w.holds(s, 3*time.Second, "a change after "+what, map[*mesh.Site]int{w.Local: 2, west: size})
		mark = w.mark(s)
	}

	old, err := w.Rotate(t.Context(), west)
	w.do(err)
	w.credentials(west, "True Valid", 5*time.Second)
	w.do(west.Revoke(t.Context(), old))
	unchanged("a rotated token")

	w.do(w.Credentials(t.Context(), west, west.Kubeconfig(old, west.Proxy.URL())))
	w.credentials(west, "False Unauthorized", 5*time.Second)
	unchanged("a token that is refused")

	w.do(w.Credentials(t.Context(), west, west.Kubeconfig(west.Identity, "https://127.0.0.1:1")))
	w.credentials(west, "Unknown Unreachable", 5*time.Second)
	unchanged("an address where no Pod is")

	w.do(w.Credentials(t.Context(), west, west.Kubeconfig(west.Identity, "")))
	w.credentials(west, "True Valid", 5*time.Second)
	unchanged("another address")

	w.do(west.ReplaceCA(t.Context()))
	w.do(w.Link(t.Context(), west)) // over the proxy again, with the new authority
	w.credentials(west, "True Valid", 5*time.Second)
	unchanged("a new authority")

	w.do(west.Move(t.Context()))
	w.do(w.Credentials(t.Context(), west, west.Kubeconfig(west.Identity, "")))
	w.credentials(west, "True Valid", 5*time.Second)
	unchanged("an API server that has moved")
}

// A kubeconfig that would run a program, read a file or trust any server is rejected, and the condition reports it.
func TestRefusedKubeconfigs(t *testing.T) {
	w := newWorld(t, "refused", 2)
	west := w.Remotes[0]
	canary := filepath.Join(t.TempDir(), "ran")
	file := filepath.Join(t.TempDir(), "token")
	w.do(os.WriteFile(file, []byte(west.Identity.Token), 0o600))
	w.serve()
	w.link(west)
	s := w.watch(mesh.Federated)
	w.holds(s, 3*time.Second, "the union", map[*mesh.Site]int{w.Local: 2, west: 2})
	mark := w.mark(s)

	ca := base64.StdEncoding.EncodeToString(west.CA())
	for field, lines := range map[string][2]string{
		"user.exec": {
			"certificate-authority-data: " + ca,
			fmt.Sprintf(
				`exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: [%q], interactiveMode: Never}`, canary),
		},
		"user.auth-provider":               {"certificate-authority-data: " + ca, "auth-provider: {name: oidc}"},
		"user.tokenFile":                   {"certificate-authority-data: " + ca, "tokenFile: " + file},
		"cluster.certificate-authority":    {"certificate-authority: " + file, "token: " + west.Identity.Token},
		"cluster.insecure-skip-tls-verify": {"insecure-skip-tls-verify: true", "token: " + west.Identity.Token},
		"user.as": {
			"certificate-authority-data: " + ca, "token: " + west.Identity.Token + ", as: admin",
		},
	} {
		kubeconfig := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: %q, %s}}]
users: [{name: u, user: {%s}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
`, west.Proxy.URL(), lines[0], lines[1])
		w.do(w.Credentials(t.Context(), west, []byte(kubeconfig)))
		w.credentials(west, "False Refused: Secret "+w.Namespace+"/cluster-credentials-west: "+field, 3*time.Second)
	}
	if _, err := os.Stat(canary); err == nil {
		t.Error("a program was run")
	}
	if n := w.mark(s); n != mark {
		t.Errorf("a refusal is no message:\n%s", s.Transcript(mark))
	}
	w.state(west, "Live", time.Second)
}

// credentials waits until what a site's Link reports of the credentials starts with what is wanted.
func (w *world) credentials(site *mesh.Site, want string, claimed time.Duration) {
	w.t.Helper()
	w.condition(site, links.CredentialsValid, want, claimed)
}

// condition waits until what a site's Link reports in a condition starts with what is wanted.
func (w *world) condition(site *mesh.Site, condition, want string, claimed time.Duration) {
	w.t.Helper()
	w.within(claimed, condition+" is "+want, func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(ctx context.Context) error {
			got, err := w.Condition(ctx, site, condition)
			if err == nil && !strings.HasPrefix(got, want) {
				err = fmt.Errorf("%s is %q, want %q", condition, got, want)
			}
			return err
		})
	})
}

// labelledSecret is what link-gen prints for Linkerd's destination.
func labelledSecret(site *mesh.Site, namespace string) []byte {
	return []byte(fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %[2]s}
---
apiVersion: v1
kind: Secret
metadata:
  name: cluster-credentials-%[1]s
  namespace: %[2]s
  labels: {multicluster.linkerd.io/cluster-name: %[1]s}
  annotations:
    multicluster.linkerd.io/trust-domain: cluster.local
    multicluster.linkerd.io/cluster-domain: cluster.local
type: %[3]s
data: {kubeconfig: %[4]s}
`, site.Name, namespace, links.SecretType, base64.StdEncoding.EncodeToString(site.Kubeconfig(site.Identity, site.Proxy.URL()))))
}

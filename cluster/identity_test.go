package cluster_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/identity/identitytest"
)

const kubeSystem = `{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}`

// reasons returns why a cluster may not be the one that its Link describes.
func (w *world) reasons(name string) (all string) {
	statuses, _ := w.registry.Statuses()
	s := statuses[name]
	mismatches := problem.Of(s.Problems(nil, time.Now()),
		problem.SameCluster, problem.OtherDomain, problem.OtherAnchors, problem.AnchorsExpire,
		problem.IssuerExpires, problem.ClockSkew)
	for _, p := range mismatches {
		all += p.Reason + " "
	}
	return all
}

func (w *world) wantsReasons(name, want string) {
	w.t.Helper()
	if got := w.reasons(name); got != want {
		w.t.Errorf("%s has the mismatches %q, want %q", name, got, want)
	}
}

// Two names for one API server are reported in both, until one of them is removed. Other clusters have other
// UIDs.
func TestTwoNamesForOneCluster(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, name := range []string{"east", "west"} {
			w.network.Server(name).ApplyYAML(kubeSystem)
		}
		east, west := w.network.Server("east").Token(), w.network.Server("west").Token()
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", east)}})
		w.apply(cluster.Spec{Name: "west", Access: []cluster.Access{w.access("west", west)}})
		w.wait(time.Second)
		w.wantsReasons("east", "")
		w.apply(cluster.Spec{Name: "again", Access: []cluster.Access{w.access("east", east)}})
		w.wait(time.Second)
		if s := w.status(); s.SameAs != "again" || s.Identity.UID == "" {
			t.Errorf("status %+v", s)
		}
		w.wantsReasons("again", "SameCluster ")
		w.wantsReasons("west", "")
		w.registry.Remove("again")
		w.wait(time.Second)
		w.wantsReasons("east", "")
	})
}

// A cluster whose identity may not be read is unknown: nothing follows. The identity is read once it may be.
func TestIdentityThatMayNotBeRead(t *testing.T) {
	inWorld(t, func(w *world) {
		server := w.network.Server("east")
		server.ApplyYAML(kubeSystem)
		server.Forbid("namespaces", true)
		token := server.Token()
		for _, name := range []string{"east", "again"} {
			w.apply(cluster.Spec{Name: name, Access: []cluster.Access{w.access("east", token)}})
		}
		w.wait(time.Second)
		if s := w.status(); s.State != federation.Live || s.Identity.UID != "" {
			t.Errorf("status %+v", s)
		}
		w.wantsReasons("east", "")
		server.Forbid("namespaces", false)
		w.wait(6 * time.Minute)
		w.wantsReasons("east", "SameCluster ")
	})
}

// What was read of an identity stays while it cannot be read, and goes once that is forbidden.
func TestIdentityStays(t *testing.T) {
	inWorld(t, func(w *world) {
		server := w.network.Server("east")
		server.ApplyYAML(kubeSystem)
		token := server.Token()
		for _, name := range []string{"east", "again"} {
			w.apply(cluster.Spec{Name: name, Access: []cluster.Access{w.access("east", token)}})
		}
		w.wait(time.Second)
		w.wantsReasons("east", "SameCluster ")
		server.Fail("namespaces", http.StatusServiceUnavailable, 0)
		w.wait(6 * time.Minute)
		w.wantsReasons("east", "SameCluster ")
		server.Fail("namespaces", 0, 0)
		server.Forbid("namespaces", true)
		w.wait(6 * time.Minute)
		w.wantsReasons("east", "")
	})
}

// A trust domain that differs from what clients get is reported until one of the two is corrected. A cluster
// without a mesh, or with a configuration that cannot be read, has none.
func TestTrustDomains(t *testing.T) {
	config := func(values string) string {
		return `{apiVersion: v1, kind: ConfigMap, metadata: {name: linkerd-config, namespace: linkerd},
			data: {values: "` + values + `"}}`
	}
	for name, c := range map[string]struct{ config, served, want string }{
		"the same":              {config("identityTrustDomain: a.example"), "a.example", ""},
		"another":               {config("identityTrustDomain: a.example"), "b.example", "OtherTrustDomain "},
		"of the cluster domain": {config("clusterDomain: a.example"), "a.example", ""},
		"the default":           {config("{}"), "a.example", "OtherTrustDomain "},
		"no configuration":      {"", "a.example", ""},
		"malformed":             {config("["), "a.example", ""},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				server := w.network.Server("east")
				if c.config != "" {
					server.ApplyYAML(c.config)
				}
				spec := cluster.Spec{
					Name: "east", TrustDomain: c.served, Access: []cluster.Access{w.access("east", server.Token())},
				}
				w.apply(spec)
				w.wait(time.Second)
				w.wantsReasons("east", c.want)
				if c.want != "" {
					spec.TrustDomain = w.status().Identity.TrustDomain
					w.apply(spec)
					w.wait(time.Second)
					w.wantsReasons("east", "")
				}
			})
		})
	}
}

// Trust anchors are compared with those of the local cluster, once both are known, and no longer than that. Those in
// the values count, unless they are left to others.
func TestTrustAnchors(t *testing.T) {
	const none = ""
	a, b := anchorPEM(t, 1), anchorPEM(t, 2)
	values := func(pem string) string { return "identityTrustAnchorsPEM: " + strconv.Quote(pem) }
	external := func(pem string) string { return values(pem) + "\nidentity: {externalCA: true}" }

	for name, c := range map[string]struct {
		ours, theirs, roots string // values of linkerd-config, and the bundle in linkerd-identity-trust-roots
		want                string
	}{
		"the same":                    {values(a), values(a), none, ""},
		"others":                      {values(a), values(b), none, "OtherTrustAnchors "},
		"a rotation":                  {values(a), values(a + b), none, ""},
		"the same, in another order":  {values(a + b), values(b + a), none, ""},
		"no configuration there":      {values(a), none, b, ""},
		"no configuration here":       {none, values(b), none, ""},
		"no anchors there":            {values(a), "{}", none, ""},
		"anchors of others":           {values(a), "{}", b, "OtherTrustAnchors "},
		"anchors of others, the same": {values(a), external(b), a, ""},
		"values of no effect":         {values(a), external(a), b, "OtherTrustAnchors "},
		"values before a bundle":      {values(a), values(a), b, ""},
		"malformed":                   {values(a), values("no PEM"), none, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				for name, values := range map[string]string{"local": c.ours, "east": c.theirs} {
					if values != none {
						w.network.Server(name).ApplyYAML(configMap("linkerd-config", "values", values))
					}
					spec := cluster.Spec{Name: name, Local: name == "local"}
					spec.Access = []cluster.Access{w.access(name, w.network.Server(name).Token())}
					w.apply(spec)
				}
				if c.roots != none {
					roots := configMap("linkerd-identity-trust-roots", "ca-bundle.crt", c.roots)
					w.network.Server("east").ApplyYAML(roots)
				}

				w.wait(6 * time.Minute)
				w.wantsReasons("east", c.want)
				w.wantsReasons("local", "")

				w.network.Server("local").Forbid("configmaps", true)
				w.wait(6 * time.Minute)
				w.wantsReasons("east", "")
			})
		})
	}
}

// Of two meshes that share an anchor each one's issuer must lead to an anchor of the other one. One that leads to none
// of its own mesh is not in use, and one of others is not known.
func TestIssuersOfClusters(t *testing.T) {
	key := identitytest.P256(t)
	lasts := []identitytest.Change{
		identitytest.Begins(time.Unix(0, 0)), identitytest.Ends(time.Date(2090, 1, 1, 0, 0, 0, 0, time.UTC)),
	}
	a := identitytest.NewCA(t, "a", key, nil, lasts...)
	b := identitytest.NewCA(t, "b", identitytest.P256(t), nil, lasts...)
	under := func(ca *identitytest.CA) string {
		return string(identitytest.NewCA(t, "issuer", identitytest.P256(t), ca, lasts...).PEM())
	}
	values := func(issuer string, anchors ...*identitytest.CA) string {
		bundle := ""
		for _, ca := range anchors {
			bundle += string(ca.PEM())
		}
		return fmt.Sprintf("identityTrustAnchorsPEM: %q\nidentity: {issuer: {tls: {crtPEM: %q}}}", bundle, issuer)
	}
	above := identitytest.NewCA(t, "above", identitytest.P256(t), b, lasts...)

	for name, c := range map[string]struct {
		ours, theirs string
		want         string
	}{
		"one anchor":          {values(under(a), a), values(under(a), a), ""},
		"the anchors of both": {values(under(a), a, b), values(under(b), a, b), ""},
		"theirs is not trusted": {
			values(under(a), a), values(under(b), a, b), "proxies here do not trust its issuer, CN=issuer",
		},
		"ours is not trusted": {
			values(under(b), a, b), values(under(a), a), "proxies there do not trust the issuer here, CN=issuer",
		},
		"neither is": {
			values(under(b), a, b), values(under(above)+string(above.PEM()), a, above),
			"proxies there do not trust the issuer here, CN=issuer",
		},
		"theirs is not in use": {values(under(a), a), values(under(b), a), ""},
		"theirs is not known":  {values(under(a), a), values("", a, b), ""},
		"theirs is malformed":  {values(under(a), a), values("x", a, b), ""},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				for name, values := range map[string]string{"local": c.ours, "east": c.theirs} {
					w.network.Server(name).ApplyYAML(configMap("linkerd-config", "values", values))
					spec := cluster.Spec{Name: name, Local: name == "local"}
					spec.Access = []cluster.Access{w.access(name, w.network.Server(name).Token())}
					w.apply(spec)
				}
				w.wait(6 * time.Minute)
				want := ""
				if c.want != "" {
					want = "OtherTrustAnchors "
				}
				w.wantsReasons("east", want)
				w.wantsReasons("local", "")
				if got := w.status().Untrusted; !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
					t.Errorf("%q, want %q", got, c.want)
				}
			})
		})
	}
}

// What was read of trust anchors stays while they cannot be read, as all of an identity.
func TestTrustAnchorsStay(t *testing.T) {
	inWorld(t, func(w *world) {
		for i, name := range []string{"local", "east"} {
			pem := strconv.Quote(anchorPEM(t, int64(i)))
			server := w.network.Server(name)
			server.ApplyYAML(configMap("linkerd-config", "values", "identityTrustAnchorsPEM: "+pem))
			access := []cluster.Access{w.access(name, server.Token())}
			w.apply(cluster.Spec{Name: name, Local: name == "local", Access: access})
		}
		w.wait(time.Second)
		w.wantsReasons("east", "OtherTrustAnchors ")
		w.network.Server("east").Fail("configmaps", http.StatusServiceUnavailable, 0)
		w.wait(6 * time.Minute)
		w.wantsReasons("east", "OtherTrustAnchors ")
	})
}

// configMap returns a ConfigMap of the control plane with one key.
func configMap(name, key, value string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, namespace: linkerd}, data: {%s: %q}}",
		name, key, value)
}

// anchorPEM returns a certificate that lasts, another one for each serial number.
func anchorPEM(t *testing.T, serial int64) string {
	t.Helper()
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotAfter: time.Date(2090, 1, 1, 0, 0, 0, 0, time.UTC), IsCA: true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(nil, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// A clock that is off is reported with its difference, which does not change with each probe.
func TestClockSkew(t *testing.T) {
	inWorld(t, func(w *world) {
		server := w.network.Server("east")
		w.apply(cluster.Spec{Name: "east", Access: []cluster.Access{w.access("east", server.Token())}})
		for _, c := range []struct {
			skew time.Duration
			want string
		}{
			{0, ""},
			{8 * time.Second, ""},
			{-8 * time.Second, ""},
			{5 * time.Minute, "5m0s ahead of"},
			{5*time.Minute + 3*time.Second, "5m0s ahead of"},
			{5*time.Minute + 7*time.Second, "5m7s ahead of"},
			{-time.Minute, "59s behind"}, // the date has whole seconds
			{0, ""},
		} {
			server.Skew(c.skew)
			w.wait(10 * time.Second)
			if c.want != "" {
				c.want += " this replica's"
			}
			if got := w.status().ClockSkew; got != c.want {
				t.Errorf("a clock that is %s ahead is %q, want %q", c.skew, got, c.want)
			}
		}
	})
}

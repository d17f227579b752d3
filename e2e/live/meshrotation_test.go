package live

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// An anchor takes over from another one as docs/certificates.md has it, while a proxy is served: `certs rotate` finds
// out from the API server which step is next, and what is to be waited for. Its --force stands for the minutes in which
// kubelets write files anew, which are written at once here.
func TestMeshRotation(t *testing.T) {
	const lifetime = time.Minute
	set := fmt.Sprintf("{controlPlane: {enabled: true, layout: one, identity: {issuer: {issuanceLifetime: %s}}},"+
		" crds: {links: true}}", lifetime)
	m := runMesh(t, claim(t)[0], "mesh-rotates", set, 2)
	held := m.hold("web")
	config := filepath.Join(m.dir, "config")
	m.do(os.WriteFile(config, m.AdminKubeconfig(), 0o600))
	rotate := func(args ...string) ([]byte, string) {
		t.Helper()
		return m.certs("rotate", append([]string{"--kubeconfig=" + config, "--anchor-cert=new.crt"}, args...)...)
	}
	const key = "--anchor-key=new.key"

	out, errs := rotate(key)
	m.take(out, errs, "kind: ConfigMap")
	if out, errs := rotate(key); len(out) > 0 || !strings.Contains(errs, "do not trust the new anchor") {
		t.Errorf("while a Pod trusts the old anchor alone:\n%s%s", out, errs)
	}
	m.trusts(filepath.Join(m.dir, "new.crt"))
	held = m.again(held, "web-2")

	out, errs = rotate(key)
	m.take(out, errs, "kind: Secret")
	if out, errs := rotate(key, "--remove="+m.fingerprint("anchor.crt")); len(out) > 0 || errs == "" {
		t.Errorf("while there are leaves of the old issuer:\n%s%s", out, errs)
	}
	m.renews(held, 3*lifetime)
	m.check(held)

	out, errs = rotate("--force", "--remove="+m.fingerprint("anchor.crt"))
	m.take(out, errs, "kind: ConfigMap")
	if old := m.read("anchor.crt"); bytes.Contains(out, bytes.TrimSpace(old)) {
		t.Errorf("the old anchor is kept:\n%s", out)
	}
	held = m.again(held, "web-3")
	held.End()
	m.check(held)
}

// take applies what a step prints, and has the parts read it.
func (m *meshed) take(out []byte, errs, kind string) {
	m.Helper()
	if !bytes.Contains(out, []byte(kind)) {
		m.Fatalf("want %s:\n%s%s", kind, out, errs)
	}
	m.do(m.Apply(m.Context(), out))
	for _, p := range m.parts {
		p.mount()
	}
}

// trusts waits until Pods are given an anchor.
func (m *meshed) trusts(file string) {
	m.Helper()
	anchor, err := os.ReadFile(file)
	m.do(err)
	ctx, cancel := context.WithTimeout(m.Context(), time.Minute)
	defer cancel()
	m.do(mesh.Eventually(ctx, func(context.Context) error {
		pod := m.would(m.namespace+"-shop", "probe")
		if !strings.Contains(anchorsOf(pod), string(bytes.TrimSpace(anchor))) {
			return errors.New("Pods are not given the new anchor")
		}
		return nil
	}))
}

func anchorsOf(pod *corev1.Pod) string {
	for _, v := range containerOf(pod).Env {
		if v.Name == "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS" {
			return v.Value
		}
	}
	return ""
}

// again replaces the Pod of a proxy, whose calls were all answered.
func (m *meshed) again(held *mesh.Hold, name string) *mesh.Hold {
	m.Helper()
	held.End()
	m.check(held)
	_, err := m.Kubectl(m.Context(), "-n", m.namespace+"-shop", "delete", "pods", "-l", "app=web", "--force")
	m.do(err)
	return m.hold(name)
}

// check fails if a call was refused, or one thing of a proxy was without an answer for long.
func (m *meshed) check(held *mesh.Hold) {
	m.Helper()
	const away = 10 * time.Second
	m.Logf("\n%s", held)
	for what, kept := range held.Kept() {
		if kept.Longest > away {
			m.Errorf("%s: %+v, want at most %s without an answer", what, kept, away)
		}
	}
	for _, err := range held.Errs() {
		m.Error(err)
	}
}

func (m *meshed) read(name string) []byte {
	m.Helper()
	text, err := os.ReadFile(filepath.Join(m.dir, name))
	m.do(err)
	return text
}

// fingerprint returns that of a certificate in a file.
func (m *meshed) fingerprint(name string) string {
	m.Helper()
	block, _ := pem.Decode(m.read(name))
	return fmt.Sprintf("%x", sha256.Sum256(block.Bytes))
}

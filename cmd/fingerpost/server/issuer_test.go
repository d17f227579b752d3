package server

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fingerpost/fingerpost/identity"
	"github.com/fingerpost/fingerpost/identity/identitytest"
)

// An issuance is an authority that reads its issuer from files, as a kubelet mounts them.
type issuance struct {
	t         *testing.T
	dir       string
	scheme    string
	anchor    *identitytest.CA
	authority *identity.Authority
	issuer    *Issuer
	ready     *Readiness
	stop      func()
	running   sync.WaitGroup
	mounts    int

	mu      sync.Mutex // guards all below
	changes []IssuerChange
	log     strings.Builder
}

// inIssuance plays a case on virtual time.
func inIssuance(t *testing.T, scheme string, play func(i *issuance)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		i := &issuance{t: t, dir: dir, scheme: scheme, ready: &Readiness{Log: logr.Discard()}}
		i.anchor = i.root("root")
		i.authority = identity.NewAuthority(identity.Options{
			Domain: identity.Domain{Namespace: "linkerd", TrustDomain: "cluster.local"},
		})
		files := IssuerFilesIn(filepath.Join(dir, "issuer"), scheme, filepath.Join(dir, "anchors", "ca-bundle.crt"))
		log := funcr.New(func(_, args string) {
			i.mu.Lock()
			defer i.mu.Unlock()
			i.log.WriteString(args + "\n")
		}, funcr.Options{})
		i.issuer = NewIssuer(log, i.authority, files, func(c IssuerChange) {
			i.mu.Lock()
			defer i.mu.Unlock()
			i.changes = append(i.changes, c)
		})
		i.ready.Add(i.issuer.Usable())

		play(i)
		i.stop()
		i.running.Wait()
	})
}

// start has the files read from now on.
func (i *issuance) start() {
	var ctx context.Context
	ctx, i.stop = context.WithCancel(i.t.Context())
	for _, run := range []func(context.Context) error{i.issuer.Start, i.ready.Start} {
		i.running.Go(func() {
			if err := run(ctx); err != nil {
				i.t.Error(err)
			}
		})
	}
}

// supply mounts an issuer under the anchor, and starts to read it.
func (i *issuance) supply(ca *identitytest.CA) {
	i.t.Helper()
	i.mountAnchors(i.anchor.PEM())
	i.mountIssuer(ca.PEM(), ca.KeyPEM(i.t))
	i.start()
}

func (i *issuance) root(name string) *identitytest.CA {
	return identitytest.NewCA(i.t, name, identitytest.P256(i.t), nil, identitytest.Ends(time.Now().AddDate(20, 0, 0)))
}

func (i *issuance) ca(above *identitytest.CA, changes ...identitytest.Change) *identitytest.CA {
	return identitytest.NewCA(i.t, "issuer", identitytest.P256(i.t), above, changes...)
}

// mount has a directory hold files, by a swap of ..data as kubelets do it.
func (i *issuance) mount(name string, files map[string][]byte) {
	i.t.Helper()
	i.mounts++
	dir := filepath.Join(i.dir, name)
	data := filepath.Join(dir, "..v"+time.Now().Format("150405.000000000")+string(rune('a'+i.mounts%26)))
	check := func(err error) {
		i.t.Helper()
		if err != nil {
			i.t.Fatal(err)
		}
	}

	check(os.MkdirAll(data, 0o700))
	for file, content := range files {
		check(os.WriteFile(filepath.Join(data, file), content, 0o600))
	}
	check(os.Symlink(filepath.Base(data), filepath.Join(dir, "..tmp")))
	check(os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
	for file := range files {
		if err := os.Symlink(filepath.Join("..data", file), filepath.Join(dir, file)); err != nil && !os.IsExist(err) {
			i.t.Fatal(err)
		}
	}
}

func (i *issuance) mountAnchors(bundle []byte) {
	i.t.Helper()
	i.mount("anchors", map[string][]byte{"ca-bundle.crt": bundle})
}

func (i *issuance) mountIssuer(certificate, key []byte) {
	i.t.Helper()
	if i.scheme == "linkerd.io/tls" {
		i.mount("issuer", map[string][]byte{"crt.pem": certificate, "key.pem": key})
		return
	}
	i.mount("issuer", map[string][]byte{"tls.crt": certificate, "tls.key": key})
}

// begin mounts a good issuer, and waits until it signs.
func (i *issuance) begin() *identitytest.CA {
	i.t.Helper()
	ca := i.ca(i.anchor)
	i.supply(ca)
	i.wantsSigner(ca)
	i.wantsEvents(IssuerUpdated)
	return ca
}

// wantsSigner waits for as long as the contract gives it, and checks who signs.
func (i *issuance) wantsSigner(ca *identitytest.CA) {
	i.t.Helper()
	elapse(10 * time.Second)
	issuer := i.authority.Issuer()
	if issuer == nil || issuer.Serial() != ca.Certificate.SerialNumber.String() {
		i.t.Errorf("%v does not sign", ca.Certificate.SerialNumber)
	}
}

// wantsEvents checks the reasons of what was reported since the last time.
func (i *issuance) wantsEvents(reasons ...string) []IssuerChange {
	i.t.Helper()
	synctest.Wait()
	i.mu.Lock()
	defer i.mu.Unlock()
	var got []string
	all := i.changes
	for _, c := range all {
		got = append(got, c.Reason)
	}
	if !slices.Equal(got, reasons) {
		i.t.Errorf("events %q, want %q: %+v", got, reasons, all)
	}
	i.changes = nil
	return all
}

func (i *issuance) wantsReady(want bool) {
	i.t.Helper()
	synctest.Wait()
	if is, missing := i.ready.Report(); is != want {
		i.t.Errorf("ready: %v %q, want %v", is, missing, want)
	}
}

func elapse(d time.Duration) {
	<-time.NewTimer(d).C
	synctest.Wait()
}

// IC44, its Events and readiness: an issuer that has ended makes the process unready, and is reported once a minute.
func testIssuerEnds(t *testing.T) {
	inIssuance(t, "linkerd.io/tls", func(i *issuance) {
		short := i.ca(i.anchor, identitytest.Ends(time.Now().Add(time.Hour)))
		i.supply(short)
		i.wantsSigner(short)
		i.wantsReady(true)
		elapse(time.Hour)
		i.wantsEvents(IssuerUpdated, IssuerExpiring, IssuerExpiring)
		i.wantsReady(false)

		refusal := &identity.Refusal{Check: identity.CheckChain, Err: i.authority.Issuer().Check(time.Now())}
		for range 119 {
			i.issuer.Refused(refusal)
			elapse(time.Second)
		}
		i.issuer.Refused(&identity.Refusal{Check: identity.CheckToken})
		i.wantsEvents(IssuerInvalid, IssuerInvalid)

		next := i.ca(i.anchor)
		i.mountIssuer(next.PEM(), next.KeyPEM(t))
		i.wantsSigner(next)
		i.wantsReady(true)
	})
}

// IC51: without files the process waits for them.
func testFilesComeLater(t *testing.T) {
	inIssuance(t, "linkerd.io/tls", func(i *issuance) {
		i.start()
		elapse(time.Minute)
		i.wantsReady(false)
		i.wantsEvents(IssuerSkipped)
		ca := i.ca(i.anchor)
		i.mountAnchors(i.anchor.PEM())
		i.mountIssuer(ca.PEM(), ca.KeyPEM(t))
		i.wantsSigner(ca)
		i.wantsReady(true)
	})
}

// IC52: the names of the files are those of the scheme.
func testSchemes(t *testing.T) {
	for _, scheme := range []string{"linkerd.io/tls", "kubernetes.io/tls"} {
		inIssuance(t, scheme, func(i *issuance) { i.begin() })
	}
}

// IC53: a Secret that changes is taken into use.
func testRotation(t *testing.T) {
	inIssuance(t, "kubernetes.io/tls", func(i *issuance) {
		i.begin()
		next := i.ca(i.anchor)
		i.mountIssuer(next.PEM(), next.KeyPEM(t))
		i.wantsSigner(next)
		i.wantsEvents(IssuerUpdated)
		elapse(time.Hour)
		i.wantsEvents()
	})
}

// IC54: what cannot sign is not, and the reason is reported once.
func testBadCandidates(t *testing.T) {
	inIssuance(t, "kubernetes.io/tls", func(i *issuance) {
		first := i.begin()
		leaf := identitytest.NewCA(t, "leaf", identitytest.P256(t), i.anchor, identitytest.NoCA)
		stranger := i.ca(i.root("other"))
		for text, files := range map[string][2][]byte{
			"does not match":    {i.ca(i.anchor).PEM(), first.KeyPEM(t)},
			"no authority":      {leaf.PEM(), leaf.KeyPEM(t)},
			"unknown authority": {stranger.PEM(), stranger.KeyPEM(t)},
			"find any PEM data": {[]byte("garbage"), first.KeyPEM(t)},
		} {
			i.mountIssuer(files[0], files[1])
			i.wantsSigner(first)
			elapse(time.Minute)
			for _, change := range i.wantsEvents(IssuerSkipped) {
				if !strings.Contains(change.Note, text) || !change.Warning {
					t.Errorf("%+v, want %q", change, text)
				}
			}
		}
	})
}

// IC56: an issuer under an anchor that comes later is taken then.
func testAnchorComesLater(t *testing.T) {
	inIssuance(t, "kubernetes.io/tls", func(i *issuance) {
		first, anchor := i.begin(), i.root("new")
		next := i.ca(anchor)
		i.mountIssuer(next.PEM(), next.KeyPEM(t))
		i.wantsSigner(first)
		i.wantsEvents(IssuerSkipped)
		i.mountAnchors(append(i.anchor.PEM(), anchor.PEM()...))
		i.wantsSigner(next)
		i.wantsEvents(IssuerUpdated)
	})
}

// IC57: a bundle under which the issuer is not changes nothing.
func testOtherAnchors(t *testing.T) {
	inIssuance(t, "kubernetes.io/tls", func(i *issuance) {
		first := i.begin()
		i.mountAnchors(i.root("new").PEM())
		i.wantsSigner(first)
		if change := i.wantsEvents(IssuerSkipped); !strings.Contains(change[0].Note, "does not verify") {
			t.Errorf("%+v", change)
		}
		i.wantsReady(true)
	})
}

// IC59: files that are written in place are read without any notification.
func testWrittenInPlace(t *testing.T) {
	inIssuance(t, "kubernetes.io/tls", func(i *issuance) {
		i.begin()
		next := i.ca(i.anchor)
		for name, content := range map[string][]byte{"tls.crt": next.PEM(), "tls.key": next.KeyPEM(t)} {
			if err := os.WriteFile(filepath.Join(i.dir, "issuer", name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		i.wantsSigner(next)
	})
}

// IC60: what is no certificate in a bundle is left out.
func testMixedBundle(t *testing.T) {
	inIssuance(t, "kubernetes.io/tls", func(i *issuance) {
		ca := i.ca(i.anchor)
		i.mountAnchors(slices.Concat([]byte("# comment\n"), ca.KeyPEM(t), i.anchor.PEM()))
		i.mountIssuer(ca.PEM(), ca.KeyPEM(t))
		i.start()
		i.wantsSigner(ca)
		i.mu.Lock()
		defer i.mu.Unlock()
		if !strings.Contains(i.log.String(), "blocks that are no certificates") {
			t.Errorf("no warning in\n%s", &i.log)
		}
	})
}

// IC61: the end of an issuer is reported, once for each step.
func testIssuerExpires(t *testing.T) {
	for _, test := range []struct{ life, left time.Duration }{
		{2 * 365 * 24 * time.Hour, 59 * 24 * time.Hour}, {24 * time.Hour, 7 * time.Hour},
	} {
		inIssuance(t, "kubernetes.io/tls", func(i *issuance) {
			end := time.Now().Add(test.left)
			ca := i.ca(i.anchor, identitytest.Begins(end.Add(-test.life)), identitytest.Ends(end))
			i.supply(ca)
			elapse(time.Hour)
			i.wantsEvents(IssuerUpdated, IssuerExpiring)
			elapse(time.Hour)
			i.wantsEvents()
			if test.left < 24*time.Hour {
				elapse(2 * time.Hour)
				i.wantsEvents(IssuerExpiring) // a sixth of its life is left
			}
		})
	}
}

// IC62: the metric is how long the issuer lasts, and is not there before there is one.
func testIssuerMetric(t *testing.T) {
	inIssuance(t, "kubernetes.io/tls", func(i *issuance) {
		metric := i.issuer.Metrics()[1]
		if n := testutil.CollectAndCount(metric); n != 0 {
			t.Errorf("%d series before there is an issuer", n)
		}
		ca := i.begin()
		want := time.Until(ca.Certificate.NotAfter).Seconds()
		if got := testutil.ToFloat64(metric); got != want {
			t.Errorf("%v s, want %v", got, want)
		}
	})
}

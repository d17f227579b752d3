package app_test

import (
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/tools/txtar"
	"google.golang.org/grpc/test/bufconn"

	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
)

// The rest of the matrix: what a replica tries that is no call to an API server. In each cell 'fingerpost check', the
// page and a metric that an alert reads have it within the stated time, nothing is withdrawn from a client, and a
// minute after the repair nothing is left.

// peerClasses are the ways in which other replicas can refuse to hand over what they know, with the words of it.
var peerClasses = map[string]struct {
	words  string
	answer http.HandlerFunc
}{
	"Unauthorized": {"401 Unauthorized", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }},
	"Forbidden":    {"403 Forbidden", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }},
	"Fails":        {"500 Internal", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }},
	"Redirect": {"302 Found", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://sso.corp.example/", http.StatusFound)
	}},
	"Malformed": {"not a list of clusters", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		_, _ = w.Write([]byte("<html>"))
	}},
	"HangsUp": {"EOF", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
}

func TestMatrixOfPeers(t *testing.T) {
	inMatrix(t, func(m *matrix) {
		m.wantsNone("before")
		for _, name := range sortedKeys(peerClasses) {
			stop := m.answerPeers(peerClasses[name].answer)
			elapse(7 * time.Minute) // they are asked each five
			m.wantsCell(name, problem.PeersRefuse, peerClasses[name].words, "fingerpost_peers_refuse")
			m.wantsKept()
			stop()
			elapse(time.Minute)
			m.wantsNone(name)
		}
	})
}

// A replica that has no time, or is away, refuses nothing.
func TestBusyPeersRefuseNothing(t *testing.T) {
	inMatrix(t, func(m *matrix) {
		stop := m.answerPeers(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
		elapse(time.Hour)
		m.wantsNone("busy")
		stop()
		m.stop("replica-2")
		elapse(time.Hour)
		m.wantsNone("alone")
	})
}

func TestMatrixOfStateDirectory(t *testing.T) {
	inMatrix(t, func(m *matrix) {
		m.do("disk", []string{"replica-1", "read-only"})
		for range 4 {
			m.live()
		}
		m.wantsCell("read-only", problem.NotSaved, "cannot be saved", "fingerpost_checkpoint_failures")
		m.wantsKept()
		m.do("disk", []string{"replica-1", "repair"})
		for range 4 {
			m.live()
		}
		m.wantsNone("read-only")
	})
}

// A file of a certificate is replaced by one that cannot be used, or is gone.
func TestMatrixOfFiles(t *testing.T) {
	certificate, key := cmdtest.Certificate(t, "fingerpost.test", 1)
	_, otherKey := cmdtest.Certificate(t, "fingerpost.test", 2)
	synctest.Test(t, func(t *testing.T) {
		s := newScenario(t, new(txtar.Archive))
		defer s.end()
		dir := t.TempDir()
		files := map[string]string{}
		for _, name := range []string{"tls.crt", "tls.key", "ca.crt"} {
			files[name] = filepath.Join(dir, name)
		}
		write := func(name string, content []byte) {
			if err := os.WriteFile(files[name], content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		restore := func() {
			write("tls.crt", certificate)
			write("tls.key", key)
			write("ca.crt", certificate)
		}
		restore()
		s.flags = strings.Fields(serveDefaults + " -tls-cert-file=" + files["tls.crt"] + " -tls-key-file=" +
			files["tls.key"] + " -tls-client-ca-file=" + files["ca.crt"])
		s.start("replica-1")
		elapse(time.Minute)
		m := &matrix{scenario: s}
		m.wantsNone("before")

		for name, change := range map[string]struct {
			do    func()
			words string
		}{
			"no certificate":        {func() { write("tls.crt", []byte("no")) }, "tls: failed to find any PEM data"},
			"cut":                   {func() { write("tls.crt", certificate[:40]) }, "PEM data"},
			"the key of another":    {func() { write("tls.key", otherKey) }, "private key does not match"},
			"gone":                  {func() { _ = os.Remove(files["tls.key"]) }, "no such file"},
			"authorities are empty": {func() { write("ca.crt", nil) }, "holds no certificate"},
		} {
			change.do()
			elapse(10 * time.Second)
			m.wantsCell(name, problem.Unreadable, change.words, "fingerpost_certificate_files_unreadable")
			restore()
			elapse(time.Minute)
			m.wantsNone(name)
		}
	})
}

// wantsCell checks that what fails is reported everywhere, by one replica at least.
func (m *matrix) wantsCell(cell string, class problem.Class, words, metric string) {
	m.t.Helper()
	all := m.problems()
	if !slices.ContainsFunc(all, func(p problem.Problem) bool {
		return p.Class == class && strings.Contains(p.Text, words) && !strings.Contains(p.Text, "\n")
	}) {
		m.t.Errorf("%s: no problem %s has %q: %s", cell, class, words, texts(all))
	}
	if got := m.lines(func() { m.check([]string{"replicas"}) }); !strings.Contains(got, words) {
		m.t.Errorf("%s: check: %s", cell, got)
	}
	if !badItem.MatchString(m.pages()) {
		m.t.Errorf("%s: all pages are green", cell)
	}
	if !m.isAbove(metric) {
		m.t.Errorf("%s: %s is 0", cell, metric)
	}
}

// wantsNone checks that nothing is reported of what replicas try.
func (m *matrix) wantsNone(when string) {
	m.t.Helper()
	if got := m.lines(func() { m.check([]string{"replicas"}) }); got != "√\n" {
		m.t.Errorf("%s: %s", when, got)
	}
	if badItem.MatchString(m.pages()) {
		m.t.Errorf("%s: a page is not green: %s", when, texts(m.problems()))
	}
	for _, metric := range []string{
		"fingerpost_peers_refuse", "fingerpost_checkpoint_failures", "fingerpost_certificate_files_unreadable",
	} {
		if m.isAbove(metric) {
			m.t.Errorf("%s: %s is above 0", when, metric)
		}
	}
}

// isAbove reports whether a metric of a replica is above 0.
func (m *matrix) isAbove(metric string) bool {
	for _, replica := range m.replicas {
		for series, value := range m.samples(replica) {
			if name, _, _ := strings.Cut(series, "{"); name == metric && value > 0 {
				return true
			}
		}
	}
	return false
}

// answerPeers has something else answer what replicas ask each other, until stop is called.
func (m *matrix) answerPeers(answer http.HandlerFunc) (stop func()) {
	listener := bufconn.Listen(1 << 16)
	fake := &http.Server{Handler: answer, ErrorLog: log.New(io.Discard, "", 0)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = fake.Serve(listener)
	}()
	m.setPeers(listener)
	return func() {
		m.setPeers(nil)
		_ = fake.Close()
		<-served
	}
}

func (m *matrix) setPeers(listener *bufconn.Listener) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inPlaceOfPeers = listener
}

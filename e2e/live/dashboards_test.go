package live

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// scraped are the labels that Prometheus itself adds, and the one that [fingerpost.Server.Metrics] removes.
var scraped = []string{"", "job", "pod", "instance", "cluster", "namespace", "installation"}

// refusal lets the API server take no EndpointSlice in one namespace.
const refusal = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-slices}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: dashboards}}
    resourceRules:
    - {apiGroups: [discovery.k8s.io], apiVersions: [v1], operations: [CREATE], resources: [endpointslices]}
  validations: [{expression: "false", message: not today}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-slices}
spec: {policyName: no-slices, validationActions: [Deny]}
`

// Every metric and every label that a dashboard or an alert asks for is one that a running process exports:
// everything that is counted happens here once.
func TestDashboards(t *testing.T) {
	c := newCharted(t, "dashboards", "mirror: {mode: 'on', probeGateways: true}\npolicy: {enabled: true}", "")
	shared := netip.MustParseAddrPort("192.0.2.79:8080")
	c.claim(c.Local, shared)
	c.claim(c.west, shared)
	_, err := c.west.Kubectl(t.Context(), "-n", c.Namespace, "patch", "endpointslice/shared", "--type=json", "-p",
		`[{"op": "add", "path": "/endpoints/0/hostname", "value": "another"}]`) // the clusters contradict each other
	c.do(err)
	certified, err := c.west.Certify(c.west.Identity, time.Hour) // the chart's token does not end
	c.do(err)
	c.west.Identity = certified
	c.Args = append(c.Args, "-admission-rate=1", "-admission-burst=2", // some streams are sent away
		"-state-dir="+t.TempDir(), "-peers=localhost:1") // no other replica is there
	c.do(c.Local.Apply(t.Context(), []byte(refusal)))
	lift := func(ctx context.Context) error {
		_, err := c.Local.Kubectl(ctx, "delete", "--ignore-not-found",
			"validatingadmissionpolicybindings/no-slices", "validatingadmissionpolicies/no-slices")
		return err
	}
	t.Cleanup(func() {
		if err := lift(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	slice := filepath.Join(t.TempDir(), "slice.yaml")
	c.do(os.WriteFile(
		slice, []byte(
			"{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: any, namespace: dashboards}, addressType: IPv4, endpoints: []}"), 0o600))
	c.do(c.eventually("no slice is taken", func(ctx context.Context) error {
		_, err := c.Local.Kubectl(ctx, "create", "--dry-run=server", "-f", slice)
		if err == nil {
			return errors.New("one is")
		}
		if !strings.Contains(err.Error(), "not today") {
			return err
		}
		return nil
	}))
	_, err = c.Local.Kubectl(t.Context(), "-n", c.Namespace, "annotate", "--overwrite",
		"service/"+mesh.Federated, view.OptIn+"="+view.Enabled, policy.PreferKey+"=local,*")
	c.do(err)

	var have, failing map[string]map[string]bool
	c.do(c.export(c.Namespace, "api", byGateway, 80))
	err = c.run(func(*logged) error {
		if err := errors.Join(c.selects(), c.probes()); err != nil {
			return err
		}
		for range 6 {
			s, err := c.Watch(t.Context(), c.Authority(mesh.Federated))
			if err != nil {
				return err
			}
			defer s.Close()
		}
		counted := func(names ...string) error {
			return c.eventually("metrics", func(ctx context.Context) error {
				page, err := c.Server.Metrics(ctx)
				if err != nil {
					return err
				}
				have, err = exported(page)
				for _, name := range names {
					if have[name] == nil {
						err = errors.Join(err, fmt.Errorf("no %s yet", name))
					}
				}
				return err
			})
		}
		c.west.Proxy.Refuse()
		errs := c.scrape(`fingerpost_api_errors_total{reason="Unreachable"`)
		errs = errors.Join(errs, c.west.Proxy.Pass())
		change := func() error { // its lag is measured
			_, err := c.west.Kubectl(t.Context(), "-n", c.Namespace, "annotate", "endpointslice/shared", "changed=now")
			return err
		}
		keep := func(err error) error {
			failing = have
			return err
		}
		return errors.Join(
			errs,
			counted("fingerpost_cluster_probe_duration_seconds"),
			change(),
			counted("endpointslices_informer_lag_seconds_bucket"),
			keep(counted("fingerpost_cluster_credentials_expiry_timestamp_seconds",
				"fingerpost_admission_refused_total", "fingerpost_slice_write_failures_total", "endpoints_pods",
				"fingerpost_link_condition",
				"fingerpost_endpoint_conflicts",
				"fingerpost_objects_not_written", "fingerpost_requests_failing")), // after half a minute
			lift(t.Context()),
			counted("fingerpost_slice_writes_total", "fingerpost_lease_holder", "fingerpost_mirror_services",
				"fingerpost_mirror_writes_total", "gateway_alive", "gateway_probes"),
		)
	})
	c.do(err)
	for name, labels := range failing {
		if have[name] == nil {
			have[name] = labels
		}
	}

	files := certificate(t)
	for _, page := range []string{c.encrypted(files), validator(t, files)} {
		more, err := exported(page)
		c.do(err)
		maps.Copy(have, more)
	}

	command := exec.CommandContext(t.Context(), "go", "run", "-C", chartTools, ".", "-questions",
		chartFiles+"/fingerpost")
	command.Stderr = os.Stderr
	lines, err := command.Output()
	c.do(err)
	asked := map[string]bool{}
	for line := range strings.Lines(string(lines)) {
		metric, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		label, where, _ := strings.Cut(rest, "\t")
		asked[metric] = true
		switch labels := have[metric]; {
		case labels == nil:
			t.Errorf("%s: there is no metric %s", where, metric)
		case !slices.Contains(scraped, label) && !labels[label]:
			t.Errorf("%s: metric %s has no label %s", where, metric, label)
		}
	}
	if len(asked) < 30 {
		t.Errorf("%d metrics are asked for", len(asked))
	}
}

// exported reads a page of metrics: of each, by the name that queries use, the labels.
func exported(page string) (map[string]map[string]bool, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(page))
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	all := map[string]map[string]bool{}
	for name, family := range families {
		labels := map[string]bool{}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
			}
		}
		if family.GetType() == dto.MetricType_HISTOGRAM {
			name += "_bucket"
			labels["le"] = true
		}
		all[name] = labels
	}
	return all, nil
}

// certificate returns a directory with tls.crt and tls.key.
func certificate(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	identity, err := clusters[0].CreateIdentity(t.Context(), "dashboards", "validator", nil)
	if err == nil {
		identity, err = clusters[0].Certify(identity, time.Hour) // for a client, but no server asks here
	}
	if err == nil {
		err = errors.Join(
			os.WriteFile(filepath.Join(dir, "tls.crt"), identity.Certificate, 0o600),
			os.WriteFile(filepath.Join(dir, "tls.key"), identity.Key, 0o600),
		)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// encrypted runs a server with TLS for a moment and returns its metrics.
func (c *charted) encrypted(files string) (page string) {
	c.t.Helper()
	values := filepath.Join(files, "values")
	c.do(os.WriteFile(values, []byte("linkerdVersion: edge-1\n"), 0o600))
	c.do(c.Serve(c.t.Context(), fingerpost.Options{
		Binary: binary, Dir: c.t.TempDir(),
		Args: []string{
			"-tls-cert-file=" + filepath.Join(files, "tls.crt"),
			"-tls-key-file=" + filepath.Join(files, "tls.key"),
			"-peer-addr=", "-peers=", // they would need certificates of clients, too
			"-policy-addr=127.0.0.1:0",
			"-identity-addr=127.0.0.1:0", // without an issuer: there are metrics nevertheless
			"-webhook-addr=127.0.0.1:0", "-webhook-tls-dir=" + files,
			"-injector-values=" + values, "-injector-trust-anchors=" + filepath.Join(files, "tls.crt"),
		},
	}))
	page, err := c.Server.Metrics(c.t.Context())
	c.do(errors.Join(err, c.Server.Stop()))
	return page
}

// validator runs the webhook of ServiceProfiles for a moment and returns its metrics.
func validator(t *testing.T, files string) string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	command := exec.CommandContext(ctx, binary, "sp-validator", "-addr=127.0.0.1:0",
		"-metrics-addr=127.0.0.1:0", "-tls-dir="+files, "-log-format=json")
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = 10 * time.Second
	log, err := command.StderrPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	page, err := scrapeFirst(ctx, log)
	stop()
	_, _ = io.Copy(io.Discard, log)
	if werr := command.Wait(); werr != nil && !errors.Is(werr, context.Canceled) {
		err = errors.Join(err, werr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// scrapeFirst learns from a log where the admin server listens and returns its metrics.
func scrapeFirst(ctx context.Context, log io.Reader) (string, error) {
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var line struct{ Msg, Addr, Server string }
		if json.Unmarshal(lines.Bytes(), &line) != nil || line.Msg != "HTTP server listens" || line.Server != "admin" {
			continue
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+line.Addr+"/metrics", nil)
		if err != nil {
			return "", err
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		page, err := io.ReadAll(answer.Body)
		return string(page), err
	}
	return "", errors.New("the process has ended before it listened")
}

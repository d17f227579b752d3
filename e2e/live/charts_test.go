package live

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	clusterslices "github.com/fingerpost/fingerpost/cluster/slices"
	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

const (
	chartTools = "../../tools/chart"
	charts     = "../../charts" // from there
)

// render renders a chart as helm does: the tool that does so has helm in a module of its own.
func render(t *testing.T, chart, name, namespace string, flags ...string) []*unstructured.Unstructured {
	t.Helper()
	args := append([]string{"run", "-C", chartTools, ".", "-name", name, "-namespace", namespace}, flags...)
	command := exec.CommandContext(t.Context(), "go", append(args, charts+"/"+chart)...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	manifests, err := command.Output()
	if err != nil {
		t.Fatalf("render chart %s: %v\n%s", chart, err, stderr.String())
	}
	return objects(t, manifests)
}

func objects(t *testing.T, manifests []byte) (all []*unstructured.Unstructured) {
	t.Helper()
	for document := range bytes.SplitSeq(manifests, []byte("\n---\n")) {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if object.Object != nil {
			all = append(all, object)
		}
	}
	return all
}

func manifest(t *testing.T, objects ...*unstructured.Unstructured) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, o := range objects {
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString("---\n")
		b.Write(text)
	}
	return b.Bytes()
}

// foreign are groups whose CRDs are not ours to install.
var foreign = []string{"monitoring.coreos.com", "cert-manager.io"}

// A real API server takes everything that the charts render, each field of it.
func TestChartsDryRun(t *testing.T) {
	c := clusters[0]
	for _, namespace := range []string{"fingerpost", "mesh", "links", "linkerd", "linkerd-multicluster"} {
		if err := c.Apply(t.Context(), fmt.Appendf(nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", namespace)); err != nil {
			t.Fatal(err)
		}
	}
	renders, err := filepath.Glob(chartTools + "/testdata/*.yaml") // its own test says that they are what is rendered
	if err != nil || len(renders) < 6 {
		t.Fatalf("renders: %v %v", renders, err)
	}
	for _, path := range renders {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			ours := slices.DeleteFunc(objects(t, text), func(o *unstructured.Unstructured) bool { return slices.Contains(foreign, o.GroupVersionKind().Group) })
			if len(ours) < 4 {
				t.Fatalf("%d objects", len(ours))
			}
			file := filepath.Join(t.TempDir(), "manifest.yaml")
			if err := os.WriteFile(file, manifest(t, ours...), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := c.Kubectl(t.Context(), "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(out, "(server dry run)"); n != len(ours) {
				t.Errorf("%d of %d objects were taken:\n%s", n, len(ours), out)
			}
		})
	}
}

// Chart fingerpost takes the Services of an installed Linkerd over, and whoever applies Linkerd's again has them back.
func TestTakeOver(t *testing.T) {
	c := clusters[0]
	const namespace = "take-over"
	// As much of Linkerd as matters: its Pods, and what selects them.
	linkerd := fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: linkerd-destination, namespace: %[1]s}
spec:
  selector: {matchLabels: {linkerd.io/control-plane-component: destination}}
  template:
    metadata: {labels: {linkerd.io/control-plane-component: destination}}
    spec: {terminationGracePeriodSeconds: 0, containers: [{name: destination, image: linkerd/controller, ports: [{name: dest-grpc, containerPort: 8086}]}]}
`, namespace)
	services := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: linkerd-dst, namespace: %[1]s}
spec:
  type: ClusterIP
  selector: {linkerd.io/control-plane-component: destination}
  ports: [{name: grpc, port: 8086, targetPort: 8086}]
---
apiVersion: v1
kind: Service
metadata: {name: linkerd-dst-headless, namespace: %[1]s}
spec:
  clusterIP: None
  selector: {linkerd.io/control-plane-component: destination}
  ports: [{name: grpc, port: 8086, targetPort: 8086}]
`, namespace)
	file := filepath.Join(t.TempDir(), "services.yaml")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(file, []byte(services), 0o600))
	must(c.Apply(t.Context(), []byte(linkerd)))
	_, err := c.Kubectl(t.Context(), "apply", "-f", file)
	must(err)
	// behind waits until both Services have so many endpoints, all of them Pods of a Deployment.
	behind := func(deployment string, replicas int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		must(mesh.Eventually(ctx, func(ctx context.Context) error {
			for _, service := range []string{"linkerd-dst", "linkerd-dst-headless"} {
				out, err := c.Kubectl(ctx, "-n", namespace, "get", "endpointslices", "-l", "kubernetes.io/service-name="+service, "-o",
					`jsonpath={range .items[*]}{.ports[*].port}{range .endpoints[*]} {.targetRef.name}{end}{end}`)
				if err != nil {
					return err
				}
				fields := strings.Fields(out)
				if len(fields) != replicas+1 || fields[0] != "8086" || slices.ContainsFunc(fields[1:], func(pod string) bool { return !strings.HasPrefix(pod, deployment+"-") }) {
					return fmt.Errorf("behind Service %s: %q, want %d Pods of %s", service, out, replicas, deployment)
				}
			}
			return nil
		}))
	}
	behind("linkerd-destination", 1)

	var wanted []*unstructured.Unstructured
	for _, o := range render(t, "fingerpost", "fingerpost", namespace, "-values", charts+"/fingerpost/values-drop-in.yaml", "-set", "{rbac: {create: false}}") {
		if o.GetKind() == "Deployment" { // kubelets that are none mount nothing, and wait for no Secret
			wanted = append([]*unstructured.Unstructured{o}, wanted...)
		} else {
			wanted = append(wanted, o)
		}
	}
	must(c.Apply(t.Context(), manifest(t, wanted...)))
	behind("fingerpost", 2)

	// Each way back, and what takes over again after it.
	for name, back := range map[string][]string{
		"kubectl apply": {"apply", "-f", file},
		"the patch":     {"-n", namespace, "patch", "service", "linkerd-dst", "linkerd-dst-headless", "--type=merge", "-p", `{"spec":{"selector":{"linkerd.io/control-plane-component":"destination"}}}`},
		"server-side":   {"apply", "--server-side", "--force-conflicts", "-f", file},
	} {
		t.Log(name)
		_, err := c.Kubectl(t.Context(), back...)
		must(err)
		behind("linkerd-destination", 1)
		must(c.Apply(t.Context(), manifest(t, wanted...)))
		behind("fingerpost", 2)
	}
}

// A right is one verb on one resource, of one role that a chart renders.
type right struct {
	site           *mesh.Site
	role           *unstructured.Unstructured
	group, verb    string
	resource, kind string // services, links/status; and as metrics know it: services, endpointslices.discovery.k8s.io
}

func (r *right) String() string {
	return fmt.Sprintf("%s %s by %s %s in %s", r.verb, r.kind, r.role.GetKind(), r.role.GetName(), r.site.Name)
}

// rightsOf takes the roles of a render apart.
func rightsOf(t *testing.T, site *mesh.Site, rendered []*unstructured.Unstructured) (rights []right) {
	t.Helper()
	for _, o := range rendered {
		if o.GetKind() != "ClusterRole" && o.GetKind() != "Role" {
			continue
		}
		for _, rule := range rulesOf(t, o) {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					r := right{site: site, role: o, group: rule.APIGroups[0], verb: verb, resource: resource, kind: resource}
					if r.group != "" {
						r.kind += "." + r.group
					}
					rights = append(rights, r)
				}
			}
		}
	}
	return rights
}

func rulesOf(t *testing.T, role *unstructured.Unstructured) []rbacv1.PolicyRule {
	t.Helper()
	var typed rbacv1.ClusterRole
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(role.Object, &typed); err != nil {
		t.Fatal(err)
	}
	return typed.Rules
}

// without is the role without the right.
func (r *right) without(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	var rules []any
	for _, rule := range rulesOf(t, r.role) {
		for _, resource := range rule.Resources {
			one := rule.DeepCopy()
			one.Resources = []string{resource}
			if resource == r.resource && one.APIGroups[0] == r.group {
				one.Verbs = slices.DeleteFunc(one.Verbs, func(v string) bool { return v == r.verb })
			}
			if len(one.Verbs) == 0 {
				continue
			}
			fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(one)
			if err != nil {
				t.Fatal(err)
			}
			rules = append(rules, fields)
		}
	}
	less := r.role.DeepCopy()
	less.Object["rules"] = rules
	return less
}

// logged is what a server has logged so far.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) contains(all ...string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if !slices.ContainsFunc(all, func(want string) bool { return !strings.Contains(line, want) }) {
			return nil
		}
	}
	return fmt.Errorf("no line of the log has %q", all)
}

// charted is a mesh whose server has the arguments and the rights that the charts render, and no others.
type charted struct {
	*world
	west     *mesh.Site
	good     []byte // kubeconfig of west
	args     []string
	rights   []right
	accounts map[*mesh.Site]string // as the API servers call them
}

// newCharted installs both charts, for a mesh in namespace name, the server's with more values.
func newCharted(t *testing.T, name, values string) *charted {
	t.Helper()
	system, linkerd := name+"-system", name+"-linkerd"
	w := newWorld(t, name, 2)
	west := w.Remotes[0]
	c := &charted{world: w, west: west, accounts: map[*mesh.Site]string{
		w.Local: "system:serviceaccount:" + system + ":fingerpost", west: "system:serviceaccount:" + system + ":fingerpost-link",
	}}
	here := render(t, "fingerpost", "fingerpost", system, "-set", fmt.Sprintf("{cluster: {name: east}, links: {namespace: %s}, controllerNamespace: %s%s}", name, linkerd, values))
	there := render(t, "fingerpost-link", "fingerpost-link", system, "-set", fmt.Sprintf("{write: {enabled: true, leaseNamespace: %s}}", linkerd))
	for _, namespace := range []string{system, linkerd} {
		for _, s := range []*mesh.Site{w.Local, west} {
			w.do(s.Apply(t.Context(), fmt.Appendf(nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", namespace)))
		}
	}
	w.do(w.Local.Apply(t.Context(), manifest(t, here...)))
	w.do(west.Apply(t.Context(), manifest(t, there...)))
	c.rights = append(rightsOf(t, w.Local, here), rightsOf(t, west, there)...)
	for _, o := range here {
		if o.GetKind() == "Deployment" {
			containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
			w.do(err)
			c.args, _, err = unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
			w.do(err)
		}
	}
	if len(c.args) < 10 || c.args[0] != "serve" {
		t.Fatalf("the container is told %q", c.args)
	}
	var err error
	w.Local.Identity, err = w.Local.Mint(t.Context(), &controlplane.Identity{Namespace: system, Name: "fingerpost"})
	w.do(err)
	w.within(5*time.Second, "the chart's Secret has a token", func(ctx context.Context) error {
		return mesh.Eventually(ctx, func(ctx context.Context) error {
			token, err := west.Kubectl(ctx, "-n", system, "get", "secret", "fingerpost-link-token", "-o", "jsonpath={.data.token}")
			if err == nil && token == "" {
				err = errors.New("it has none yet")
			}
			if err != nil {
				return err
			}
			decoded, err := base64.StdEncoding.DecodeString(token)
			west.Identity = &controlplane.Identity{Namespace: system, Name: "fingerpost-link", Token: string(decoded)}
			return err
		})
	})
	c.good = west.Kubeconfig(west.Identity, west.Proxy.URL())
	t.Cleanup(func() { // other tests look at all namespaces
		if _, err := w.Local.Kubectl(context.WithoutCancel(t.Context()), "-n", name, "delete", "--ignore-not-found", "link/west"); err != nil {
			t.Error(err)
		}
	})
	return c
}

// run links west anew and lets a server run, as the chart does but for addresses, until check is done.
func (c *charted) run(check func(log *logged) error, env ...string) error {
	if _, err := c.Local.Kubectl(c.t.Context(), "-n", c.Namespace, "delete", "--ignore-not-found", "link/west"); err != nil {
		return err
	}
	if err := c.Link(c.t.Context(), c.west); err != nil {
		return err
	}
	if _, err := c.Local.Kubectl(c.t.Context(), "-n", c.Namespace, "annotate", "link/west", clusterslices.OptIn+"="+clusterslices.Enabled); err != nil {
		return err
	}
	log := &logged{}
	err := c.Serve(c.t.Context(), fingerpost.Options{
		Binary: binary, Dir: c.t.TempDir(), Log: log, Env: env,
		Args: slices.Concat(c.args[1:], []string{"-addr=127.0.0.1:0", "-metrics-addr=127.0.0.1:0", "-debug-addr=127.0.0.1:0", "-log-level=debug"}),
	})
	if err != nil {
		return err
	}
	err = check(log)
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, c.Server.Tail())
	}
	return errors.Join(err, c.Server.Stop())
}

// eventually waits until check succeeds.
func (c *charted) eventually(what string, check func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	if err := mesh.Eventually(ctx, check); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// says waits until a condition of the Link begins so.
func (c *charted) says(condition, want string) error {
	return c.eventually(condition+" is "+want, func(ctx context.Context) error {
		said, err := c.Condition(ctx, c.west, condition)
		if err == nil && !strings.HasPrefix(said, want) {
			err = fmt.Errorf("it is %q", said)
		}
		return err
	})
}

func (c *charted) tells(metrics ...string) error {
	return c.eventually("metrics", func(ctx context.Context) error {
		page, err := c.Server.Metrics(ctx)
		for _, want := range metrics {
			if err == nil && !strings.Contains(page, "\n"+want) {
				err = fmt.Errorf("no metric %s", want)
			}
		}
		return err
	})
}

// logs waits for a line that contains all of these.
func (c *charted) logs(log *logged, all ...string) error {
	return c.eventually("log", func(context.Context) error { return log.contains(all...) })
}

// granted reports what was asked for and refused.
func (c *charted) granted() error {
	page, err := c.Server.Metrics(c.t.Context())
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "fingerpost_api_errors_total") && strings.Contains(line, `reason="Forbidden"`) {
			err = errors.Join(err, errors.New(line))
		}
	}
	return err
}

// flap takes west's credentials away and gives them back, twice: what is said of it comes again.
func (c *charted) flap() error {
	for range 2 {
		if err := errors.Join(c.Credentials(c.t.Context(), c.west, []byte("no kubeconfig")), c.says("CredentialsValid", "False Refused")); err != nil {
			return err
		}
		if err := errors.Join(c.Credentials(c.t.Context(), c.west, c.good), c.says("CredentialsValid", "True")); err != nil {
			return err
		}
	}
	return nil
}

// set gives a right or takes it away, and waits until the API server knows.
func (c *charted) set(r *right, given bool) error {
	role := r.role
	if !given {
		role = r.without(c.t)
	}
	if err := r.site.Apply(c.t.Context(), manifest(c.t, role)); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(r.site.AdminConfig())
	if err != nil {
		return err
	}
	resource, subresource, _ := strings.Cut(r.resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: c.accounts[r.site],
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: r.role.GetNamespace(), Group: r.group, Resource: resource, Subresource: subresource, Verb: r.verb,
		},
	}}
	return c.eventually("the API server knows of the right", func(ctx context.Context) error {
		answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil && answer.Status.Allowed != given {
			err = fmt.Errorf("allowed is %t", answer.Status.Allowed)
		}
		return err
	})
}

// misses waits for what an operator sees where the right is missing.
func (c *charted) misses(r *right, log *logged) error {
	forbidden := []string{
		fmt.Sprintf(`fingerpost_api_errors_total{cluster=%q,reason="Forbidden",resource=%q}`, r.site.Name, r.kind),
		fmt.Sprintf(`fingerpost_watch_open{cluster=%q,resource=%q} 0`, r.site.Name, r.kind),
	}
	writes := slices.Contains([]string{"create", "update", "delete"}, r.verb) || r.verb == "get" || r.kind == "leases.coordination.k8s.io"
	required := slices.Contains([]string{"services", "pods", "endpointslices.discovery.k8s.io"}, r.kind)
	refused := "the API server refuses to list " + r.kind + " (Forbidden)"
	switch {
	case r.kind == "links.multicluster.linkerd.io":
		return errors.Join(c.tells("fingerpost_links_readable 0"), c.logs(log, "Links cannot be read", "Forbidden"))
	case r.kind == "links/status.multicluster.linkerd.io":
		return c.logs(log, "Conditions cannot be written: grant patch on links/status")
	case r.kind == "events.events.k8s.io" && r.verb == "create":
		return c.logs(log, `cannot create resource \"events\"`)
	case r.kind == "events.events.k8s.io":
		return errors.Join(c.flap(), c.logs(log, `cannot patch resource \"events\"`))
	case r.kind == "secrets" && r.role.GetNamespace() == c.Namespace:
		return c.says("CredentialsValid", "False Refused: Secrets in namespace charted cannot be read (Forbidden)")
	case r.kind == "secrets":
		return c.logs(log, "Secrets in the controller namespace cannot be read")
	case writes:
		err := errors.Join(c.tells(fmt.Sprintf(`fingerpost_writer_state{cluster=%q,state="ReadOnly"} 1`, r.site.Name)),
			c.logs(log, "This cluster is read-only for us", fmt.Sprintf("%q", r.site.Name), "grant "+r.verb+" on "+r.kind))
		if r.site == c.west {
			err = errors.Join(err, c.says("Writable", "False ReadOnly"))
		}
		return err
	case required && r.site == c.Local:
		err := errors.Join(c.tells(`fingerpost_cluster_credentials_valid{cluster="east"} 0`), c.logs(log, refused))
		if c.Server.Ready(c.t.Context()) {
			err = errors.Join(err, errors.New("it is ready, and cannot know what there is"))
		}
		return err
	case required:
		return c.says("CredentialsValid", "False Forbidden: Secret charted/cluster-credentials-west: "+refused)
	default: // a feature is missing, nothing else
		return errors.Join(c.tells(forbidden...), c.says("Synced", "True"), c.tells(fmt.Sprintf(`fingerpost_cluster_state{cluster=%q,state="Live"} 1`, r.site.Name)))
	}
}

// With the arguments and the rights of the charts, discovery over a link works; and each right is needed: without it something that an
// operator can see is missing. A right that a chart gains has to be explained here.
func TestChartRights(t *testing.T) {
	c := newCharted(t, "charted", "")
	err := c.run(func(*logged) error {
		s, err := c.Watch(t.Context(), c.Authority(mesh.Federated))
		if err != nil {
			return err
		}
		defer s.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		return errors.Join(
			s.Until(ctx, "both clusters", func(s *mesh.Watch) bool { return s.Len() == 4 }),
			c.says("Accepted", "True"), c.says("CredentialsValid", "True"), c.says("Connected", "True"), c.says("Synced", "True"),
			c.tells(`fingerpost_links_readable 1`, `fingerpost_cluster_state{cluster="east",state="Live"} 1`, `fingerpost_cluster_state{cluster="west",state="Live"} 1`),
			c.says("Writable", "True"),
			c.tells(`fingerpost_lease_holder{cluster="east",lease="fingerpost-write"} 1`, `fingerpost_lease_holder{cluster="west",lease="fingerpost-write"} 1`),
			c.flap(),
			c.eventually("an Event that came again", func(ctx context.Context) error {
				out, err := c.Local.Kubectl(ctx, "-n", c.Namespace, "get", "events.events.k8s.io", "-o", "jsonpath={range .items[*]}{.regarding.kind} {.reason} {.series.count};{end}")
				if err == nil && !strings.Contains(out, "Link Refused 2;") {
					err = fmt.Errorf("%q", out)
				}
				return err
			}),
			c.granted(),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.rights) < 50 {
		t.Fatalf("%d rights were found in the charts", len(c.rights))
	}
	for i := range c.rights {
		r := &c.rights[i]
		began := time.Now()
		var env []string
		if r.verb == "list" { // API servers before 1.34 do not stream lists
			env = []string{"KUBE_FEATURE_WatchListClient=false"}
		}
		err := c.set(r, false)
		if err == nil {
			err = c.run(func(log *logged) error { return c.misses(r, log) }, env...)
		}
		if err := errors.Join(err, c.set(r, true)); err != nil {
			t.Errorf("without the right to %s: %v", r, err)
		}
		t.Logf("without the right to %s: %s", r, time.Since(began).Round(time.Millisecond))
	}
}

// With the rights of the charts the Services that a Link selects are mirrored, and go with the Link.
func TestChartMirrors(t *testing.T) {
	if err := clusters[0].Apply(t.Context(), []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: linkerd-multicluster}\n")); err != nil {
		t.Fatal(err)
	}
	c := newCharted(t, "chart-mirrors", ", mirror: {mode: auto}")
	_, err := c.west.Kubectl(t.Context(), "-n", c.Namespace, "label", "--overwrite", "service/"+mesh.Service, "mirror.linkerd.io/exported=remote-discovery")
	c.do(err)
	t.Cleanup(func() {
		if _, err := c.west.Kubectl(context.WithoutCancel(t.Context()), "-n", c.Namespace, "label", "service/"+mesh.Service, "mirror.linkerd.io/exported-"); err != nil {
			t.Error(err)
		}
	})
	const mirror = mesh.Service + "-west"
	c.do(c.run(func(log *logged) error {
		_, err := c.Local.Kubectl(t.Context(), "-n", c.Namespace, "patch", "link/west", "--type=merge", "-p",
			`{"spec":{"remoteDiscoverySelector":{"matchLabels":{"mirror.linkerd.io/exported":"remote-discovery"}}}}`)
		if err != nil {
			return err
		}
		there := func(want bool) error {
			return c.eventually("a mirror", func(ctx context.Context) error {
				out, err := c.Local.Kubectl(ctx, "-n", c.Namespace, "get", "service", mirror, "--ignore-not-found", "-o", "name")
				if err == nil && (out != "") != want {
					err = fmt.Errorf("there is %q", out)
				}
				return err
			})
		}
		if err := errors.Join(there(true), c.says("Mirroring", "True")); err != nil {
			return err
		}
		if _, err := c.Local.Kubectl(t.Context(), "-n", c.Namespace, "delete", "link/west"); err != nil {
			return err
		}
		if err := errors.Join(there(false), c.granted()); err != nil {
			return err
		}
		if log.contains("A right to write mirrors is missing") == nil {
			return errors.New("a right is missing")
		}
		return nil
	}))
}

package live

import (
	"bytes"
	"context"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/e2e/charts"
	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

const (
	chartTools = "../../tools/chart"
	chartFiles = "../../charts" // from there
)

// foreign are groups whose CRDs are not ours to install. tools/chart holds their objects against them.
var foreign = []string{"monitoring.coreos.com", "cert-manager.io"}

// A real API server takes everything that the charts render, each field of it.
func TestChartsDryRun(t *testing.T) {
	c := claim(t)[0]
	for _, namespace := range []string{"fingerpost", "mesh", "links", "linkerd", "linkerd-multicluster"} {
		if err := c.Apply(t.Context(), fmt.Appendf(nil,
			"apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", namespace)); err != nil {
			t.Fatal(err)
		}
	}
	renders, err := filepath.Glob(chartTools + "/testdata/*.yaml") // its own test checks that they are what is rendered
	if err != nil || len(renders) < 6 {
		t.Fatalf("renders: %v %v", renders, err)
	}
	for _, path := range renders {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			ours, err := charts.Objects(text)
			if err != nil {
				t.Fatal(err)
			}
			ours = slices.DeleteFunc(ours,
				func(o *unstructured.Unstructured) bool { return slices.Contains(foreign, o.GroupVersionKind().Group) })
			for _, o := range ours {
				// Admission wants the account of a Pod, which a dry run does not create; a template has the
				// same fields.
				if o.GetKind() == "Pod" {
					o.Object = map[string]any{
						"apiVersion": "v1", "kind": "PodTemplate",
						"metadata": o.Object["metadata"],
						"template": map[string]any{
							"metadata": map[string]any{"labels": o.Object["metadata"].(map[string]any)["labels"]},
							"spec":     o.Object["spec"],
						},
					}
				}
			}
			if len(ours) < 4 {
				t.Fatalf("%d objects", len(ours))
			}
			file := filepath.Join(t.TempDir(), "manifest.yaml")
			if err := os.WriteFile(file, charts.Manifest(ours...), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := c.Kubectl(t.Context(), "apply", "--server-side", "--dry-run=server",
				"--validate=strict", "-f", file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(out, "(server dry run)"); n != len(ours) {
				t.Errorf("%d of %d objects were taken:\n%s", n, len(ours), out)
			}
		})
	}
}

// As docs/install.md has it: fingerpost is installed beside Linkerd, once more in Linkerd's namespace, takes
// Linkerd's Services over, and again after each way back. They outlive it.
func TestTakeOver(t *testing.T) {
	c := claim(t)[0]
	const namespace = "take-over"
	helm := newHelm(t, c)
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
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: destination, image: linkerd/controller, ports: [{name: dest-grpc, containerPort: 8086}]}]
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
				out, err := c.Kubectl(ctx, "-n", namespace, "get", "endpointslices", "-l",
					"kubernetes.io/service-name="+service, "-o",
					`jsonpath={range .items[*]}{.ports[*].port}{range .endpoints[*]} {.targetRef.name}{end}{end}`)
				if err != nil {
					return err
				}
				fields := strings.Fields(out)
				if len(fields) != replicas+1 || fields[0] != "8086" ||
					slices.ContainsFunc(fields[1:],
						func(pod string) bool { return !strings.HasPrefix(pod, deployment+"-") }) {
					return fmt.Errorf("behind Service %s: %q, want %d Pods of %s", service, out, replicas, deployment)
				}
			}
			return nil
		}))
	}
	behind("linkerd-destination", 1)

	chart := filepath.Join(chartFiles, "fingerpost")
	values := "cluster.name=east,controllerNamespace=" + namespace
	takeOver := func() {
		t.Helper()
		must(helm("upgrade", "fingerpost", chart, "-n", namespace, "-f",
			filepath.Join(chart, "values-drop-in.yaml"), "--set", values,
			"--take-ownership", "--server-side=true", "--force-conflicts"))
		behind("fingerpost", 2)
	}
	must(helm("install", "fingerpost", chart, "-n", namespace+"-beside", "--create-namespace", "--set", values))
	must(helm("install", "fingerpost", chart, "-n", namespace, "-f",
		filepath.Join(chart, "values-drop-in.yaml"), "--set", values,
		"--set", "service.name=fingerpost", "--set", "service.keep=false"))
	behind("linkerd-destination", 1)
	takeOver()

	patch := []string{
		"-n", namespace, "patch", "service", "linkerd-dst", "linkerd-dst-headless", "--type=merge", "-p",
		`{"spec":{"selector":{"linkerd.io/control-plane-component":"destination"}}}`,
	}
	for name, back := range map[string][]string{
		"kubectl apply": {"apply", "-f", file},
		"the patch":     patch,
		"server-side":   {"apply", "--server-side", "--force-conflicts", "-f", file},
	} {
		t.Log(name)
		_, err := c.Kubectl(t.Context(), back...)
		must(err)
		behind("linkerd-destination", 1)
		takeOver()
	}

	_, err = c.Kubectl(t.Context(), patch...)
	must(err)
	must(helm("uninstall", "fingerpost", "-n", namespace))
	must(helm("uninstall", "fingerpost", "-n", namespace+"-beside"))
	behind("linkerd-destination", 1)
}

// Without Linkerd: a namespace that does not exist is named in one sentence, and no release is left behind; in its
// own namespace the chart works. The account of helm test may do what the report takes.
func TestChartWithoutLinkerd(t *testing.T) {
	w := newWorld(t, "helm-test", 1)
	c := w.Local.Cluster
	const namespace = "without-linkerd"
	helm := newHelm(t, c)
	install := func(controllerNamespace string) error {
		return helm("install", "fingerpost", filepath.Join(chartFiles, "fingerpost"), "-n", namespace,
			"--create-namespace", "--set", "controllerNamespace="+controllerNamespace)
	}
	err := install("nowhere")
	if want := "there is no namespace nowhere: create it, or set controllerNamespace to one that exists, such as " +
		namespace; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want an error with %q", err, want)
	}
	if err := install(namespace); err != nil {
		t.Fatal(err)
	}

	set := "{controllerNamespace: " + namespace + "}"
	objects, err := charts.Render(t.Context(), charts.Server, namespace, set, "-hooks")
	if err != nil {
		t.Fatal(err)
	}
	account := &controlplane.Identity{Namespace: namespace, Name: "fingerpost-check"}
	var args []string
	for _, o := range objects {
		if o.GetAnnotations()["helm.sh/hook"] != "test" {
			continue
		}
		if o.GetKind() == "Pod" { // nothing runs it here
			containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "containers")
			args, _, _ = unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
			continue
		}
		if err := c.Apply(t.Context(), charts.Manifest(o)); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range objects { // now that each role has its binding
		if o.GetAnnotations()["helm.sh/hook"] != "test" || o.GetKind() != "ClusterRole" && o.GetKind() != "Role" {
			continue
		}
		rules, err := charts.Rules(o)
		if err == nil {
			err = c.AwaitRules(t.Context(), account, o.GetNamespace(), rules)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if account, err = c.Mint(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, c.Kubeconfig(account, ""), 0o600); err != nil {
		t.Fatal(err)
	}
	if len(args) < 3 || args[0] != "check" {
		t.Fatalf("the container of helm test has args %q", args)
	}
	w.serve()
	report := checked(t, kubeconfig, append(args[1:], "--wait=0s", "--debug-addr="+w.Server.Debug)...)
	if denied := report.lines("forbidden"); len(denied) > 0 {
		t.Errorf("the account of helm test lacks a permission:\n%s", strings.Join(denied, "\n"))
	}
	for _, may := range []string{"list", "create --subresource=portforward", "get --subresource=portforward"} {
		args := append(strings.Fields(may), "pods", "-n", namespace, "--as",
			"system:serviceaccount:"+namespace+":fingerpost-check")
		out, err := c.Kubectl(t.Context(), append([]string{"auth", "can-i"}, args...)...)
		if err != nil {
			t.Errorf("%s: %s %v", may, out, err)
		}
	}
}

// As docs/upgrade.md has it: who switches autoscaling on later keeps the replicas that there are.
func TestChartAutoscaling(t *testing.T) {
	c := claim(t)[0]
	const namespace = "autoscaling"
	if err := c.Apply(t.Context(), []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+namespace+
		"}\n")); err != nil {
		t.Fatal(err)
	}
	helm := newHelm(t, c)
	release := []string{
		"fingerpost", filepath.Join(chartFiles, "fingerpost"), "-n", namespace, "--set",
		"controllerNamespace=" + namespace,
	}
	err := helm(append([]string{"install"}, release...)...)
	if err == nil {
		_, err = c.Kubectl(t.Context(), "-n", namespace, "scale", "deploy/fingerpost", "--replicas=3")
	}
	if err == nil {
		err = helm(append([]string{"upgrade", "--set", "autoscaling.enabled=true"}, release...)...)
	}
	if err != nil {
		t.Fatal(err)
	}
	replicas, err := c.Kubectl(t.Context(), "-n", namespace, "get", "deploy/fingerpost", "-o",
		"jsonpath={.spec.replicas}")
	if err != nil || replicas != "3" {
		t.Errorf("%s replicas, want 3 (%v)", replicas, err)
	}
	if err := helm("uninstall", "fingerpost", "-n", namespace); err != nil {
		t.Error(err)
	}
}

// newHelm returns helm itself, of the version that renders the charts, with all rights in a cluster and
// nothing of the user's own.
func newHelm(t *testing.T, c *controlplane.Cluster) func(args ...string) error {
	t.Helper()
	path, err := exec.CommandContext(t.Context(), "go", "tool", "-C", chartTools, "-n", "helm").Output()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	env := append(os.Environ(), "KUBECONFIG="+admin(t, c), "HOME="+home, "HELM_CACHE_HOME="+home,
		"HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	return func(args ...string) error {
		command := exec.CommandContext(t.Context(), strings.TrimSpace(string(path)), args...)
		command.Env = env
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", command, err, out)
		}
		return nil
	}
}

// A right is one verb on one resource, of one role that a chart renders.
type right struct {
	site           *mesh.Site
	role           *unstructured.Unstructured
	group, verb    string
	resource, kind string // services, links/status; and as metrics know it: services, endpointslices.discovery.k8s.io
	name           string // of the only object that it is about; empty for all
}

func (r *right) String() string {
	return fmt.Sprintf("%s %s by %s %s in %s", r.verb, r.kind, r.role.GetKind(), r.role.GetName(), r.site.Name)
}

// rightsOf takes the roles of a chart apart.
func rightsOf(t *testing.T, site *mesh.Site) (rights []right) {
	t.Helper()
	for _, o := range site.Installation.Objects {
		if o.GetKind() != "ClusterRole" && o.GetKind() != "Role" || charts.Renews(o) {
			continue
		}
		rules, err := charts.Rules(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, rule := range rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					r := right{
						site:     site,
						role:     o,
						group:    rule.APIGroups[0],
						verb:     verb,
						resource: resource,
						kind:     resource,
					}
					if r.group != "" {
						r.kind += "." + r.group
					}
					if len(rule.ResourceNames) > 0 {
						r.name = rule.ResourceNames[0]
					}
					rights = append(rights, r)
				}
			}
		}
	}
	return rights
}

// without is the role without the right.
func (r *right) without(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	all, err := charts.Rules(r.role)
	if err != nil {
		t.Fatal(err)
	}
	var rules []any
	for _, rule := range all {
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

// charted is a mesh with a Link that is made anew for every server, and the rights that the server has.
type charted struct {
	*world
	west   *mesh.Site
	good   []byte // kubeconfig of west
	token  string // file with the token by which replicas know each other
	rights []right
}

// lease returns the name of the installation's Lease.
func (c *charted) lease() string {
	c.t.Helper()
	client, err := kubernetes.NewForConfig(c.Local.AdminConfig())
	c.do(err)
	namespace, err := client.CoreV1().Namespaces().Get(c.t.Context(), c.Namespace+"-linkerd", metav1.GetOptions{})
	c.do(err)
	return apply.LeaseName(string(namespace.UID))
}

// newCharted installs both charts, with more values, for a mesh in namespace name. Its Leases are its own.
func newCharted(t *testing.T, name, server, link string) *charted {
	t.Helper()
	w := newShops(t, name, 2)
	w.Slices = true
	w.do(w.Install(t.Context(), name+"-linkerd", server, link))
	c := &charted{world: w, west: w.Remotes[0]}
	for _, s := range w.Sites() {
		c.rights = append(c.rights, rightsOf(t, s)...)
	}
	c.good = c.west.Kubeconfig(c.west.Identity, c.west.Proxy.URL())
	c.token = filepath.Join(t.TempDir(), "token")
	w.do(os.WriteFile(c.token, []byte(w.peerToken(w.Local.Identity)), 0o600))
	t.Cleanup(func() { // other tests look at all namespaces
		if err := w.Local.Delete(context.WithoutCancel(t.Context()), name, linkResource+"/west"); err != nil {
			t.Error(err)
		}
	})
	return c
}

// run links west anew and lets a server run, as the chart does, until check is done.
func (c *charted) run(check func(log *logged) error, env ...string) error {
	if err := c.Local.Delete(c.t.Context(), c.Namespace, linkResource+"/west"); err != nil {
		return err
	}
	if err := c.Link(c.t.Context(), c.west); err != nil {
		return err
	}
	log := &logged{}
	err := c.Serve(c.t.Context(), fingerpost.Options{
		Binary: binary, Dir: c.t.TempDir(), Log: log, Env: env,
		Args: []string{"-log-level=debug", "-peer-addr=127.0.0.1:0", "-peer-token-file=" + c.token},
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

// condition waits until a condition of the Link begins so.
func (c *charted) condition(condition, want string) error {
	return c.eventually(condition+" is "+want, func(ctx context.Context) error {
		got, err := c.Condition(ctx, c.west, condition)
		if err == nil && !strings.HasPrefix(got, want) {
			err = fmt.Errorf("it is %q", got)
		}
		return err
	})
}

func (c *charted) scrape(metrics ...string) error {
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

// counted waits until a counter is above 0.
func (c *charted) counted(metric string) error {
	return c.eventually("metrics", func(ctx context.Context) error {
		page, err := c.Server.Metrics(ctx)
		if err == nil && (!strings.Contains(page, "\n"+metric) || strings.Contains(page, "\n"+metric+"0\n")) {
			err = fmt.Errorf("nothing is counted in %s", metric)
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
		refused := strings.HasPrefix(line, "fingerpost_api_errors_total") && strings.Contains(line, `reason="Forbidden"`)
		if refused && !strings.HasSuffix(line, " 0\n") {
			err = errors.Join(err, errors.New(line))
		}
	}
	return err
}

// flap takes west's credentials away and gives them back, twice: what is reported of it comes again.
func (c *charted) flap() error {
	for range 2 {
		if err := errors.Join(c.Credentials(c.t.Context(), c.west, []byte("no kubeconfig")),
			c.condition("CredentialsValid", "False Refused")); err != nil {
			return err
		}
		if err := errors.Join(c.Credentials(c.t.Context(), c.west, c.good),
			c.condition("CredentialsValid", "True")); err != nil {
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
	if err := r.site.Apply(c.t.Context(), charts.Manifest(role)); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(r.site.AdminConfig())
	if err != nil {
		return err
	}
	resource, subresource, _ := strings.Cut(r.resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + r.site.Identity.Namespace + ":" + r.site.Identity.Name,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: r.role.GetNamespace(), Group: r.group, Resource: resource, Subresource: subresource,
			Verb: r.verb, Name: r.name,
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
	forbidden := fmt.Sprintf(`fingerpost_api_errors_total{reason="Forbidden",resource=%q,target_cluster=%q} `,
		r.kind, r.site.Name)
	notOpen := fmt.Sprintf(`fingerpost_watch_open{resource=%q,target_cluster=%q} 0`, r.kind, r.site.Name)
	writes := slices.Contains([]string{"create", "update", "delete"}, r.verb) || r.verb == "get" ||
		r.kind == "leases.coordination.k8s.io"
	required := slices.Contains([]string{"services", "pods", "endpointslices.discovery.k8s.io"}, r.kind)
	refused := "the API server refuses to list " + r.kind + " (Forbidden)"
	switch {
	case r.kind == "links.multicluster.linkerd.io":
		return errors.Join(c.scrape("fingerpost_links_readable 0"), c.logs(log, "Links cannot be read", "Forbidden"))
	case r.kind == "tokenreviews.authentication.k8s.io":
		return c.logs(log, "Other replicas get nothing from this one", "grant create on "+r.kind)
	case r.kind == "links/status.multicluster.linkerd.io":
		return c.logs(log, "cannot be written: permissions are missing: grant patch on links/status")
	case r.kind == "events.events.k8s.io":
		return c.logs(log, `cannot create resource \"events\"`)
	case r.kind == "secrets" && r.role.GetNamespace() == c.Namespace:
		return c.condition("CredentialsValid",
			"False Refused: Secrets in namespace "+c.Namespace+" cannot be read (Forbidden)")
	case r.kind == "secrets":
		return c.logs(log, "Secrets in the controller namespace cannot be read")
	case r.kind == "namespaces" && r.verb == "get" && r.role.GetNamespace() != "":
		return c.logs(log, "Nothing is written into any cluster until the UID of the control plane's namespace is known",
			"grant get on namespaces")
	case r.kind == "namespaces" && r.verb == "get":
		return c.logs(log, "identity of the cluster is not known", fmt.Sprintf("%q", r.site.Name),
			"grant get on namespaces of the name kube-system")
	case r.kind == "namespaces" && r.name != "":
		return c.logs(log, "The cluster cannot drain itself", fmt.Sprintf("%q", r.site.Name),
			"grant list and watch on namespaces of the name "+r.name)
	case r.kind == "nodes" && r.site == c.west:
		return c.logs(log, "The region of the cluster is not known", fmt.Sprintf("%q", r.site.Name),
			"grant list on nodes")
	case r.kind == "configmaps":
		return c.logs(log, "identity of the cluster is not known", fmt.Sprintf("%q", r.site.Name),
			"grant get on configmaps of the name linkerd-config")
	case writes:
		err := errors.Join(
			c.scrape(fmt.Sprintf(`fingerpost_writer_state{state="ReadOnly",target_cluster=%q} 1`, r.site.Name)),
			c.logs(log, "Fingerpost may not write into this cluster", fmt.Sprintf("%q", r.site.Name),
				"grant "+r.verb+" on "+r.kind))
		if r.site == c.west {
			err = errors.Join(err, c.condition("Writable", "False ReadOnly"))
		}
		return err
	case required && r.site == c.Local:
		err := errors.Join(c.scrape(`fingerpost_cluster_credentials_valid{target_cluster="east"} 0`), c.logs(log, refused))
		if c.Server.Ready(c.t.Context()) {
			err = errors.Join(err, errors.New("it is ready, and cannot know what there is"))
		}
		return err
	case required:
		return c.condition("CredentialsValid",
			"False Forbidden: Secret "+c.Namespace+"/cluster-credentials-west: "+refused)
	default: // a feature is missing, nothing else
		return errors.Join(c.scrape(notOpen), c.counted(forbidden), c.condition("Synced", "True"),
			c.scrape(fmt.Sprintf(`fingerpost_cluster_state{state="Live",target_cluster=%q} 1`, r.site.Name)))
	}
}

// With the arguments and the rights of the charts, discovery over a link works; and each right is needed:
// without it something that an operator can see is missing. A right that a chart gains has to be explained
// here. Every other right is taken away from a server of its own, in a pair of clusters of its own.
func TestChartRights(t *testing.T) {
	const servers = 2
	for n := range servers {
		name := fmt.Sprintf("charted-%d", n)
		t.Run(name, func(t *testing.T) {
			c := newCharted(t, name, "", "")
			c.do(c.west.Apply(t.Context(), fmt.Appendf(nil, linkerdConfig, name+"-linkerd", "cluster.local")))
			if len(c.rights) < 50 {
				t.Fatalf("%d rights were found in the charts", len(c.rights))
			}
			if n == 0 {
				c.do(c.works())
			}
			for i := n; i < len(c.rights); i += servers {
				c.without(&c.rights[i], c.misses)
			}
		})
	}
}

// works checks that everything goes on with all rights.
func (c *charted) works() error {
	return c.run(func(*logged) error {
		s, err := c.Watch(c.t.Context(), c.Authority(mesh.Federated))
		if err != nil {
			return err
		}
		defer s.Close()
		ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
		defer cancel()
		return errors.Join(
			s.Until(ctx, "both clusters", func(s *mesh.Watch) bool { return s.Len() == 4 }),
			c.condition("Accepted", "True"), c.condition("CredentialsValid", "True"), c.condition("Connected", "True"),
			c.condition("Synced", "True"),
			c.scrape(`fingerpost_links_readable 1`, `fingerpost_cluster_state{state="Live",target_cluster="east"} 1`,
				`fingerpost_cluster_state{state="Live",target_cluster="west"} 1`),
			c.condition("Writable", "True"),
			c.scrape(`fingerpost_lease_holder{lease="`+c.lease()+`",target_cluster="east"} 1`,
				`fingerpost_lease_holder{lease="`+c.lease()+`",target_cluster="west"} 1`),
			c.flap(),
			c.eventually("one Event of what happens twice", func(ctx context.Context) error {
				out, err := c.Local.Print(ctx, c.Namespace, "events.events.k8s.io", "",
					"{range .items[*]}{.regarding.kind} {.reason}{.series.count};{end}")
				if err == nil && strings.Count(out, "Link Refused") != 1 || !strings.Contains(out, "Link Refused;") {
					err = fmt.Errorf("%q", out)
				}
				return err
			}),
			c.granted(),
		)
	})
}

// without takes a right away and lets a server run until what an operator sees of that is seen.
func (c *charted) without(r *right, seen func(*right, *logged) error) {
	c.t.Helper()
	began := time.Now()
	var env []string
	if r.verb == "list" { // API servers before 1.34 do not stream lists
		env = []string{"KUBE_FEATURE_WatchListClient=false"}
	}
	err := c.set(r, false)
	if err == nil {
		err = c.run(func(log *logged) error { return seen(r, log) }, env...)
	}
	if err := errors.Join(err, c.set(r, true)); err != nil {
		c.t.Errorf("without the right to %s: %v", r, err)
	}
	c.t.Logf("without the right to %s: %s", r, time.Since(began).Round(time.Millisecond))
}

// Package tenant tests what a user who may edit one namespace can do to a server on a real control plane. An honest
// client asks beside each attack. Memory is bounded; times are logged, and have deadlines only.
package tenant

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/hostile/honest"
	"github.com/fingerpost/fingerpost/e2e/internal/proc"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

var full = flag.Bool("full", false, "attack with as much as an attacker would: minutes, and 2 GiB in etcd")

var binary string // the server's

func TestMain(m *testing.M) {
	proc.ExitUnlessLinux()
	fingerpost.TestMain(context.Background(), false, func(_ context.Context, built string) (int, error) {
		binary = built
		return m.Run(), nil
	})
}

const (
	namespace = "tenant" // which the attacker may edit

	// within is how long what should take seconds may take on a busy machine.
	within = 10 * time.Minute
)

// world is a cluster with the chart of the server, an honest client of a Service in it, and the attacker's client.
type world struct {
	*mesh.Mesh
	t      *testing.T
	want   []netip.AddrPort // what the honest client is to hold
	honest *honest.Client
	tenant kubernetes.Interface
}

// newWorld starts a cluster. The server has the rights and the arguments of the chart, with which it mirrors Services,
// and takes Leases in the attacker's namespace for claims: no more of them can be read.
func newWorld(t *testing.T) *world {
	t.Helper()
	c := controlplane.ForTest(t, controlplane.Options{Name: "home"})
	w := &world{t: t, tenant: newTenant(t, c)}
	must(t, c.Apply(t.Context(), []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: linkerd-multicluster}\n")))
	must(t, c.Apply(t.Context(), mesh.LinkerdCRDs))
	var err error
	w.Mesh, err = mesh.New(t.Context(), "shop", 2, c)
	must(t, err)
	must(t, w.Install(t.Context(), mesh.Linkerd,
		"mirror: {mode: \"on\"}\nwrite: {installationNamespaces: ["+namespace+"]}", ""))

	found, err := c.WaitEndpoints(t.Context(), w.Namespace, mesh.Service, 2)
	must(t, err)
	for _, es := range found {
		for _, e := range es.Endpoints {
			w.want = append(w.want, netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), mesh.Port))
		}
	}
	return w
}

// newTenant returns the client of a user with the role edit in one namespace, who may also write Endpoints and
// EndpointSlices there, as in clusters that are older than Kubernetes 1.22.
func newTenant(t *testing.T, c *controlplane.Cluster) kubernetes.Interface {
	t.Helper()
	ctx := t.Context()
	must(t, c.Apply(ctx, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+namespace+"}\n")))
	admin, err := kubernetes.NewForConfig(c.AdminConfig())
	must(t, err)
	account := &controlplane.Identity{Namespace: namespace, Name: "dev"}
	_, err = admin.CoreV1().ServiceAccounts(namespace).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account.Name}}, metav1.CreateOptions{})
	must(t, err)

	write := []string{"create", "update", "delete"}
	older := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"endpoints"}, Verbs: write},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: write},
	}
	_, err = admin.RbacV1().ClusterRoles().Create(ctx,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "older"}, Rules: older}, metav1.CreateOptions{})
	must(t, err)
	// Nothing aggregates roles here, and the role edit is made of these two.
	for _, role := range []string{"system:aggregate-to-edit", "system:aggregate-to-view", "older"} {
		_, err := admin.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{
				Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name,
			}},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	edit := rbacv1.PolicyRule{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create"},
	}
	must(t, c.AwaitRules(ctx, account, namespace, append(older, edit)))

	id, err := c.Mint(ctx, account)
	must(t, err)
	config := c.Config(id, "")
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{} // as an attacker has it
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	return client
}

// serve starts the server and the honest client, and waits until the server writes.
func (w *world) serve() {
	w.t.Helper()
	must(w.t, w.Serve(w.t.Context(), fingerpost.Options{
		Binary: binary, Dir: w.t.TempDir(), Args: []string{"-enable-pprof"},
		Env: []string{"GOMEMLIMIT=460MiB"}, // as the chart sets it
	}))
	started := w.Server
	w.t.Cleanup(func() {
		if err := started.Stop(); err != nil && w.Server == started {
			w.t.Error(err)
		}
		if w.t.Failed() {
			w.t.Logf("the end of the server's log:\n%s", started.Tail())
		}
	})
	w.eventually("the server is ready and writes", func(ctx context.Context) error {
		if !w.Server.Ready(ctx) {
			return errors.New("it is not ready")
		}
		page, err := w.Server.Metrics(ctx)
		if err == nil && !holds.MatchString(page) {
			err = errors.New("it does not write")
		}
		return err
	})
	var err error
	w.honest, err = honest.Start(w.t.Context(), w.Server.Addr, w.Authority(mesh.Federated), w.want)
	must(w.t, err)
	w.answered()
	w.t.Logf("quiet: an honest client: %s", w.report())
}

// kill ends the server as the kernel does when it lacks memory, and the honest client before.
func (w *world) kill() {
	w.t.Helper()
	w.honest.Stop()
	must(w.t, syscall.Kill(w.Server.PID(), syscall.SIGKILL))
	<-w.Server.Exited()
}

// answered waits until the honest client was answered some times more.
func (w *world) answered() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), within)
	defer cancel()
	must(w.t, w.honest.Answered(ctx, 20))
}

// report returns what the honest client has seen since the last time. What was wrong fails the test.
func (w *world) report() honest.Report {
	w.t.Helper()
	report := w.honest.Report()
	if report.Err != nil {
		w.t.Errorf("an honest client: %v", report.Err)
	}
	return report
}

// heap returns how much the server has in use after a collection, in KiB.
func (w *world) heap() int {
	w.t.Helper()
	f, err := w.Server.Footprint(w.t.Context())
	must(w.t, err)
	return f.Heap >> 10
}

// bounded does what is hostile, which makes the server read so many bytes, and fails the test if its live heap has
// grown by more than so many KiB then.
func (w *world) bounded(what string, read, may int, hostile func()) {
	w.t.Helper()
	pid := w.Server.PID()
	w.report()
	heap := w.heap()
	resident, err := proc.Resident(pid)
	must(w.t, err)
	must(w.t, proc.ResetPeak(pid))
	before, err := proc.BytesRead(pid)
	must(w.t, err)

	hostile()
	w.eventually("the server has read "+what, func(context.Context) error {
		now, err := proc.BytesRead(pid)
		if err == nil && now < before+read {
			err = fmt.Errorf("it has read %d MiB of %d MiB", (now-before)>>20, read>>20)
		}
		return err
	})
	w.answered()
	after := w.heap()
	now, err := proc.Resident(pid)
	peak, err2 := proc.Peak(pid)
	must(w.t, errors.Join(err, err2))
	w.t.Logf("%s: live heap %d KiB before and %d KiB after: + %d KiB (may be: %d); resident memory %d MiB before, "+
		"%d MiB after, at most %d MiB meanwhile; an honest client: %s",
		what, heap, after, after-heap, may, resident>>20, now>>20, peak>>20, w.report())
	if after-heap > may {
		w.t.Errorf("the live heap has grown by %d KiB, which is more than %d KiB", after-heap, may)
	}
}

// create creates an object, and tries again what the API server refuses while it is busy.
func create[T any](w *world, object T, by func(context.Context, T, metav1.CreateOptions) (T, error)) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), within)
	defer cancel()
	must(w.t, mesh.Eventually(ctx, func(ctx context.Context) error {
		_, err := by(ctx, object, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}))
}

// eventually waits until check succeeds, and logs how long that took.
func (w *world) eventually(what string, check func(ctx context.Context) error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), within)
	defer cancel()
	began := time.Now()
	if err := mesh.Eventually(ctx, check); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
	w.t.Logf("%s, after %s", what, time.Since(began).Round(time.Millisecond))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

package object_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/apply/object"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mark, hashOf, versionOf = "example.com/copy", "example.com/applied", "example.com/version"

var owner = &object.Owner{Manager: "us", Annotation: hashOf, Unsigned: []string{versionOf}, Mark: mark}

var errTaken = errors.New("it is another's")

type serviceWriter = object.Writer[*corev1.Service, *applycorev1.ServiceApplyConfiguration]

// copies is a Writer of Services in an API server, and what it has sent.
type copies struct {
	*serviceWriter
	server *apitest.Server
	core   kubernetes.Interface
	wrote  []string
}

func newCopies(t *testing.T) *copies {
	t.Helper()
	network := apitest.NewNetwork()
	t.Cleanup(network.Close)
	c := &copies{server: network.Server("local")}
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(c.server.Kubeconfig(c.server.Token())))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := api.NewConnection(config, network.Dial)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if c.core, err = kubernetes.NewForConfigAndClient(conn.Config, conn.HTTPClient); err != nil {
		t.Fatal(err)
	}
	c.serviceWriter = &serviceWriter{
		Owner: owner, Resource: corev1.Resource("services"),
		Permissions: apply.NewPermissions(logr.Discard(), c.core),
		In: func(namespace string) object.Client[*corev1.Service, *applycorev1.ServiceApplyConfiguration] {
			return c.core.CoreV1().Services(namespace)
		},
		Wrote: func(_, verb string, err error) {
			c.wrote = append(c.wrote, strings.TrimSpace(verb+" "+string(apierrors.ReasonForError(err))))
		},
	}
	return c
}

// wanted returns a copy with a label.
func wanted(value string) *corev1.Service {
	labels := map[string]string{mark: "true", "copied": value}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", Labels: labels},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
}

// write makes the Service that exists the wanted one, as a Reconcile does.
func (c *copies) write(t *testing.T, want *corev1.Service) error {
	t.Helper()
	hash := owner.Sign(want, want.Spec.Ports)
	is, err := c.core.CoreV1().Services("shop").Get(t.Context(), "web", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return c.Create(t.Context(), want, func(*corev1.Service) error { return errTaken })
	case err != nil:
		return err
	case is.Labels[mark] == "":
		return errTaken
	case owner.IsApplied(is, hash, object.MarkFields(want)):
		return nil
	}
	return c.Apply(t.Context(), is, false, func(version string) *applycorev1.ServiceApplyConfiguration {
		return applycorev1.Service("web", "shop").WithUID(is.UID).WithResourceVersion(version).
			WithLabels(want.Labels).WithAnnotations(want.Annotations)
	})
}

// An object is created, its own fields follow, what others add stays, what others take is taken back, and what is as it
// was applied is not written.
func TestOwnFields(t *testing.T) {
	c := newCopies(t)
	write := func(value string, want ...string) {
		t.Helper()
		c.wrote = nil
		if err := c.write(t, wanted(value)); err != nil || !slices.Equal(c.wrote, want) {
			t.Errorf("%s: %v, %q, want %q", value, err, c.wrote, want)
		}
	}
	update := func(change func(map[string]string)) {
		t.Helper()
		is, err := c.core.CoreV1().Services("shop").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change(is.Labels)
		_, err = c.core.CoreV1().Services("shop").Update(t.Context(), is, metav1.UpdateOptions{FieldManager: "other"})
		if err != nil {
			t.Fatal(err)
		}
	}
	write("a", "create")
	write("a")
	write("b", "patch", "patch") // what was created is taken over
	write("b")
	write("c", "patch")
	update(func(labels map[string]string) { labels["theirs"] = "here" })
	write("c")
	update(func(labels map[string]string) { labels["copied"] = "theirs" })
	write("c", "patch")
	labels := c.server.Get("services", "shop", "web").GetLabels()
	if labels["theirs"] != "here" || labels["copied"] != "c" {
		t.Errorf("labels %v", labels)
	}
	next := wanted("c")
	next.Annotations = map[string]string{versionOf: "7"}
	c.wrote = nil
	if err := c.write(t, next); err != nil || len(c.wrote) != 1 { // the hash is the same, but a field is not ours yet
		t.Errorf("%v, %q", err, c.wrote)
	}
}

// What is another's is neither changed nor deleted, a stale deletion is refused, and a refusal names its reason.
func TestRefusals(t *testing.T) {
	c := newCopies(t)
	c.server.ApplyYAML("{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}}")
	err := c.Create(t.Context(), wanted("a"), func(found *corev1.Service) error {
		if found.Labels[mark] == "" {
			return errTaken
		}
		return nil
	})
	if !errors.Is(err, errTaken) {
		t.Errorf("a name that is taken: %v", err)
	}
	stale := wanted("a")
	stale.UID, stale.ResourceVersion = "another", "1"
	err = c.Delete(t.Context(), stale)
	if !apierrors.IsConflict(err) || object.IsRefusal(err) || !object.IsResponse(err) {
		t.Errorf("a stale deletion: %v", err)
	}
	stale.Name = "gone"
	if err := c.Delete(t.Context(), stale); err != nil {
		t.Errorf("one that is gone: %v", err)
	}
	c.server.Delete("Service", "shop", "web")
	c.server.Reject("create", "services", "shop", "exceeded quota")
	if err := c.write(t, wanted("a")); !apierrors.IsForbidden(err) || !object.IsRefusal(err) {
		t.Errorf("by a quota: %v", err)
	}
	c.server.Reject("create", "services", "shop", "")
	c.server.Deny("create", "services", true)
	sent := c.server.Requests("create", "services")
	for range 3 {
		err := c.write(t, wanted("a"))
		if !apply.IsMissingPermissions(err) || !object.IsRefusal(err) || !strings.Contains(fmt.Sprint(err), "shop") {
			t.Errorf("without permission: %v", err)
		}
	}
	if n := c.server.Requests("create", "services") - sent; n != 0 {
		t.Errorf("%d requests without permission", n)
	}
}

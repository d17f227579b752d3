package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/hostile/fakeapi"
)

// A cluster performs what the script does to one.
type cluster interface {
	put(ctx context.Context, o fakeapi.Object) error // create it, or replace it
	drop(ctx context.Context, o fakeapi.Object) error
	fault(verb verb, n int) error
	// kubeconfig is how replicas reach it. It changes with rotate, which returns what revokes the token before.
	kubeconfig() []byte
	rotate(ctx context.Context) (revoke func(context.Context) error, err error)
	bogus() []byte // a kubeconfig with a token that is not taken
}

// lightCluster is one that this process plays.
type lightCluster struct {
	*fakeapi.Cluster
	token  string
	number int
}

func (l *lightCluster) put(_ context.Context, o fakeapi.Object) error {
	l.Apply(o)
	return nil
}

func (l *lightCluster) drop(_ context.Context, o fakeapi.Object) error {
	l.Delete(o)
	return nil
}

func (l *lightCluster) fault(v verb, n int) error {
	switch v {
	case cut:
		l.Misbehave([]fakeapi.Fault{
			fakeapi.Silence, fakeapi.Abort, fakeapi.Stall,
			fakeapi.Error(503, metav1.StatusReasonServiceUnavailable),
		}[n%4])
	case slow:
		l.Misbehave(fakeapi.Slow(time.Duration(200+n%1300) * time.Millisecond))
	case hangUp:
		l.HangUp()
	default:
		l.Misbehave(nil)
	}
	return nil
}

func (l *lightCluster) kubeconfig() []byte { return l.Kubeconfig(l.token) }

func (l *lightCluster) bogus() []byte {
	return l.Kubeconfig(fmt.Sprintf("bogus-%s-%d", l.Name, l.number))
}

// A token is about as long as one of Kubernetes.
func (l *lightCluster) rotate(context.Context) (func(context.Context) error, error) {
	old := l.token
	l.number++
	l.token = fmt.Sprintf("token-%s-%01000d", l.Name, l.number)
	l.Grant(l.token, true)
	return func(context.Context) error {
		l.Revoke(old)
		l.HangUp()
		return nil
	}, nil
}

// realCluster is a control plane of its own, behind a network that may fail.
type realCluster struct {
	*controlplane.Cluster
	client   *kubernetes.Clientset
	way      *controlplane.Proxy
	identity *controlplane.Identity
}

func newReal(ctx context.Context, c *controlplane.Cluster) (*realCluster, error) {
	config := c.AdminConfig()
	config.QPS, config.Burst = -1, 0
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	way, err := c.NewProxy()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{namespace, fakeapi.LinkNamespace, linkerd} {
		meta := metav1.ObjectMeta{Name: name}
		if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: meta},
			metav1.CreateOptions{}); err != nil {
			return nil, err
		}
		meta = metav1.ObjectMeta{Name: "default", Namespace: name}
		if _, err := client.CoreV1().ServiceAccounts(name).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta},
			metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
	}
	return &realCluster{Cluster: c, client: client, way: way, identity: c.Admin()}, nil
}

// putOr creates what exists, or else replaces it.
func putOr[T fakeapi.Object](ctx context.Context, in interface {
	Create(ctx context.Context, o T, options metav1.CreateOptions) (T, error)
	Update(ctx context.Context, o T, options metav1.UpdateOptions) (T, error)
}, o T,
) error {
	_, err := in.Update(ctx, o, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = in.Create(ctx, o, metav1.CreateOptions{})
	}
	return err
}

func (r *realCluster) put(ctx context.Context, o fakeapi.Object) error {
	switch o := o.(type) {
	case *corev1.Service:
		old, err := r.client.CoreV1().Services(o.Namespace).Get(ctx, o.Name, metav1.GetOptions{})
		if err == nil { // most of its spec cannot be changed, and all that changes here are annotations
			old.Annotations = o.Annotations
			_, err = r.client.CoreV1().Services(o.Namespace).Update(ctx, old, metav1.UpdateOptions{})
		} else if apierrors.IsNotFound(err) {
			_, err = r.client.CoreV1().Services(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
		}
		return err
	case *corev1.Secret:
		return putOr(ctx, r.client.CoreV1().Secrets(o.Namespace), o)
	case *corev1.Pod:
		_, err := r.client.CoreV1().Pods(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
		return err
	case *discoveryv1.EndpointSlice:
		return putOr(ctx, r.client.DiscoveryV1().EndpointSlices(o.Namespace), o)
	default:
		return fmt.Errorf("no way to create a %T", o)
	}
}

func (r *realCluster) drop(ctx context.Context, o fakeapi.Object) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	switch o := o.(type) {
	case *corev1.Service:
		return r.client.CoreV1().Services(o.Namespace).Delete(ctx, o.Name, now)
	case *corev1.Secret:
		return r.client.CoreV1().Secrets(o.Namespace).Delete(ctx, o.Name, now)
	case *corev1.Pod:
		return r.client.CoreV1().Pods(o.Namespace).Delete(ctx, o.Name, now)
	case *discoveryv1.EndpointSlice:
		return r.client.DiscoveryV1().EndpointSlices(o.Namespace).Delete(ctx, o.Name, now)
	default:
		return fmt.Errorf("no way to delete a %T", o)
	}
}

func (r *realCluster) fault(v verb, n int) error {
	switch v {
	case cut:
		if n%2 == 0 {
			return r.way.Silence()
		}
		r.way.Refuse()
		return nil
	case slow:
		return r.way.Delay(time.Duration(50+n%150) * time.Millisecond) // each way, each packet
	case hangUp:
		r.way.CutConnections()
		return nil
	default:
		return r.way.Pass()
	}
}

func (r *realCluster) kubeconfig() []byte { return r.Kubeconfig(r.identity, r.way.URL()) }

func (r *realCluster) bogus() []byte {
	id := *r.identity
	id.Token = "bogus"
	return r.Kubeconfig(&id, r.way.URL())
}

func (r *realCluster) rotate(ctx context.Context) (func(context.Context) error, error) {
	old := r.identity
	next, err := r.Mint(ctx, old)
	if err != nil {
		return nil, err
	}
	r.identity = next
	return func(ctx context.Context) error { return r.Revoke(ctx, old) }, nil
}

// A writer writes the members of one cluster as the script has them.
type writer struct {
	cluster
	pods map[int]map[int]bool // that exist, by app and number
	have map[int]bool         // the Service exists
}

// write puts a member into its cluster: new Pods, then the EndpointSlice, and then Pods that are gone, as in
// Kubernetes.
func (w *writer) write(ctx context.Context, s *site, app int) error {
	m := s.members[app]
	slice := sliceOf(s, app, m)
	wanted := map[int]bool{}
	var errs []error
	do := func(err error) { errs = append(errs, err) }
	if m.exists && !w.have[app] {
		do(w.put(ctx, serviceOf(appName(app), nil)))
	}
	if w.pods[app] == nil {
		w.pods[app] = map[int]bool{}
	}
	for _, e := range m.endpoints {
		wanted[e.number] = true
		if !w.pods[app][e.number] {
			do(w.put(ctx, podOf(app, e.number)))
			w.pods[app][e.number] = true
		}
	}
	switch {
	case m.exists:
		do(w.put(ctx, slice))
	case w.have[app]:
		do(w.drop(ctx, serviceOf(appName(app), nil)))
		do(w.drop(ctx, slice))
	}
	w.have[app] = m.exists
	for number := range w.pods[app] {
		if !wanted[number] {
			do(w.drop(ctx, podOf(app, number)))
			delete(w.pods[app], number)
		}
	}
	return errors.Join(errs...)
}

func serviceOf(name string, annotations map[string]string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Annotations: annotations},
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone,
			Ports:     []corev1.ServicePort{{Name: "http", Port: fakeapi.Port, Protocol: corev1.ProtocolTCP}},
		},
	}
}

func podName(app, number int) string { return fmt.Sprintf("%s-%d", appName(app), number) }

func podOf(app, number int) *corev1.Pod {
	listen := func(name string, port int) corev1.EnvVar {
		return corev1.EnvVar{Name: "LINKERD2_PROXY_" + name + "_LISTEN_ADDR", Value: fmt.Sprintf("[::]:%d", port)}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: podName(app, number), Namespace: namespace,
			Labels: map[string]string{"app": appName(app), "linkerd.io/control-plane-ns": linkerd},
		},
		Spec: corev1.PodSpec{
			NodeName: "node", ServiceAccountName: "default",
			Containers: []corev1.Container{{
				Name: "linkerd-proxy", Image: "proxy",
				Env: []corev1.EnvVar{listen("INBOUND", 4143), listen("ADMIN", 4191), listen("CONTROL", 4190)},
			}},
		},
	}
}

func sliceOf(s *site, app int, m *member) *discoveryv1.EndpointSlice {
	es := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: appName(app), Namespace: namespace,
			Labels: map[string]string{discoveryv1.LabelServiceName: appName(app)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{
			Name: new("http"), Port: new(int32(fakeapi.TargetPort)), Protocol: new(corev1.ProtocolTCP),
		}},
	}
	for _, e := range m.endpoints {
		es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{s.addr(e.number).Addr().String()},
			Conditions: discoveryv1.EndpointConditions{Ready: new(e.ready)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: podName(app, e.number)},
		})
	}
	return es
}

package oracle

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
)

const (
	namespace = "shop"
	clients   = "clients" // of those that ask from another namespace, and have ServiceProfiles of their own
	linkerd   = "linkerd" // the namespace of the mesh's control plane
)

var (
	services  = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	pods      = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	nodes     = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	secrets   = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	slicesOf  = schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
	endpoints = schema.GroupVersionResource{Version: "v1", Resource: "endpoints"}
	servers   = schema.GroupVersionResource{Group: "policy.linkerd.io", Version: "v1beta3", Resource: "servers"}
	sets      = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}
	jobs      = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	profiles  = schema.GroupVersionResource{Group: "linkerd.io", Version: "v1alpha2", Resource: "serviceprofiles"}
	externals = schema.GroupVersionResource{
		Group:    "workload.linkerd.io",
		Version:  "v1beta1",
		Resource: "externalworkloads",
	}
)

// The pools of names are small, so that what is written collides with what is there.
var (
	serviceNames  = []string{"a", "b", "c", "d"}
	podNames      = []string{"p-0", "p-1", "p-2", "q-0", "q-1", "q-2"}
	externalNames = []string{"e-0", "e-1"}
	nodeNames     = []string{"n-0", "n-1", "n-2"}
	zones         = []string{"zone-a", "zone-b"}
	hostnames     = []string{"h-0", "h-1"}
	slices4       = []string{"s-0", "s-1", "s-2", "s-3", "s-4", "s-5"}
	slices6       = []string{"t-0", "t-1", "t-2"}
	addresses4    = []string{"10.9.0.1", "10.9.0.2", "10.9.0.3", "10.9.0.4", "10.9.0.5", "10.9.0.6"}
	addresses6    = []string{"2001:db8::1", "2001:db8::2", "2001:db8::3"}
	ownerNames    = []string{"o-0", "o-1", "o-2"}
	hosts         = []string{"192.168.9.1", "192.168.9.2"}
	portNames     = []string{"http", "db", "x-1"}
	targets       = []int32{8080, 8081, 3306, 4191} // the last one is the proxy's own
	portLists     = []string{"", "8080", " 8000-8080 ,x", "http", "db, 8081", "3306,junk-,99999,-1", "x-1", "4191,4143"}
	apps          = []string{"x", "y"}
	trustDomains  = []string{"remote.test", "other.test"}
)

// policies are values of annotations of federated Services.
var policies = []struct {
	name   string
	values []string
}{
	{"prefer", []string{
		"local > *", "remote > local", "remote", "local", "* > remote", "nosuch > remote,local", "nosuch",
	}},
	{"weights", []string{
		"local=80,remote=20", "local=1,remote=99", "remote=1", "local=1, remote=0", "nosuch=5",
	}},
	{"capacity", []string{"1", "3", "10"}},
}

// A writer makes random legal changes of the objects of one API server.
type writer struct {
	*rand.Rand
	*controlplane.Cluster
	client dynamic.Interface
	local  bool

	endpoints bool // Endpoints are written instead of EndpointSlices
}

func newWriter(r *rand.Rand, c *controlplane.Cluster, local bool) (*writer, error) {
	client, err := dynamic.NewForConfig(c.AdminConfig())
	return &writer{Rand: r, Cluster: c, client: client, local: local}, err
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// one reports true once in n times.
func (w *writer) one(n int) bool { return w.IntN(n) == 0 }

// change makes one change and returns which.
func (w *writer) change(ctx context.Context) (string, error) {
	type event struct {
		weight int
		make   func(context.Context) (string, error)
	}
	where := w.slice
	if w.endpoints {
		where = w.subsets
	}
	events := []event{{5, w.service}, {8, where}, {8, w.pod}, {2, w.external}, {2, w.server}, {1, w.owner}}
	if w.local {
		events = append(events, event{1, w.node}, event{3, w.profile})
	}
	total := 0
	for _, e := range events {
		total += e.weight
	}
	n := w.IntN(total)
	for _, e := range events {
		if n -= e.weight; n < 0 {
			what, err := e.make(ctx)
			return w.Name() + ": " + what, err
		}
	}
	panic("BUG: the weights do not add up")
}

func (w *writer) resource(kind schema.GroupVersionResource, in string) dynamic.ResourceInterface {
	if in == "" {
		return w.client.Resource(kind)
	}
	return w.client.Resource(kind).Namespace(in)
}

// put creates or replaces an object.
func (w *writer) put(ctx context.Context, kind schema.GroupVersionResource, object any) (string, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return "", err
	}
	u := &unstructured.Unstructured{Object: content}
	unstructured.RemoveNestedField(u.Object, "status")
	to := w.resource(kind, u.GetNamespace())
	what := fmt.Sprintf("put %s %s", u.GetKind(), u.GetName())
	old, err := to.Get(ctx, u.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = to.Create(ctx, u, metav1.CreateOptions{})
	} else if err == nil {
		u.SetResourceVersion(old.GetResourceVersion())
		_, err = to.Update(ctx, u, metav1.UpdateOptions{})
	}
	return what, err
}

// remove deletes an object if it is there.
func (w *writer) remove(ctx context.Context, kind schema.GroupVersionResource, in, name string,
	grace int64,
) (string, error) {
	err := w.resource(kind, in).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return fmt.Sprintf("delete %s %s (grace %d s)", kind.Resource, name, grace), err
}

// service writes one that is plain, federated, a mirror or of type ExternalName.
func (w *writer) service(ctx context.Context) (string, error) {
	name := pick(w.Rand, serviceNames)
	if w.one(10) {
		return w.remove(ctx, services, namespace, name, 0)
	}
	s := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Namespace:   namespace,
			Labels:      map[string]string{},
			Annotations: map[string]string{},
		},
	}
	if w.one(24) {
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "elsewhere.test"
		if w.one(2) {
			s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}}
		}
		return w.put(ctx, services, s)
	}
	for i, number := range []int32{80, 8080, 443}[:3-w.IntN(6)/3-w.IntN(8)/7] {
		p := corev1.ServicePort{
			Name:       portNames[i],
			Port:       number,
			Protocol:   corev1.ProtocolTCP,
			TargetPort: intstr.FromInt32(pick(w.Rand, targets)),
		}
		if w.one(4) { // renamed
			p.Name = fmt.Sprintf("new-%d", i)
		}
		if w.one(3) {
			p.TargetPort = intstr.FromString(pick(w.Rand, portNames))
		}
		if w.one(8) { // the same number over UDP, listed first
			udp := p
			udp.Protocol, udp.Name = corev1.ProtocolUDP, fmt.Sprintf("udp-%d", i)
			s.Spec.Ports = append(s.Spec.Ports, udp)
		}
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
	if len(s.Spec.Ports) == 1 && w.one(2) {
		s.Spec.Ports[0].Name = ""
	}
	if w.one(4) {
		s.Annotations["config.linkerd.io/opaque-ports"] = pick(w.Rand, append(portLists, "80", "443,80-81"))
	}
	if w.one(5) {
		local := corev1.ServiceInternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = &local
	}
	if w.one(3) { // federated; in a linked cluster that changes nothing
		var members []string
		for range w.IntN(5) {
			members = append(members, pick(w.Rand, serviceNames)+"@"+
				pick(w.Rand, []string{"remote", "remote", "remote", "remote", "ghost", "a@b"}))
		}
		if len(members) > 0 || w.one(3) {
			s.Annotations["multicluster.linkerd.io/remote-discovery"] = strings.Join(members, ",")
		}
		if w.one(2) {
			s.Annotations["multicluster.linkerd.io/local-discovery"] = pick(w.Rand, append(serviceNames, ""))
		}
		for _, p := range policies {
			if w.one(3) {
				s.Annotations["federation.fingerpost.io/"+p.name] = pick(w.Rand, p.values)
			}
		}
	}
	if w.one(5) {
		s.Labels["multicluster.linkerd.io/remote-discovery"] = pick(w.Rand,
			[]string{"remote", "remote", "remote", "remote", "remote", "ghost"})
		if !w.one(8) {
			s.Labels["multicluster.linkerd.io/remote-service"] = pick(w.Rand, serviceNames)
		}
	}
	return w.put(ctx, services, s)
}

// slice writes one of Pods, ExternalWorkloads and bare addresses, of a Service or of none.
func (w *writer) slice(ctx context.Context) (string, error) {
	name, addresses, family := pick(w.Rand, slices4), addresses4, discoveryv1.AddressTypeIPv4
	if w.one(3) {
		name, addresses, family = pick(w.Rand, slices6), addresses6, discoveryv1.AddressTypeIPv6
	}
	if w.one(8) {
		return w.remove(ctx, slicesOf, namespace, name, 0)
	}
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: namespace,
			Labels:      map[string]string{"endpointslice.kubernetes.io/managed-by": "test"},
			Annotations: map[string]string{},
		},
		AddressType: family,
		Endpoints:   []discoveryv1.Endpoint{},
	}
	of := pick(w.Rand, serviceNames)
	switch w.IntN(10) {
	case 0:
		s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: of, UID: "1"}}
	case 1:
		if w.one(2) {
			break // no object has it
		}
		fallthrough
	default:
		s.Labels["kubernetes.io/service-name"] = of
	}
	if w.one(6) { // it leads to a gateway
		s.Labels["mirror.linkerd.io/cluster-name"] = "remote"
		s.Annotations["mirror.linkerd.io/remote-svc-fq-name"] = pick(w.Rand,
			[]string{"a.shop.svc.cluster.local", "name", ""})
		s.Annotations["mirror.linkerd.io/remote-gateway-identity"] = pick(w.Rand,
			[]string{"gateway-1", "gateway-2", ""})
	}
	for i := range 3 - w.IntN(12)/8 - w.IntN(12)/11 {
		if w.one(16) {
			continue
		}
		p := discoveryv1.EndpointPort{Name: &portNames[i], Port: new(pick(w.Rand, targets))}
		if w.one(16) {
			p.Port = nil
		}
		s.Ports = append(s.Ports, p)
	}
	if w.one(16) {
		s.Ports = nil
	}
	if len(s.Ports) == 1 && w.one(2) {
		s.Ports[0].Name = new("")
	}
	hinted := w.one(3)
	for range w.IntN(8) {
		e := discoveryv1.Endpoint{Addresses: []string{pick(w.Rand, addresses)}}
		switch w.IntN(8) {
		case 0:
		case 1:
			e.TargetRef = &corev1.ObjectReference{
				Kind:      "ExternalWorkload",
				Namespace: namespace,
				Name:      pick(w.Rand, externalNames),
			}
		case 2:
			e.TargetRef = &corev1.ObjectReference{
				Kind:      "VirtualMachine",
				Namespace: namespace,
				Name:      pick(w.Rand, podNames),
			}
		default:
			e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pick(w.Rand, podNames)}
		}
		if !w.one(3) {
			e.Conditions.Ready = new(!w.one(4))
		}
		if w.one(3) {
			e.Conditions.Serving, e.Conditions.Terminating = new(w.one(2)), new(w.one(2))
		}
		if w.one(3) {
			e.Hostname = &hostnames[w.IntN(2)]
		}
		if !w.one(3) {
			e.Zone = new(pick(w.Rand, zones))
		}
		if w.one(3) {
			e.NodeName = new(pick(w.Rand, nodeNames)) // not where it runs: the Pod knows
		}
		if hinted && !w.one(12) {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: pick(w.Rand, zones)}}}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return w.put(ctx, slicesOf, s)
}

// subsets writes the Endpoints of a Service: of Pods, ExternalWorkloads and bare addresses.
func (w *writer) subsets(ctx context.Context) (string, error) {
	e := &corev1.Endpoints{ //nolint:staticcheck // who reads Endpoints was asked to
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Endpoints"},
		ObjectMeta: metav1.ObjectMeta{
			Name:        pick(w.Rand, serviceNames),
			Namespace:   namespace,
			Labels:      map[string]string{},
			Annotations: map[string]string{},
		},
	}
	if w.one(8) {
		return w.remove(ctx, endpoints, namespace, e.Name, 0)
	}
	if w.one(6) { // they lead to a gateway
		e.Labels["mirror.linkerd.io/cluster-name"] = "remote"
		e.Annotations["mirror.linkerd.io/remote-svc-fq-name"] = "a.shop.svc.cluster.local"
		e.Annotations["mirror.linkerd.io/remote-gateway-identity"] = pick(w.Rand, []string{"gateway-1", ""})
	}
	for range w.IntN(4) {
		subset := corev1.EndpointSubset{} //nolint:staticcheck // likewise
		for i := range w.IntN(4) {
			subset.Ports = append(subset.Ports, corev1.EndpointPort{Name: portNames[i%3], Port: pick(w.Rand, targets)})
		}
		if len(subset.Ports) == 1 && w.one(2) {
			subset.Ports[0].Name = ""
		}
		for range 1 + w.IntN(4) {
			a := corev1.EndpointAddress{IP: pick(w.Rand, addresses4)}
			switch w.IntN(8) {
			case 0:
			case 1:
				a.TargetRef = &corev1.ObjectReference{
					Kind:      "ExternalWorkload",
					Namespace: namespace,
					Name:      pick(w.Rand, externalNames),
				}
			default:
				a.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pick(w.Rand, podNames)}
			}
			if w.one(3) {
				a.Hostname = pick(w.Rand, hostnames)
			}
			if w.one(4) {
				subset.NotReadyAddresses = append(subset.NotReadyAddresses, a)
			} else {
				subset.Addresses = append(subset.Addresses, a)
			}
		}
		e.Subsets = append(e.Subsets, subset)
	}
	return w.put(ctx, endpoints, e)
}

// labels are of a workload. Values that look like its name, or like the number in it, are those of a
// StatefulSet's Pods.
func (w *writer) labels(name string) map[string]string {
	labels := map[string]string{"app": pick(w.Rand, apps)}
	if w.one(3) {
		labels["name"] = pick(w.Rand, []string{name, "p-0"})
	}
	if w.one(3) {
		labels["index"] = pick(w.Rand, []string{"0", "1", name[2:]})
	}
	return labels
}

// dress gives a Pod the labels and annotations that may change.
func (w *writer) dress(p *corev1.Pod) {
	p.Labels, p.Annotations, p.OwnerReferences = w.labels(p.Name), map[string]string{}, nil
	if !w.one(4) {
		p.Labels["linkerd.io/control-plane-ns"] = linkerd
		if w.one(8) {
			p.Labels["linkerd.io/control-plane-ns"] = "another"
		}
	}
	if w.one(4) {
		p.Labels["pod-template-hash"] = "abc"
	}
	if w.one(4) {
		p.Annotations["config.linkerd.io/opaque-ports"] = pick(w.Rand, portLists)
	}
	if w.one(6) {
		p.Annotations["config.linkerd.io/skip-inbound-ports"] = pick(w.Rand, portLists)
	}
	owners := []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "StatefulSet", Name: p.Name[:1], UID: "1"},
		{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: pick(w.Rand, ownerNames), UID: "1"},
		{APIVersion: "batch/v1", Kind: "Job", Name: pick(w.Rand, ownerNames), UID: "1"},
	}
	switch n := w.IntN(8); {
	case n < 6:
		p.OwnerReferences = owners[n/2 : n/2+1]
	case n == 6:
		p.OwnerReferences = owners // several are none
	}
}

func (w *writer) pod(ctx context.Context) (string, error) {
	name := pick(w.Rand, podNames)
	switch w.IntN(16) {
	case 0:
		return w.remove(ctx, pods, namespace, name, 0)
	case 1: // it is going to end; only its kubelet, of which there is none, would let it
		return w.remove(ctx, pods, namespace, name, 3600)
	}
	in := w.resource(pods, namespace)
	old, err := in.Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", err
	}
	var p corev1.Pod
	if err == nil {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(old.Object, &p); err != nil {
			return "", err
		}
		switch w.IntN(4) {
		case 0:
			p.Status.Phase = pick(w.Rand, []corev1.PodPhase{
				corev1.PodPending, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodSucceeded,
				corev1.PodFailed,
			})
			p.Status.PodIPs = []corev1.PodIP{{IP: pick(w.Rand, addresses4)}}
			p.Status.PodIP = p.Status.PodIPs[0].IP
			if w.one(3) {
				p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: pick(w.Rand, addresses6)})
			}
			p.Status.HostIP = pick(w.Rand, hosts)
			p.Status.HostIPs = []corev1.HostIP{{IP: p.Status.HostIP}}
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&p)
			if err != nil {
				return "", err
			}
			_, err = in.UpdateStatus(ctx, &unstructured.Unstructured{Object: content}, metav1.UpdateOptions{})
			return fmt.Sprintf("set the status of Pod %s: %s %s", name, p.Status.Phase, p.Status.PodIP), err
		case 1, 2:
			w.dress(&p)
			return w.put(ctx, pods, &p)
		}
		if what, err := w.remove(ctx, pods, namespace, name, 0); err != nil {
			return what, err
		}
	}
	p = corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       corev1.PodSpec{ServiceAccountName: pick(w.Rand, []string{"", "web"})},
	}
	w.dress(&p)
	if !w.one(5) {
		p.Spec.NodeName = pick(w.Rand, nodeNames)
	}
	p.Spec.Containers = []corev1.Container{{Name: "web", Image: "shop/web"}}
	for i, port := range []int32{8080, 3306} {
		if w.one(2) {
			p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports,
				corev1.ContainerPort{Name: portNames[i], ContainerPort: port})
		}
	}
	if w.one(4) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports,
			corev1.ContainerPort{Name: "host", ContainerPort: 9000, HostPort: 8081})
	}
	if w.one(4) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports,
			corev1.ContainerPort{ContainerPort: 53, HostPort: 8081, Protocol: corev1.ProtocolUDP})
	}
	proxy := corev1.Container{Name: "linkerd-proxy", Image: "linkerd/proxy", Env: []corev1.EnvVar{
		{Name: "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", Value: pick(w.Rand, []string{"0.0.0.0:4143", "[::]:4243"})},
		{Name: "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", Value: "0.0.0.0:4191"},
		{Name: "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", Value: "0.0.0.0:4190"},
	}}
	if w.one(8) {
		proxy.Env = proxy.Env[:2]
	}
	if w.one(3) {
		always := corev1.ContainerRestartPolicyAlways
		proxy.RestartPolicy = &always
		p.Spec.InitContainers = append(p.Spec.InitContainers, proxy)
	} else {
		p.Spec.Containers = append(p.Spec.Containers, proxy)
	}
	return w.put(ctx, pods, &p)
}

// owner writes a ReplicaSet or a Job, and what it belongs to. It stays: what owns Pods does not go before
// them, nor changes hands.
func (w *writer) owner(ctx context.Context) (string, error) {
	name := pick(w.Rand, ownerNames)
	kind, up, of := "ReplicaSet", "Deployment", sets
	spec := map[string]any{
		"selector": map[string]any{"matchLabels": map[string]any{"app": "x"}},
		"template": map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"app": "x"}},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "web", "image": "shop/web"}}},
		},
	}
	if w.one(2) {
		kind, up, of = "Job", "CronJob", jobs
		delete(spec, "selector")
		_ = unstructured.SetNestedField(spec, "Never", "template", "spec", "restartPolicy")
	}
	switch name {
	case "o-1":
		up = "Rollout" // stands for a Job, and not for a ReplicaSet
	case "o-2":
		up = ""
	}
	metadata := map[string]any{"name": name, "namespace": namespace}
	if up != "" {
		metadata["ownerReferences"] = []any{map[string]any{
			"apiVersion": "apps/v1",
			"kind":       up,
			"name":       "up-" + name,
			"uid":        "1",
		}}
	}
	object := map[string]any{"apiVersion": of.GroupVersion().String(), "kind": kind, "metadata": metadata, "spec": spec}
	_, err := w.resource(of, namespace).Create(ctx, &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	return fmt.Sprintf("create %s %s of %s", kind, name, up), err
}

// profile writes a ServiceProfile, of a Service or of clients.
func (w *writer) profile(ctx context.Context) (string, error) {
	name, in := pick(w.Rand, serviceNames)+"."+namespace+".svc.cluster.local",
		pick(w.Rand, []string{namespace, clients})
	if w.one(4) {
		return w.remove(ctx, profiles, in, name, 0)
	}
	spec := map[string]any{}
	var routes []any
	for i := range w.IntN(3) {
		routes = append(routes, map[string]any{
			"name":      fmt.Sprintf("route-%d", i),
			"condition": map[string]any{"method": pick(w.Rand, []string{"GET", "POST"})},
		})
	}
	spec["routes"] = routes
	if w.one(3) {
		spec["retryBudget"] = map[string]any{
			"retryRatio":          0.5,
			"minRetriesPerSecond": int64(w.IntN(5)),
			"ttl":                 pick(w.Rand, []string{"5s", "1m"}),
		}
	}
	if w.one(3) {
		authority := pick(w.Rand, []string{"b.shop.svc.cluster.local", "c.shop.svc.cluster.local:8080"})
		spec["dstOverrides"] = []any{map[string]any{
			"authority": authority,
			"weight":    pick(w.Rand, []string{"1", "20"}),
		}}
	}
	return w.put(ctx, profiles, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "linkerd.io/v1alpha2", "kind": "ServiceProfile",
		"metadata": map[string]any{"name": name, "namespace": in}, "spec": spec,
	}})
}

// node writes where it is.
func (w *writer) node(ctx context.Context) (string, error) {
	name := pick(w.Rand, nodeNames)
	if w.one(8) {
		return w.remove(ctx, nodes, "", name, 0)
	}
	n := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}
	if !w.one(6) {
		n.Labels = map[string]string{"topology.kubernetes.io/zone": pick(w.Rand, zones)}
	}
	return w.put(ctx, nodes, n)
}

func (w *writer) external(ctx context.Context) (string, error) {
	name := pick(w.Rand, externalNames)
	if w.one(6) {
		return w.remove(ctx, externals, namespace, name, 0)
	}
	labels, annotations := map[string]any{}, map[string]any{}
	for k, v := range w.labels(name) {
		labels[k] = v
	}
	if w.one(3) {
		annotations["config.linkerd.io/opaque-ports"] = pick(w.Rand, portLists)
	}
	ports := []any{map[string]any{"name": "http", "port": int64(pick(w.Rand, targets))}}
	if w.one(2) {
		ports = append(ports, map[string]any{"name": "linkerd-proxy", "port": int64(4143 + w.IntN(2))})
	}
	return w.put(ctx, externals, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
		"metadata": map[string]any{"name": name, "namespace": namespace, "labels": labels, "annotations": annotations},
		"spec": map[string]any{
			"meshTLS": map[string]any{
				"identity": "spiffe://" + pick(w.Rand, append([]string{"test"}, trustDomains...)) + "/" +
					pick(w.Rand, apps),
				"serverName": pick(w.Rand, apps) + ".test",
			},
			"ports":       ports,
			"workloadIPs": []any{map[string]any{"ip": pick(w.Rand, addresses4)}},
		},
	}})
}

func (w *writer) server(ctx context.Context) (string, error) {
	name := pick(w.Rand, []string{"r-0", "r-1", "r-2"})
	if w.one(4) {
		return w.remove(ctx, servers, namespace, name, 0)
	}
	var selector map[string]any
	switch w.IntN(5) {
	case 0:
		selector = map[string]any{}
	case 1:
		selector = map[string]any{"matchLabels": map[string]any{"name": pick(w.Rand, podNames)}}
	case 2:
		selector = map[string]any{"matchExpressions": []any{map[string]any{
			"key": "index", "operator": pick(w.Rand, []string{"In", "NotIn"}), "values": []any{"0", "2"},
		}}}
	case 3:
		selector = map[string]any{"matchExpressions": []any{map[string]any{
			"key":      "index",
			"operator": pick(w.Rand, []string{"Exists", "DoesNotExist", "Bogus"}),
		}}}
	default:
		selector = map[string]any{"matchLabels": map[string]any{"app": pick(w.Rand, apps)}}
	}
	spec := map[string]any{
		"proxyProtocol": "opaque",
		pick(w.Rand, []string{"podSelector", "podSelector", "externalWorkloadSelector"}): selector,
	}
	if w.one(4) {
		spec["proxyProtocol"] = "HTTP/2"
	}
	spec["port"] = int64(pick(w.Rand, targets))
	if w.one(3) {
		spec["port"] = pick(w.Rand, []string{"http", "db", "host"})
	}
	return w.put(ctx, servers, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
		"metadata": map[string]any{"name": name, "namespace": namespace}, "spec": spec,
	}})
}

// link links a cluster, or unlinks it, or gives it another trust domain.
func (w *writer) link(ctx context.Context, remote *controlplane.Cluster, via string) (string, error) {
	name := "cluster-credentials-" + remote.Name()
	if w.one(4) {
		return w.remove(ctx, secrets, linkerd, name, 0)
	}
	domain := pick(w.Rand, trustDomains)
	what, err := w.put(ctx, secrets, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "mirror.linkerd.io/remote-kubeconfig",
		"metadata": map[string]any{
			"name": name, "namespace": linkerd,
			"labels": map[string]any{"multicluster.linkerd.io/cluster-name": remote.Name()},
			"annotations": map[string]any{
				"multicluster.linkerd.io/trust-domain":   domain,
				"multicluster.linkerd.io/cluster-domain": "cluster.local",
			},
		},
		"data": map[string]any{"kubeconfig": base64.StdEncoding.EncodeToString(remote.Kubeconfig(remote.Admin(), via))},
	}})
	return what + " with trust domain " + domain, err
}

package fakeapi

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// LinkNamespace is where Links are.
const LinkNamespace = "multicluster"

// perSlice is how many endpoints an EndpointSlice holds, as those of Kubernetes.
const perSlice = 100

// Ports of an App: of its Service, and of its Pods.
const (
	Port       = 80
	TargetPort = 8080
)

// An App is a Service with meshed Pods.
type App struct {
	Namespace, Name string
	Pods            int
	First           netip.Addr // of its Pods' addresses, which follow each other; IPv4
}

// Addr returns where one of the Pods is reached.
func (a App) Addr(pod int) netip.AddrPort {
	first := a.First.As4()
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], binary.BigEndian.Uint32(first[:])+uint32(pod))
	return netip.AddrPortFrom(netip.AddrFrom4(addr), TargetPort)
}

// Addrs returns where all Pods are reached.
func (a App) Addrs() (all []netip.AddrPort) {
	for i := range a.Pods {
		all = append(all, a.Addr(i))
	}
	return all
}

// Authority returns what a client calls the Service.
func (a App) Authority() string { return Authority(a.Namespace, a.Name) }

// Authority returns what a client calls a Service.
func Authority(namespace, name string) string {
	return fmt.Sprintf("%s.%s.svc.cluster.local:%d", name, namespace, Port)
}

func (a App) meta(name string) metav1.ObjectMeta {
	at := metav1.Unix(1_700_000_000, 0)
	return metav1.ObjectMeta{
		Namespace: a.Namespace, Name: name, UID: "2b8e3e5c-0a6b-4a6e-9f3f-0123456789ab", ResourceVersion: "7",
		CreationTimestamp: at,
		Labels:            map[string]string{"app": a.Name},
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "kube-controller-manager", Operation: "Update", APIVersion: "v1", Time: &at,
			FieldsType: "FieldsV1",
			FieldsV1:   metav1.NewFieldsV1(managedFields),
		}},
	}
}

// managedFields are about as long as those of a Pod.
var managedFields = `{"f:metadata":{"f:labels":{` + strings.Repeat(`"f:some.example.com/label":{},`, 40) +
	`"f:app":{}}}}`

// Service returns the Service.
func (a App) Service() *corev1.Service {
	return &corev1.Service{ObjectMeta: a.meta(a.Name), Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, ClusterIPs: []string{corev1.ClusterIPNone},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Selector:   map[string]string{"app": a.Name},
		Ports:      []corev1.ServicePort{{Name: "http", Port: Port, Protocol: corev1.ProtocolTCP}},
	}}
}

func (a App) podName(i int) string { return fmt.Sprintf("%s-7d9f8-%05d", a.Name, i) }

// Pod returns one of the Pods, of about 4 KB.
func (a App) Pod(i int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: a.meta(a.podName(i))}
	p.Labels["linkerd.io/control-plane-ns"], p.Labels["pod-template-hash"] = "linkerd", "7d9f8"
	p.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps/v1",
		Kind:       "ReplicaSet",
		Name:       a.Name + "-7d9f8",
		UID:        "u",
		Controller: new(true),
	}}
	p.Spec = corev1.PodSpec{
		ServiceAccountName: a.Name, NodeName: fmt.Sprintf("node-%d", i%100),
		Containers: []corev1.Container{
			{
				Name:  "app",
				Image: "registry.example.com/app:1.2.3",
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: TargetPort, Protocol: corev1.ProtocolTCP}},
			},
			{Name: "linkerd-proxy", Image: "cr.l5d.io/linkerd/proxy", Env: proxyEnv},
		},
	}
	ip := a.Addr(i).Addr().String()
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
	return p
}

var proxyEnv = func() (env []corev1.EnvVar) {
	for i := range 30 {
		env = append(env, corev1.EnvVar{Name: fmt.Sprintf("LINKERD2_PROXY_SETTING_%d", i), Value: "some value of it"})
	}
	for name, port := range map[string]int{"INBOUND": 4143, "ADMIN": 4191, "CONTROL": 4190} {
		env = append(env, corev1.EnvVar{
			Name:  "LINKERD2_PROXY_" + name + "_LISTEN_ADDR",
			Value: fmt.Sprintf("0.0.0.0:%d", port),
		})
	}
	return env
}()

// Slice returns one of the EndpointSlices.
func (a App) Slice(i int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: a.meta(fmt.Sprintf("%s-%05d", a.Name, i)), AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{
			Name:     new("http"),
			Port:     new(int32(TargetPort)),
			Protocol: new(corev1.ProtocolTCP),
		}},
	}
	s.Labels[discoveryv1.LabelServiceName], s.Labels[discoveryv1.LabelManagedBy] = a.Name,
		"endpointslice-controller.k8s.io"
	for j := i * perSlice; j < min(a.Pods, (i+1)*perSlice); j++ {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a.Addr(j).Addr().String()}, NodeName: new(fmt.Sprintf("node-%d", j%100)),
			Zone:       new(fmt.Sprintf("zone-%d", j%3)),
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: a.Namespace, Name: a.podName(j)},
		})
	}
	return s
}

// ReplicaSet returns the owner of the Pods.
func (a App) ReplicaSet() Object {
	r := &metav1.PartialObjectMetadata{ObjectMeta: a.meta(a.Name + "-7d9f8")}
	r.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps/v1",
		Kind:       "Deployment",
		Name:       a.Name,
		UID:        "u",
		Controller: new(true),
	}}
	return r
}

// Run makes the cluster serve n Apps that are the same but for names and addresses, each with as many Pods.
func (c *Cluster) Run(n int, app func(i int) App) {
	if n == 0 {
		return
	}
	pods := app(0).Pods
	slices := (pods + perSlice - 1) / perSlice
	c.Serve("services", Series{n, func(i int) Object { return app(i).Service() }})
	c.Serve("replicasets", Series{n, func(i int) Object { return app(i).ReplicaSet() }})
	c.Serve("pods", Series{n * pods, func(i int) Object { return app(i / pods).Pod(i % pods) }})
	c.Serve("endpointslices", Series{n * slices, func(i int) Object { return app(i / slices).Slice(i % slices) }})
}

// Federated returns a Service that is made of Services of that name in linked clusters.
func Federated(namespace, name string, clusters ...string) *corev1.Service {
	s := App{Namespace: namespace, Name: name + "-federated"}.Service()
	var members []string
	for _, c := range clusters {
		members = append(members, name+"@"+c)
	}
	s.Annotations = map[string]string{"multicluster.linkerd.io/remote-discovery": strings.Join(members, ",")}
	return s
}

// Link returns what links a cluster: a Secret with a kubeconfig, and a Link.
func Link(name string, kubeconfig []byte) []Object {
	return []Object{
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: LinkNamespace, Name: name},
			Type:       "mirror.linkerd.io/remote-kubeconfig",
			Data:       map[string][]byte{"kubeconfig": kubeconfig},
		},
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "multicluster.linkerd.io/v1alpha3", "kind": "Link",
			"metadata": map[string]any{"namespace": LinkNamespace, "name": name},
			"spec": map[string]any{
				"targetClusterName":        name,
				"targetClusterDomain":      "cluster.local",
				"clusterCredentialsSecret": name,
			},
		}},
	}
}

// Node returns a node in a zone.
func Node(name, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:   name,
		UID:    types.UID(name),
		Labels: map[string]string{corev1.LabelTopologyZone: zone},
	}}
}

package endpointslice

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/internal/logs"
)

const externalManagedBy = "linkerd-external-workloads-controller"

// workloadKind is ExternalWorkloads, at the newest version that is served.
var workloadKind = api.Newest(linkerd.ExternalWorkloads, linkerd.ExternalWorkloadVersions, linkerd.ExternalWorkloadKind)

// listWorkloads lists ExternalWorkloads once.
func listWorkloads(
	ctx context.Context, client dynamic.Interface, namespace string, options metav1.ListOptions,
) (*unstructured.UnstructuredList, error) {
	kind := workloadKind
	kind.Namespace = namespace
	return kind.List(ctx, client, options)
}

// externalSlices is the content of slices of ExternalWorkloads. A watch that went wrong can make most of them disappear
// at once, like the endpoints of a linked cluster. So their guard decides like that of one: what is a mass withdrawal
// is written once they were listed anew. What slices have when a term begins counts as what there was before.
type externalSlices struct {
	*sliceWriter
	workloads   *api.Informer[*workloadRecord]
	workloadsIn map[string]map[string]*workloadRecord // by namespace, as last seen; guarded by mu
	guard       policy.Guard                          // of ready workloads; guarded by mu
	confirm     watch.Value[struct{}]                 // stored when it is to be confirmed
}

func newExternalSlices(w *Writer, t *apply.Target) *externalSlices {
	e := &externalSlices{workloadsIn: map[string]map[string]*workloadRecord{}}
	e.sliceWriter = newSliceWriter(w, t, externalManagedBy, externalPermissions, e.confirmLosses)
	e.content = e
	e.workloads = api.NewInformer(t.Conn, workloadKind, e.reduceWorkload, e.indexWorkload)
	e.loop.Read(e.workloads, apply.Permission{Resource: linkerd.ExternalWorkloads, Verbs: readVerbs})
	return e
}

func (e *externalSlices) reduceWorkload(object any) (*workloadRecord, bool) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, false
	}
	w, err := newWorkloadRecord(u)
	if err != nil {
		e.Log.Info("An ExternalWorkload is left out: it is malformed",
			"externalWorkload", u.GetNamespace()+"/"+u.GetName(), "error", err.Error())
	}
	return w, err == nil
}

func (e *externalSlices) indexWorkload(k key) {
	now, _ := e.workloads.Get(k)
	e.mu.Lock()
	old := e.workloadsIn[k.Namespace][k.Name]
	setIn(e.workloadsIn, k.Namespace, k.Name, now)
	step := e.guard.Change(time.Now(), policy.Amount{Endpoints: now.readyCount() - old.readyCount()})
	e.mu.Unlock()
	if step == policy.Confirm {
		e.beginConfirm()
	}
	e.loop.Enqueue(affectedServices(old, now, e.servicesInNamespace(k.Namespace))...)
}

// readyCount returns how many endpoints the workload, nil for none, has at most that are ready.
func (w *workloadRecord) readyCount() int {
	if w == nil || !w.ready {
		return 0
	}
	return 1
}

// begin compares what slices have with the workloads that there are.
func (e *externalSlices) begin() {
	var had, has policy.Amount
	for _, k := range e.services.Keys() {
		e.mu.Lock()
		svc, have := e.servicesIn[k.Namespace][k.Name], slices.Collect(maps.Values(e.slicesOf[k]))
		e.mu.Unlock()
		if svc == nil || !e.writes(svc) || len(have) == 0 {
			continue
		}
		held := addressesOfSlices(have, readyEndpoint)
		had.Endpoints += len(held)
		has.Endpoints += len(held.Intersection(addressesOfGroups(e.groupsOf(svc), readyEndpoint)))
	}

	e.mu.Lock()
	isMass := e.guard.Begin(had, has)
	e.mu.Unlock()
	if isMass {
		e.beginConfirm()
	}
}

func (e *externalSlices) isConfirming() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.guard.Confirming()
}

func (e *externalSlices) beginConfirm() {
	logs.Warn(e.Log, "Most of the ExternalWorkloads are gone: their slices stay until a new list confirms that")
	e.confirm.Store(struct{}{})
}

// confirmLosses lists workloads anew whenever a loss is to be confirmed, until ctx ends.
func (e *externalSlices) confirmLosses(ctx context.Context) {
	for {
		_, changed := e.confirm.Load()

		if e.isConfirming() {
			e.workloads.Relist()
			if e.workloads.WaitRelisted(ctx) != nil {
				return
			}
			e.mu.Lock()
			e.guard.Listed()
			e.mu.Unlock()
			e.loop.Enqueue(e.services.Keys()...)
		}

		if !watch.WaitClosed(ctx, changed) {
			return
		}
	}
}

func (e *externalSlices) serviceChanged(_ key, _, _ *serviceRecord) {}

func (e *externalSlices) applied(key, map[string]int) {}

// desired implements content. Slices in kube-system belong to the cluster alone, and those of Services without a
// selector to who wrote them. While a loss is to be confirmed all stay as they are.
func (e *externalSlices) desired(svc *serviceRecord) desiredSlices {
	if e.isConfirming() || !e.writes(svc) {
		return desiredSlices{keep: keepAll}
	}
	return desiredSlices{groups: e.groupsOf(svc)}
}

// writes reports whether a Service has slices of workloads.
func (e *externalSlices) writes(svc *serviceRecord) bool {
	return svc.Namespace != metav1.NamespaceSystem && !svc.external && svc.selector != nil
}

// groupsOf returns the endpoints that a Service has of workloads.
func (e *externalSlices) groupsOf(svc *serviceRecord) []*group {
	e.mu.Lock()
	workloads := slices.Collect(maps.Values(e.workloadsIn[svc.Namespace]))
	e.mu.Unlock()
	slices.SortFunc(workloads, func(a, b *workloadRecord) int { return strings.Compare(a.Name, b.Name) })
	return externalGroups(svc, workloads)
}

// workloadRecord is what is kept of an ExternalWorkload.
type workloadRecord struct {
	key
	uid    types.UID
	labels map[string]string
	addrs  []netip.Addr
	ports  []linkerd.WorkloadPort // that it documents
	ready  bool
}

// newWorkloadRecord returns what is kept of an ExternalWorkload. Addresses and ports that no slice may hold
// are left out: one of them would keep all others of its slice from being written, and dead ones from being
// removed. From other clusters nothing of the kind passes the border of package view.
func newWorkloadRecord(u *unstructured.Unstructured) (*workloadRecord, error) {
	parsed, err := linkerd.ParseExternalWorkload(u)
	if err != nil {
		return nil, err
	}

	workload := &workloadRecord{
		key: key{Namespace: api.Intern(parsed.Namespace), Name: parsed.Name},
		uid: parsed.UID, labels: firstLabels(parsed.Labels, maxLabels, corev1.LabelTopologyZone),
		ready: parsed.Ready(),
	}
	for _, ip := range parsed.Spec.WorkloadIPs[:min(len(parsed.Spec.WorkloadIPs), maxAddresses)] {
		if addr, is := view.ParseIP(ip.IP); is && view.IsUsable(addr) {
			workload.addrs = append(workload.addrs, addr)
		}
	}

	for _, p := range parsed.Spec.Ports[:min(len(parsed.Spec.Ports), maxPorts)] {
		if len(validation.IsValidPortNum(int(p.Port))) == 0 {
			p.Name, p.Protocol = api.Intern(p.Name), protocolOf(p.Protocol)
			workload.ports = append(workload.ports, p)
		}
	}
	return workload, nil
}

func (w *workloadRecord) zone() string { return w.labels[corev1.LabelTopologyZone] }

// sameEndpoint reports whether every Service that selects both has the same endpoint for them.
func (w *workloadRecord) sameEndpoint(o *workloadRecord) bool {
	return w.uid == o.uid && w.ready == o.ready && w.zone() == o.zone() &&
		slices.Equal(w.addrs, o.addrs) && slices.Equal(w.ports, o.ports)
}

// affectedServices returns the Services that a change of an ExternalWorkload from old to now affects; nil
// is one that does not exist. If only labels differ, these are the Services that select one of both.
func affectedServices(old, now *workloadRecord, services []*serviceRecord) (keys []key) {
	selects := func(s *serviceRecord, w *workloadRecord) bool { return w != nil && s.selectsWorkload(w.labels) }
	same := old != nil && now != nil && old.sameEndpoint(now)
	for _, s := range services {
		if was, is := selects(s, old), selects(s, now); was != is || was && !same {
			keys = append(keys, s.key)
		}
	}
	return keys
}

// externalGroups returns the endpoints that a Service has of ExternalWorkloads of its namespace, in the
// order of their names.
func externalGroups(svc *serviceRecord, workloads []*workloadRecord) []*group {
	groups := grouping{}
	for _, w := range workloads {
		if !svc.selectsWorkload(w.labels) {
			continue
		}
		ports := portsAtWorkload(svc, w)
		if len(ports) == 0 && len(svc.ports) > 0 {
			continue // it documents none of them
		}

		for _, family := range svc.families {
			e := externalEndpoint(svc, w, family)
			if len(e.Addresses) == 0 {
				continue
			}
			g := groups.groupFor(traits{family: family}, ports)
			g.endpoints = append(g.endpoints, e)
		}
	}

	for _, g := range groups {
		g.meta = svc.meta(externalManagedBy, true)
		g.meta.GenerateName = "linkerd-external-" + svc.Name + "-"
	}
	return groups.sorted()
}

// externalEndpoint returns the endpoint of a workload, with its addresses of one family.
func externalEndpoint(
	svc *serviceRecord, workload *workloadRecord, family discoveryv1.AddressType,
) discoveryv1.Endpoint {
	endpoint := discoveryv1.Endpoint{
		Conditions: discoveryv1.EndpointConditions{
			Ready: &workload.ready, Serving: &workload.ready, Terminating: new(false),
		},
		TargetRef: &corev1.ObjectReference{
			Kind: linkerd.ExternalWorkloadKind, Namespace: workload.Namespace, Name: workload.Name, UID: workload.uid,
		},
	}

	for _, addr := range workload.addrs {
		if familyOf(addr) == family {
			endpoint.Addresses = append(endpoint.Addresses, addr.String())
		}
	}

	if zone := workload.zone(); zone != "" {
		endpoint.Zone = &zone
	}
	if svc.headless && len(validation.IsDNS1123Label(workload.Name)) == 0 {
		endpoint.Hostname = &workload.Name
	}
	return endpoint
}

// portsAtWorkload returns the Service's ports at a workload: those whose target the workload documents.
func portsAtWorkload(svc *serviceRecord, workload *workloadRecord) (ports []discoveryv1.EndpointPort) {
	for _, port := range svc.ports {
		i := slices.IndexFunc(workload.ports, func(own linkerd.WorkloadPort) bool {
			leads := own.Port == cmp.Or(port.TargetPort.IntVal, port.Port)
			if port.TargetPort.Type == intstr.String {
				leads = own.Name == port.TargetPort.StrVal
			}
			return leads && own.Protocol == protocolOf(port.Protocol)
		})
		if i >= 0 {
			ports = append(ports, discoveryv1.EndpointPort{
				Name: &port.Name, Port: &workload.ports[i].Port,
				Protocol: &workload.ports[i].Protocol, AppProtocol: port.AppProtocol,
			})
		}
	}
	return ports
}

func familyOf(a netip.Addr) discoveryv1.AddressType {
	if a.Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

package app_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fingerpost/fingerpost/links"
)

// Resources that replicas write, as the API servers name them.
const (
	sliceResource   = "endpointslices.discovery.k8s.io"
	leaseResource   = "leases.coordination.k8s.io"
	linkResource    = "links." + links.Group
	sourceLabel     = "federation.fingerpost.io/source-cluster"
	mirroredLabel   = "mirror.linkerd.io/mirrored-service"
	remoteDiscovery = "multicluster.linkerd.io/remote-discovery"
	localDiscovery  = "multicluster.linkerd.io/local-discovery"
)

// managers of the slices that are written.
var managers = []string{"federation.fingerpost.io", "linkerd-external-workloads-controller"}

// decode returns all objects of a resource in a cluster, as values of their type.
func decode[T any](s *scenario, cluster, resource string) (all []*T) {
	s.t.Helper()
	for _, o := range s.network.Server(cluster).List(resource) {
		all = append(all, new(T))
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, all[len(all)-1]); err != nil {
			s.t.Fatalf("%s %s/%s in %s: %v", resource, o.GetNamespace(), o.GetName(), cluster, err)
		}
	}
	return all
}

// splitName returns the namespace and the name of NAMESPACE/NAME; the namespace alone may be given.
func splitName(text string) (namespace, name string) {
	namespace, name, _ = strings.Cut(text, "/")
	return namespace, name
}

// sliceNames are the names of slices in transcripts, SERVICE#NUMBER, by UID.
type sliceNames struct {
	byUID map[types.UID]string
	last  map[string]int // by cluster, namespace and Service
}

// managed returns the slices that replicas have written for the Services of a namespace, or for one of them,
// by their names in transcripts. The first one of a Service that is printed is SERVICE#1.
func (s *scenario) managed(cluster, namespace, service string) (all []*discoveryv1.EndpointSlice) {
	s.t.Helper()
	for _, es := range decode[discoveryv1.EndpointSlice](s, cluster, sliceResource) {
		of := es.Labels[discoveryv1.LabelServiceName]
		if es.Namespace == namespace && (service == "" || of == service) &&
			slices.Contains(managers, es.Labels[discoveryv1.LabelManagedBy]) {
			all = append(all, es)
		}
	}
	slices.SortFunc(all, func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Or(strings.Compare(a.Labels[discoveryv1.LabelServiceName], b.Labels[discoveryv1.LabelServiceName]),
			strings.Compare(a.Labels[sourceLabel], b.Labels[sourceLabel]),
			strings.Compare(string(a.AddressType), string(b.AddressType)), strings.Compare(portsOf(a), portsOf(b)),
			cmp.Compare(len(b.Endpoints), len(a.Endpoints)), strings.Compare(addressesOf(a), addressesOf(b)))
	})
	for _, es := range all {
		service := es.Labels[discoveryv1.LabelServiceName]
		if of := cluster + "/" + namespace + "/" + service; s.sliceNames.byUID[es.UID] == "" {
			s.sliceNames.last[of]++
			s.sliceNames.byUID[es.UID] = service + "#" + strconv.Itoa(s.sliceNames.last[of])
		}
	}
	slices.SortStableFunc(all, func(a, b *discoveryv1.EndpointSlice) int {
		x, y := s.sliceNames.byUID[a.UID], s.sliceNames.byUID[b.UID]
		return cmp.Or(strings.Compare(a.Labels[discoveryv1.LabelServiceName], b.Labels[discoveryv1.LabelServiceName]),
			cmp.Compare(len(x), len(y)), strings.Compare(x, y))
	})
	return all
}

// objectName returns the real name of an object, where SERVICE#NUMBER stands for a slice.
func (s *scenario) objectName(cluster, namespace, name string) string {
	s.t.Helper()
	if !strings.Contains(name, "#") {
		return name
	}
	for _, es := range decode[discoveryv1.EndpointSlice](s, cluster, sliceResource) {
		if es.Namespace == namespace && s.sliceNames.byUID[es.UID] == name {
			return es.Name
		}
	}
	s.t.Fatalf("no slice %s/%s was printed in %s", namespace, name, cluster)
	return ""
}

func portsOf(es *discoveryv1.EndpointSlice) string {
	all := make([]string, 0, len(es.Ports))
	for _, p := range es.Ports {
		all = append(all, portText(*p.Name, *p.Port, *p.Protocol))
	}
	return strings.Join(all, ",")
}

func portText(name string, port int32, protocol corev1.Protocol) string {
	return fmt.Sprintf("%s:%d/%s", dash(name), port, protocol)
}

func addressesOf(es *discoveryv1.EndpointSlice) string {
	var all []string
	for _, e := range es.Endpoints {
		all = append(all, e.Addresses...)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// printSlices prints slices, each on a line, and each endpoint on another one if fields of endpoints are
// asked for.
func (s *scenario) printSlices(cluster, of string, show []string) {
	s.t.Helper()
	all := s.managed(cluster, first(splitName(of)), second(splitName(of)))
	if len(all) == 0 {
		fmt.Fprintln(&s.out, "no slices")
	}
	for _, es := range all {
		line := s.sliceNames.byUID[es.UID] + " " + string(es.AddressType) + " " + dash(portsOf(es))
		if source := es.Labels[sourceLabel]; source != "" {
			line += " from " + source
		}
		if es.DeletionTimestamp != nil {
			line += " deleted"
		}
		var fields []string // of endpoints
		size := false
		for _, f := range show {
			text, is := s.sliceField(cluster, es, f)
			switch {
			case f == "size":
				size = true
			case is:
				line += " " + f + "=" + text
			default:
				fields = append(fields, f)
			}
		}
		if size {
			line += " size=" + strconv.Itoa(len(es.Endpoints))
		} else if len(fields) == 0 {
			line = strings.TrimSpace(line + " " + addressesOf(es))
		}
		fmt.Fprintln(&s.out, line)
		var lines []string
		for _, e := range es.Endpoints {
			if size || len(fields) == 0 {
				break
			}
			endpoint := "  " + strings.Join(e.Addresses, ",")
			for _, f := range fields {
				endpoint += " " + f + "=" + s.endpointField(e, f)
			}
			lines = append(lines, endpoint)
		}
		slices.Sort(lines)
		for _, l := range lines {
			fmt.Fprintln(&s.out, l)
		}
	}
}

func first(a, _ string) string  { return a }
func second(_, b string) string { return b }

// sliceField renders a field of a slice, and reports whether it is one.
func (s *scenario) sliceField(cluster string, es *discoveryv1.EndpointSlice, name string) (text string, is bool) {
	switch name {
	case "size":
		return "", true
	case "prefix":
		return dash(es.GenerateName), true
	case "labels":
		return labels(es.Labels), true
	case "owner":
		owner := metav1.GetControllerOf(es)
		if owner == nil {
			return "-", true
		}
		text = owner.APIVersion + "/" + owner.Kind + "/" + owner.Name
		svc := s.network.Server(cluster).Get("services", es.Namespace, owner.Name)
		if svc == nil || svc.GetUID() != owner.UID {
			text += "(gone)"
		}
		return text, true
	}
	return "", false
}

func (s *scenario) endpointField(e discoveryv1.Endpoint, name string) string {
	s.t.Helper()
	flag := func(b *bool) string {
		if b == nil {
			return "-"
		}
		return strconv.FormatBool(*b)
	}
	text := func(t *string) string {
		if t == nil {
			return "-"
		}
		return *t
	}
	switch name {
	case "ready":
		return flag(e.Conditions.Ready)
	case "serving":
		return flag(e.Conditions.Serving)
	case "terminating":
		return flag(e.Conditions.Terminating)
	case "zone":
		return text(e.Zone)
	case "hostname":
		return text(e.Hostname)
	case "ref":
		if e.TargetRef == nil {
			return "-"
		}
		return e.TargetRef.Kind + "/" + e.TargetRef.Namespace + "/" + e.TargetRef.Name
	default:
		s.t.Fatalf("slices: unknown field %s", name)
		return ""
	}
}

// printMirrors prints mirrors and federated Services, and where the Endpoints of the former lead.
func (s *scenario) printMirrors(cluster string, show []string) {
	s.t.Helper()
	none := true
	for _, svc := range decode[corev1.Service](s, cluster, "services") {
		if svc.Labels[mirroredLabel] != "true" {
			continue
		}
		none = false
		var ports []string
		for _, p := range svc.Spec.Ports {
			ports = append(ports, portText(p.Name, p.Port, p.Protocol))
		}
		line := svc.Namespace + "/" + svc.Name + " " + dash(strings.Join(ports, ","))
		for _, a := range []string{localDiscovery, remoteDiscovery} {
			if members, is := svc.Annotations[a]; is {
				line += " " + strings.TrimSuffix(second(splitName(a)), "-discovery") + "=" + members
			}
		}
		for _, f := range show {
			switch f {
			case "labels":
				line += " labels=" + labels(svc.Labels)
			case "annotations":
				line += " annotations=" + labels(svc.Annotations)
			default:
				s.t.Fatalf("mirrors: unknown field %s", f)
			}
		}
		fmt.Fprintln(&s.out, line)
		for _, e := range decode[corev1.Endpoints](s, cluster, "endpoints") { //nolint:staticcheck // mirrors have them
			if e.Namespace == svc.Namespace && e.Name == svc.Name {
				fmt.Fprintln(&s.out, "  endpoints"+subsets(e))
			}
		}
	}
	if none {
		fmt.Fprintln(&s.out, "no mirrors")
	}
}

func subsets(e *corev1.Endpoints) (text string) { //nolint:staticcheck // mirrors have them
	for _, subset := range e.Subsets {
		for _, a := range subset.Addresses {
			text += " " + a.IP
		}
		for _, a := range subset.NotReadyAddresses {
			text += " " + a.IP + "(not-ready)"
		}
		for _, p := range subset.Ports {
			text += " " + portText(p.Name, p.Port, p.Protocol)
		}
	}
	if text == "" {
		return " none"
	}
	return text
}

// printHolders prints the replicas that hold a Lease of a cluster, or any.
func (s *scenario) printHolders(cluster, name string) {
	s.t.Helper()
	holders := map[string]bool{}
	for _, l := range decode[coordinationv1.Lease](s, cluster, leaseResource) {
		if h := l.Spec.HolderIdentity; h != nil && *h != "" && (name == "" || l.Name == name) {
			replica, _, _ := strings.Cut(*h, "_")
			holders[replica] = true
		}
	}
	if len(holders) == 0 {
		holders["nobody"] = true
	}
	fmt.Fprintln(&s.out, "held by "+strings.Join(slices.Sorted(maps.Keys(holders)), " "))
}

// writes returns how often replicas have asked to write a resource since it was called last.
func (s *scenario) writes(cluster, resource string) (text string) {
	for _, verb := range []string{"create", "update", "patch", "delete"} {
		key, now := cluster+" "+verb+" "+resource, s.network.Server(cluster).Requests(verb, resource)
		if n := now - s.written[key]; n > 0 {
			text += fmt.Sprintf(" %s=%d", verb, n)
		}
		s.written[key] = now
	}
	if text == "" {
		return " not written"
	}
	return text
}

// printLists prints whether replicas have listed a resource since this was printed last.
func (s *scenario) printLists(cluster, resource string) {
	server := s.network.Server(cluster)
	key := cluster + " list " + resource
	now := server.Requests("list", resource) + server.Requests("watch", resource) // which may begin with a list
	switch before, counted := s.written[key]; {
	case counted && now > before:
		fmt.Fprintln(&s.out, resource+" was listed")
	case counted:
		fmt.Fprintln(&s.out, resource+" was not listed")
	}
	s.written[key] = now
}

// printStatus prints the Services in the status of a Link.
func (s *scenario) printStatus(name string) {
	s.t.Helper()
	o := s.linkObject(name)
	none := true
	for _, list := range []string{"mirrorServices", "federatedServices"} {
		entries, _, _ := unstructured.NestedSlice(o.Object, "status", list)
		for _, e := range entries {
			none = false
			e := e.(map[string]any)
			at := func(of map[string]any, ref string) string {
				namespace, _, _ := unstructured.NestedString(of, ref, "namespace")
				name, found, _ := unstructured.NestedString(of, ref, "name")
				if !found {
					return "-"
				}
				return namespace + "/" + name
			}
			conditions, _, _ := unstructured.NestedSlice(e, "conditions")
			for _, c := range conditions {
				c := c.(map[string]any)
				fmt.Fprintf(&s.out, "%s %s->%s %s=%s %s\n", strings.TrimSuffix(list, "Services"), at(e, "remoteRef"),
					at(c, "localRef"), c["type"], c["status"], c["reason"])
			}
		}
	}
	if none {
		fmt.Fprintln(&s.out, "no Services")
	}
}

// printEvents prints the Events of a cluster, in any order.
func (s *scenario) printEvents(cluster string) {
	s.t.Helper()
	counts := map[string]int{}
	for _, resource := range []string{"events", "events.events.k8s.io"} {
		for _, o := range s.network.Server(cluster).List(resource) {
			about, _, _ := unstructured.NestedStringMap(o.Object, "involvedObject")
			if about == nil {
				about, _, _ = unstructured.NestedStringMap(o.Object, "regarding")
			}
			counts[fmt.Sprintf("%s %s %s/%s/%s", o.Object["type"], o.Object["reason"],
				about["kind"], about["namespace"], about["name"])]++
		}
	}
	if len(counts) == 0 {
		fmt.Fprintln(&s.out, "no Events")
	}
	for _, event := range sortedKeys(counts) {
		fmt.Fprintf(&s.out, "%s x%d\n", event, counts[event])
	}
}

func (s *scenario) linkObject(name string) *unstructured.Unstructured {
	s.t.Helper()
	o := s.network.Server(home).Get(linkResource, first(splitName(name)), second(splitName(name)))
	if o == nil {
		s.t.Fatalf("no Link %s", name)
	}
	return o
}

// printObject prints fields of an object as JSON.
func (s *scenario) printObject(cluster, kind, name string, paths []string) {
	s.t.Helper()
	namespace, name := namespaced(name)
	o := s.network.Server(cluster).Find(kind, namespace, s.objectName(cluster, namespace, name))
	if o == nil {
		fmt.Fprintln(&s.out, "absent")
		return
	}
	if len(paths) == 0 {
		fmt.Fprintln(&s.out, "exists")
	}
	s.printFields(o.Object, paths)
}

func (s *scenario) printFields(object map[string]any, paths []string) {
	s.t.Helper()
	for _, path := range paths {
		value, _, _ := unstructured.NestedFieldNoCopy(object, strings.Split(path, ".")...)
		text, err := json.Marshal(value)
		if err != nil {
			s.t.Fatal(err)
		}
		fmt.Fprintf(&s.out, "%s=%s\n", path, text)
	}
}

// namespaced returns namespace and name of NAMESPACE/NAME, or of NAME in no namespace.
func namespaced(text string) (namespace, name string) {
	namespace, name, found := strings.Cut(text, "/")
	if !found {
		return "", namespace
	}
	return namespace, name
}

// patch merges JSON into an object, as another client.
func (s *scenario) patch(cluster, kind, name, patch string) {
	s.t.Helper()
	namespace, name := namespaced(name)
	server := s.network.Server(cluster)
	o := server.Find(kind, namespace, s.objectName(cluster, namespace, name))
	if s.needs(o != nil, "patch: cluster %s has no %s %s", cluster, kind, name); o == nil {
		return
	}
	before, err := o.MarshalJSON()
	if err != nil {
		s.t.Fatal(err)
	}
	after, err := jsonpatch.MergePatch(before, []byte(patch))
	if err != nil {
		s.t.Fatalf("patch %s: %v", patch, err)
	}
	changed := &unstructured.Unstructured{}
	if err := changed.UnmarshalJSON(after); err != nil {
		s.t.Fatal(err)
	}
	server.Apply(changed)
}

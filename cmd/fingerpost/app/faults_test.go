package app_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
)

// slicesOfService is over how many slices the endpoints of a Service are spread.
const slicesOfService = 2

// endpoints makes a Service have these endpoints, each a Pod with a number and an address of its own in the
// cluster: a number with ! is not ready, one with ~ is terminating, and one with ^ is in another slice than without.
// The Service is created if it does not exist, as are its Pods; Pods that are not named are deleted after they have
// left their slices. All Pods are meshed.
func (s *scenario) endpoints(cluster, namespace, name string, numbers []string) {
	s.t.Helper()
	s.endpointsOnly(cluster, namespace, name, numbers)
	if server := s.network.Server(cluster); server.Get("services", namespace, name) == nil {
		port := map[string]any{"name": "http", "port": int64(80), "protocol": "TCP"}
		s.applyObject(cluster, "v1", "Service", namespace, name, nil,
			map[string]any{"spec": map[string]any{"ports": []any{port}}})
	}
}

// endpointsOnly does it for a Service that exists, or not any more: Kubernetes deletes what it leaves behind.
func (s *scenario) endpointsOnly(cluster, namespace, name string, numbers []string) {
	s.t.Helper()
	server := s.network.Server(cluster)
	exist := map[string]bool{}
	endpoints := make([][]any, slicesOfService)
	for _, number := range unfold(numbers) {
		n, err := strconv.Atoi(strings.TrimRight(number, "!~^*"))
		if err != nil {
			s.t.Fatalf("endpoints: %v", err)
		}
		workload, address := fmt.Sprintf("%s-%d", name, n), podAddress(cluster, name, n)
		ready, kind := !strings.ContainsAny(number, "!~"), "Pod"
		if strings.Contains(number, "*") {
			kind, address = linkerd.ExternalWorkloadKind, externalNet+strings.TrimPrefix(address, podNet)
		}
		exist[kind+" "+workload] = true
		s.applyWorkload(cluster, kind, namespace, workload, name, address, !strings.Contains(number, "!"))
		conditions := map[string]any{"ready": ready}
		if strings.Contains(number, "~") {
			conditions["serving"], conditions["terminating"] = true, true
		}
		i := (n + strings.Count(number, "^")) % slicesOfService
		endpoints[i] = append(endpoints[i], map[string]any{
			"addresses":  []any{address},
			"conditions": conditions,
			"targetRef":  map[string]any{"kind": kind, "namespace": namespace, "name": workload},
		})
	}
	s.settleEvents() // in which order the watches deliver Pods and slices is not known otherwise
	stays := server.Get("services", namespace, name) != nil
	if both := s.beside(cluster, namespace, name, endpoints); both != nil {
		s.writeSlices(cluster, namespace, name, both, stays)
	}
	s.writeSlices(cluster, namespace, name, endpoints, stays)
	s.settleEvents()
	for _, w := range slices.Concat(server.List("pods"), server.List(externalResource)) {
		if w.GetNamespace() == namespace && w.GetLabels()["app"] == name && !exist[w.GetKind()+" "+w.GetName()] {
			server.Delete(w.GetKind(), namespace, w.GetName())
		}
	}
}

// beside returns the endpoints of slices with those that move to another one in both, as Kubernetes may have them for a
// time; nil if none moves. Otherwise a replica that is cut off in between has read, as the cluster's word, that one
// which moves is gone.
func (s *scenario) beside(cluster, namespace, name string, endpoints [][]any) (both [][]any) {
	addressOf := func(endpoint any) string {
		of, _ := endpoint.(map[string]any)
		return fmt.Sprint(of["addresses"])
	}
	in := map[string]int{}
	for i, all := range endpoints {
		for _, endpoint := range all {
			in[addressOf(endpoint)] = i
		}
	}

	moves := false
	for i, all := range endpoints {
		both = append(both, slices.Clone(all))
		old := s.network.Server(cluster).Get(sliceResource, namespace, fmt.Sprintf("%s-%d", name, i))
		if old == nil {
			continue
		}
		had, _ := old.Object["endpoints"].([]any)
		for _, endpoint := range had {
			if to, stays := in[addressOf(endpoint)]; stays && to != i {
				at := slices.IndexFunc(endpoints[to], func(e any) bool { return addressOf(e) == addressOf(endpoint) })
				both[i], moves = append(both[i], endpoints[to][at]), true
			}
		}
	}
	if !moves {
		return nil
	}
	return both
}

// writeSlices writes the slices of a Service.
func (s *scenario) writeSlices(cluster, namespace, name string, endpoints [][]any, stays bool) {
	s.t.Helper()
	isEmpty := !slices.ContainsFunc(endpoints, func(all []any) bool { return len(all) > 0 })
	for i, all := range endpoints {
		slice := fmt.Sprintf("%s-%d", name, i)
		ports := []any{map[string]any{"name": "http", "port": int64(8080), "protocol": "TCP"}}
		if len(all) == 0 {
			if i > 0 || !isEmpty || !stays {
				s.network.Server(cluster).Delete("EndpointSlice", namespace, slice)
				continue
			}
			all, ports = []any{}, []any{} // as Kubernetes leaves one of the slices of a Service without Pods
		}
		s.applyObject(cluster, "discovery.k8s.io/v1", "EndpointSlice", namespace, slice,
			map[string]any{"kubernetes.io/service-name": name}, map[string]any{
				"addressType": "IPv4", "endpoints": all, "ports": ports,
			})
	}
}

// applyWorkload creates the Pod or ExternalWorkload of an endpoint, unless it is there as it should be.
func (s *scenario) applyWorkload(cluster, kind, namespace, name, service, address string, ready bool) {
	s.t.Helper()
	isReady := map[string]any{"type": "Ready", "status": map[bool]string{true: "True", false: "False"}[ready]}
	status := map[string]any{"conditions": []any{isReady}}
	version, resource, labels, spec := "v1", "pods", map[string]any{"app": service}, map[string]any{}
	switch kind {
	case "Pod":
		labels[linkerd.ControlPlaneLabel] = ours
		spec["containers"] = []any{map[string]any{"name": "app", "image": "app"}}
		status["phase"], status["podIP"], status["podIPs"] = "Running", address, []any{map[string]any{"ip": address}}
	default:
		version, resource = linkerd.ExternalWorkloads.WithVersion("v1beta1").GroupVersion().String(), externalResource
		spec["meshTLS"] = map[string]any{"identity": externalIdentity(cluster), "serverName": "vm.test"}
		spec["workloadIPs"] = []any{map[string]any{"ip": address}}
		spec["ports"] = []any{map[string]any{"name": "linkerd-proxy", "port": int64(4143), "protocol": "TCP"}}
	}
	old := s.network.Server(cluster).Get(resource, namespace, name)
	if old == nil || !reflect.DeepEqual(old.Object["status"], status) {
		s.applyObject(cluster, version, kind, namespace, name, labels, map[string]any{"spec": spec, "status": status})
	}
}

// externalIdentity is that of the ExternalWorkloads of a cluster.
func externalIdentity(cluster string) string { return "spiffe://" + externalDomain(cluster) + "/vm" }

// externalDomain is its trust domain, which is that of the cluster in most histories.
func externalDomain(cluster string) string {
	if byLink(cluster) {
		return trust
	}
	return cluster + ".test"
}

// settleEvents waits until every event was delivered, at the same instant. Histories draw any order.
func (s *scenario) settleEvents() {
	if s.watch == nil {
		synctest.Wait()
	}
}

// unfold puts numbers in the place of FIRST-LAST.
func unfold(numbers []string) (all []string) {
	for _, number := range numbers {
		first, last, isRange := strings.Cut(number, "-")
		if !isRange {
			all = append(all, number)
			continue
		}
		from, _ := strconv.Atoi(first) // what is no number is refused by who reads it
		to, _ := strconv.Atoi(last)
		for n := from; n <= to; n++ {
			all = append(all, strconv.Itoa(n))
		}
	}
	return all
}

// What addresses of workloads begin with.
const (
	podNet      = "10."
	externalNet = "11."
)

// podAddress returns the address of a Pod: no other one has it.
func podAddress(cluster, service string, n int) string {
	return fmt.Sprintf(podNet+"%d.%d.%d", octet(cluster), octet(service)+n/200, n%200+1)
}

// octet makes a number of a name; those of the names that are in use differ.
func octet(name string) (n int) {
	for _, c := range []byte(name) {
		n = (n*7 + int(c)) % 241
	}
	return n
}

func (s *scenario) applyObject(cluster, version, kind, namespace, name string, labels, parts map[string]any) {
	s.t.Helper()
	metadata := map[string]any{"name": name, "namespace": namespace}
	if labels != nil {
		metadata["labels"] = labels
	}
	parts["apiVersion"], parts["kind"], parts["metadata"] = version, kind, metadata
	s.network.Server(cluster).Apply(&unstructured.Unstructured{Object: parts})
}

// loginPage is what something between us and an API server answers in its place.
func loginPage(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html")
	fmt.Fprint(w, "<html><body>Please log in</body></html>")
}

// disk does something to the directory in which a replica keeps its state: it breaks, lets nothing be
// created, is repaired, tears what was written last, or is lost.
func (s *scenario) disk(replica, what string) {
	s.t.Helper()
	dir := s.stateDirOf(replica)
	s.damaged[replica] = true
	var err error
	switch what {
	case "break": // a file is in its place: nothing can be read or written below it
		if err = os.RemoveAll(dir); err == nil {
			err = os.WriteFile(dir, nil, 0o600)
		}
	case "read-only": // of no file that can be created: root may write into a directory whose mode forbids it
		if err = os.RemoveAll(dir); err == nil {
			err = os.Symlink("/dev/fd", dir)
		}
	case "repair", "lose":
		err = os.RemoveAll(dir)
	case "tear":
		var files []string
		files, err = filepath.Glob(filepath.Join(dir, "*"))
		for _, file := range files {
			if info, statErr := os.Stat(file); statErr == nil {
				err = os.Truncate(file, info.Size()/2)
			}
		}
	default:
		s.t.Fatalf("disk: unknown argument %s", what)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

package app_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
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
		n, err := strconv.Atoi(strings.TrimRight(number, "!~^"))
		if err != nil {
			s.t.Fatalf("endpoints: %v", err)
		}
		pod, address := fmt.Sprintf("%s-%d", name, n), podAddress(cluster, name, n)
		ready := !strings.ContainsAny(number, "!~")
		labels := map[string]any{"app": name, linkerd.ControlPlaneLabel: ours}
		exist[pod] = true
		status := map[string]any{
			"phase": "Running", "podIP": address, "podIPs": []any{map[string]any{"ip": address}},
			"conditions": []any{map[string]any{
				"type": "Ready", "status": map[bool]string{true: "False", false: "True"}[strings.Contains(number, "!")],
			}},
		}
		if old := server.Get("pods", namespace, pod); old == nil || !reflect.DeepEqual(old.Object["status"], status) {
			s.applyObject(cluster, "v1", "Pod", namespace, pod, labels, map[string]any{
				"spec":   map[string]any{"containers": []any{map[string]any{"name": "app", "image": "app"}}},
				"status": status,
			})
		}
		conditions := map[string]any{"ready": ready}
		if strings.Contains(number, "~") {
			conditions["serving"], conditions["terminating"] = true, true
		}
		i := (n + strings.Count(number, "^")) % slicesOfService
		endpoints[i] = append(endpoints[i], map[string]any{
			"addresses":  []any{address},
			"conditions": conditions,
			"targetRef":  map[string]any{"kind": "Pod", "namespace": namespace, "name": pod},
		})
	}
	s.settleEvents() // in which order the watches deliver Pods and slices is not known otherwise
	stays := server.Get("services", namespace, name) != nil
	for i, all := range endpoints {
		slice := fmt.Sprintf("%s-%d", name, i)
		ports := []any{map[string]any{"name": "http", "port": int64(8080), "protocol": "TCP"}}
		if len(all) == 0 {
			if i > 0 || len(exist) > 0 || !stays {
				server.Delete("EndpointSlice", namespace, slice)
				continue
			}
			all, ports = []any{}, []any{} // as Kubernetes leaves one of the slices of a Service without Pods
		}
		s.applyObject(cluster, "discovery.k8s.io/v1", "EndpointSlice", namespace, slice,
			map[string]any{"kubernetes.io/service-name": name}, map[string]any{
				"addressType": "IPv4", "endpoints": all, "ports": ports,
			})
	}
	s.settleEvents()
	for _, pod := range server.List("pods") {
		if pod.GetNamespace() == namespace && pod.GetLabels()["app"] == name && !exist[pod.GetName()] {
			server.Delete("Pod", namespace, pod.GetName())
		}
	}
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

// podAddress returns the address of a Pod: no other one has it.
func podAddress(cluster, service string, n int) string {
	return fmt.Sprintf("10.%d.%d.%d", octet(cluster), octet(service)+n/200, n%200+1)
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

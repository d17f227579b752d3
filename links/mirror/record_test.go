package mirror

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apitest"
)

// filled returns a Service as its user has filled it: with 200 KiB each of annotations, of labels and of what is listed
// of the fields of three managers, and with 2,000 ports and as many labels of Pods that it selects.
func filled(name string, marks map[string]string) *corev1.Service {
	const text = 200 << 10
	svc := service(name, maps.Clone(marks))
	svc.UID = types.UID(strings.Repeat("u", 36))
	svc.Annotations, svc.Spec.Selector = map[string]string{}, map[string]string{}
	svc.Annotations["example.com/large"] = strings.Repeat("x", text)
	svc.Annotations[linksAnnotation] = strings.Repeat("y", text)
	for i := range text / 40 {
		svc.Labels[fmt.Sprintf("example.com/label-%d", i)] = "some-value"
	}
	for i := range 2000 {
		svc.Spec.Ports = append(svc.Spec.Ports, tcp(fmt.Sprintf("port-%d", i), int32(i+1)))
		svc.Spec.Selector[fmt.Sprintf("example.com/selected-%d", i)] = "some-value"
	}
	svc.ManagedFields = filledFields(text)
	return svc
}

func filledFields(text int) (all []metav1.ManagedFieldsEntry) {
	for _, manager := range []string{fieldManager, "controller", "kubectl"} {
		labels := fmt.Sprintf(`"f:%s":{},"f:%s":{}`, mirroredLabel, strings.Repeat("x", text))
		all = append(all, metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{` + labels + `}}}`),
		})
	}
	return all
}

// Whatever users put into Services and Endpoints of the local cluster, a record takes a few hundred bytes, or less
// than it has in text where something is made of it.
func TestRecordsAreSmall(t *testing.T) {
	ours := map[string]string{managedByLabel: productName}
	fake := map[string]string{mirroredLabel: "true", clusterLabel: "east"}
	for name, c := range map[string]struct {
		marks map[string]string
		most  int
	}{
		"plain": {plain, 1 << 10}, "a member": {joins, 2 << 10}, "ours": {ours, 2 << 10}, "a mirror": {fake, 2 << 10},
	} {
		kept := apitest.Kept(20, func(i int) *corev1.Service {
			record, _ := trimLocal(filled(fmt.Sprint("web-", i), c.marks))
			return record
		})
		if t.Logf("of a Service that is %s %d bytes are kept", name, kept); kept > c.most {
			t.Errorf("of a Service that is %s %d bytes are kept, at most %d may be", name, kept, c.most)
		}
	}

	kept := apitest.Kept(20, func(i int) *endpoints {
		whole := &endpoints{ObjectMeta: filled(fmt.Sprint("web-", i), fake).ObjectMeta}
		for range 1000 {
			whole.Subsets = append(whole.Subsets, subsetOf([]string{"192.0.2.1", "192.0.2.2"}, false))
		}
		record, _ := trimEndpoints(whole)
		return record
	})
	if t.Logf("of Endpoints %d bytes are kept", kept); kept > 2<<10 {
		t.Errorf("of Endpoints %d bytes are kept", kept)
	}
}

// What is kept of a Service up to the limit takes little more than its text.
func TestLargestRecord(t *testing.T) {
	kept := apitest.Kept(50, func(int) *corev1.Service {
		svc := service("web", maps.Clone(joins))
		svc.Annotations = map[string]string{}
		for i := range maxKept/1024 - 1 {
			svc.Annotations[fmt.Sprint("example.com/", i)] = strings.Repeat("x", 1000)
		}
		record, _ := trimLocal(svc)
		if isLarge(record) {
			t.Error("it is large")
		}
		return record
	})
	if t.Logf("%d bytes are kept", kept); kept > 2*maxKept {
		t.Errorf("%d bytes are kept, the limit of their text is %d", kept, maxKept)
	}
}

// That users name clusters in what looks like ours costs one entry for each Service, and no event of a linked cluster
// is missed for it.
func TestClustersThatAreNotLinked(t *testing.T) {
	term := newTerm(&Mirror{log: logr.Discard()}, nil, nil, nil)
	term.linkSet.Store(&linkSet{links: []*link{linkFor("east", 1), linkFor("west", 2)}})
	add := func(svc *corev1.Service) api.Key {
		term.services.Update(svc)
		return api.Key{Namespace: svc.Namespace, Name: svc.Name}
	}
	mirror := add(mirrored("web-east", "east"))
	union := add(joined("web@east,web@west", "web"))
	var names []string
	for i := range 2500 {
		names = append(names, fmt.Sprintf("c%d=mc/a", i))
	}
	fake := add(written(mirrored("fake", "nowhere"), strings.Join(names, ",")))

	term.endpoints.Update(leftOf(mirrored("web-east", "east"))["web-east"]) // of the Service that is there
	term.endpoints.Update(leftOf(mirrored("left-west", "west"))["left-west"])
	left := api.Key{Namespace: "shop", Name: "left-west"}

	if n := len(term.byCluster.services); n != 3 {
		t.Errorf("%d clusters are indexed, want two and one for all others", n)
	}
	for cluster, want := range map[string][]api.Key{
		"east": {fake, mirror, union}, "west": {fake, left, union}, "c7": {fake}, "nowhere": {fake},
	} {
		got := term.dependentsOf(cluster)
		slices.SortFunc(got, api.Key.Compare)
		slices.SortFunc(want, api.Key.Compare)
		if !slices.Equal(got, want) {
			t.Errorf("%v depend on %s, want %v", got, cluster, want)
		}
	}
	term.services.Replace(nil)
	if got := term.dependentsOf("east"); !slices.Equal(got, []api.Key{mirror}) {
		t.Errorf("without the Services %v depend on east", got)
	}
	term.endpoints.Replace(nil)
	if n := len(term.byCluster.services) + len(term.byCluster.values); n > 0 {
		t.Errorf("%d entries are left", n)
	}
}

// Managers count as before: own entries whole, and that another one has written the object as a mirror.
func TestOwnEntries(t *testing.T) {
	type entry = metav1.ManagedFieldsEntry
	by := func(manager string, operation metav1.ManagedFieldsOperationType, fields string) entry {
		return entry{Manager: manager, Operation: operation, FieldsV1: metav1.NewFieldsV1(fields), Time: &metav1.Time{}}
	}
	const update, applied = metav1.ManagedFieldsOperationUpdate, metav1.ManagedFieldsOperationApply
	marks := `{"f:metadata":{"f:labels":{".":{},"f:app":{},"f:` + mirroredLabel + `":{}},"f:annotations":{}}}`
	own := `{"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:ports":{}}}`
	for name, c := range map[string]struct {
		entry  entry
		is     bool // it is kept
		writes bool // it is that of one who updates
	}{
		"ours":             {by(fieldManager, applied, own), true, false},
		"ours at first":    {by(fieldManager, update, own), true, true},
		"Linkerd's":        {by("controller", update, marks), true, true},
		"another's":        {by("kubectl", update, own), false, false},
		"applied as such":  {by("argocd", applied, marks), false, false},
		"malformed":        {by("kubectl", update, `{"f:metadata`), false, false},
		"of another shape": {by("kubectl", update, `{"f:metadata":{"f:labels":7}}`), false, false},
	} {
		svc := mirrored("web-east", "east")
		svc.ManagedFields = []entry{c.entry, {Manager: fieldManager, Subresource: "status"}}
		record, _ := trimLocal(svc)
		if is := len(record.ManagedFields) > 0; is != c.is {
			t.Errorf("%s: it is kept: %t", name, is)
		}
		if writes := owner.HasUpdaters(record); writes != c.writes || writes != owner.HasUpdaters(svc) {
			t.Errorf("%s: it is that of one who updates: %t", name, writes)
		}
		fields := [][]string{{"f:metadata", "f:labels", "f:app"}}
		if got, want := owner.IsApplied(record, "", fields), owner.IsApplied(svc, "", fields); got != want {
			t.Errorf("%s: it is applied: %t, want %t", name, got, want)
		}
	}
}

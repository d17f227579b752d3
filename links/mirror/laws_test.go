package mirror

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// names are those that the Services of drawScene have, and their mirrors.
var names = []string{"web-east", "web-west", "web-west-east", "db-0-east", "web-federated", "probe-east", "web"}

// drawScene draws what may exist in two linked clusters and here.
func drawScene(t *rapid.T) scene {
	flip := func(label string) bool { return rapid.Bool().Draw(t, label) }
	rarely := func(label string) bool { return rapid.IntRange(0, 5).Draw(t, label) == 3 }
	s := scene{
		headless: flip("headless"), partial: rarely("not all Links are known"), localSkip: rarely("local skip"),
		remote: map[string][]*corev1.Service{}, ready: map[string]readiness{}, held: map[string]bool{},
		seen: map[string]bool{"west": flip("west was seen")}, foreign: map[string]bool{"west": flip("west is foreign")},
		gateways: map[string]gatewayState{"east": {addresses: []string{"192.0.2.1"}}},
		left:     map[string]*endpoints{},
	}
	if rarely("no namespace") {
		s.missing = []string{"shop"}
	}
	marks := rapid.SampledFrom([]map[string]string{exported, direct, joins, plain})
	for i, cluster := range []string{"east", "west"} {
		if !rarely("not linked") {
			l := linkFor(cluster, i+1)
			l.skipReason = rapid.SampledFrom([]string{"", "", "", "Linkerd does it"}).Draw(t, "skipped")
			l.Problem = rapid.SampledFrom([]string{"", "", "", "a field is invalid"}).Draw(t, "problem")
			s.links = append(s.links, l)
		}
		if rarely("never synced") {
			continue
		}
		s.held[cluster], s.remote[cluster] = rarely("held"), nil
		for _, name := range []string{"web", "web-west", "db"} {
			if !rarely("absent") {
				svc := service(name, marks.Draw(t, "marks"))
				if flip("clusterIP None") {
					svc.Spec.ClusterIP = corev1.ClusterIPNone
				}
				s.remote[cluster] = append(s.remote[cluster], svc)
				s.ready[cluster+" shop/"+name] = rapid.SampledFrom([]readiness{
					{},
					{known: true},
					{known: true, endpoints: true, ready: true},
					{known: true, endpoints: true, hostnames: map[string]bool{"db-0": true}},
				}).Draw(t, "readiness")
			}
		}
	}
	for _, name := range append([]string{"db-east"}, names...) {
		switch drawn := drawLocal(t, name); {
		case len(drawn) > 0 && rarely("Endpoints alone"):
			maps.Copy(s.left, leftOf(drawn[0]))
		default:
			s.local = append(s.local, drawn...)
		}
	}
	return s
}

// drawLocal draws the Service of a name in the local cluster, or none.
func drawLocal(t *rapid.T, name string) []*corev1.Service {
	var svc *corev1.Service
	switch rapid.IntRange(0, 5).Draw(t, name) {
	case 0:
		svc = service(name, plain)
	case 1:
		svc = service(name, joins)
	case 2:
		svc = mirrored(name, rapid.SampledFrom([]string{"east", "west"}).Draw(t, "mirror of"))
	case 3:
		svc = written(mirrored(name, "east"), "east=mc/east")
	case 4:
		svc = written(joined("web@east,web@west", "web"), "east=mc/east,west=mc/west")
		svc.Name = name
	default:
		return nil
	}
	if rapid.Bool().Draw(t, "clusterIP None") {
		svc.Spec.ClusterIP = corev1.ClusterIPNone
	} else {
		svc.Spec.ClusterIP = "10.96.0.1"
	}
	if rapid.Bool().Draw(t, "something of others") {
		annotations := map[string]string{"example.com/note": "1", corev1.LastAppliedConfigAnnotation: "{}"}
		maps.Copy(annotations, svc.Annotations)
		svc.Labels, svc.Annotations = maps.Clone(svc.Labels), annotations
		svc.Labels["team"], svc.Spec.IPFamilies = "a", []corev1.IPFamily{corev1.IPv4Protocol}
		svc.Spec.Selector, svc.Finalizers = map[string]string{"app": "web"}, []string{"example.com/held"}
	}
	return []*corev1.Service{svc}
}

// The laws of Plan.
//
//   - A Service that is not ours is neither changed nor deleted, nor are Endpoints without a Service.
//   - What was written for a cluster that is linked, and is unknown, is not deleted: neither a mirror nor a membership.
//   - Inputs that are equal lead to equal plans, and are not changed.
//   - Planning from what was applied gives the same Service again.
//   - What is kept of Services here is enough: it leads to the plans that all of them lead to.
func TestPlanLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		for _, name := range names {
			checkPlan(t, s, name)
		}
	})
}

func checkPlan(t *rapid.T, s scene, name string) {
	in := s.inputs(name)
	existing, before := in.existing, in.existing.DeepCopy()
	p := in.Plan()
	if existing != nil && !isOurs(existing) && (p.service != nil || !p.keepService) {
		t.Fatalf("a Service that is not ours is in the plan %s", summary(p))
	}
	if e := s.left[name]; e != nil && !isOurs(e) && !p.takesName() {
		t.Fatalf("Endpoints that are not ours are in the plan %s", summary(p))
	}
	if diff := cmp.Diff(before, existing); diff != "" {
		t.Fatalf("the existing Service was changed: %s", diff)
	}
	if diff := cmp.Diff(summary(p), summary(s.plan(name))); diff != "" {
		t.Fatalf("two plans from equal inputs differ: %s", diff)
	}
	checkUnknown(t, s, in, p)
	checkKept(t, s, name, p)
	for applied := range 3 { // one deletes what is of another kind, one creates, and one has nothing to do
		next := s.apply(name, p)
		if next == existing || next != nil && existing != nil && signService(existing.DeepCopy()) == signService(next) {
			break
		} else if applied == 2 {
			t.Fatalf("planning from what was applied leads to another Service: %s", cmp.Diff(existing, next))
		}
		s.local = slices.DeleteFunc(slices.Clone(s.local), func(o *corev1.Service) bool { return o.Name == name })
		if next != nil {
			s.local = append(s.local, next)
		}
		existing, p = next, s.plan(name)
	}
}

// checkKept compares a plan with the one from what is kept of Services here.
func checkKept(t *rapid.T, s scene, name string, whole namePlan) {
	local, left := s.local, s.left
	s.local, s.left = nil, map[string]*endpoints{}
	for _, svc := range local {
		record, _ := trimLocal(svc)
		s.local = append(s.local, record)
	}
	for name, e := range left {
		s.left[name], _ = trimEndpoints(e)
	}
	kept := s.plan(name)
	if diff := cmp.Diff(whole, kept, cmp.AllowUnexported(namePlan{}, serviceResult{})); diff != "" {
		t.Fatalf("what is kept leads to another plan (+ of what is kept): %s", diff)
	}
}

// apply returns what exists after a plan was applied.
func (s scene) apply(name string, p namePlan) *corev1.Service {
	existing := s.readLocal(api.Key{Namespace: "shop", Name: name})
	switch {
	case p.keepService:
		return existing
	case existing != nil && p.service != nil && isHeadless(existing) != isHeadless(p.service):
		return nil
	}
	return p.service
}

// checkUnknown fails if a plan deletes what an unknown cluster has.
func checkUnknown(t *rapid.T, s scene, in *inputs, p namePlan) {
	object := in.object()
	if object == nil || !isOurs(object) {
		return
	}
	all := s.linkSet()
	isUnknown := func(cluster string) bool {
		_, synced := s.remote[cluster]
		return all.linkOf(cluster) != nil && (!synced || s.held[cluster])
	}
	cluster, name := object.GetLabels()[clusterLabel], object.GetName()
	suffixed := len(name) > len(cluster) && name[len(name)-len(cluster):] == cluster
	if cluster != "" && suffixed && isUnknown(cluster) && p.service == nil && !p.keepService && !isFound(s, object) {
		t.Fatalf("%s is deleted, and %s is unknown", name, cluster)
	}
	existing := in.existing
	if existing == nil || name != "web-federated" || cluster != "" || p.keepService {
		return
	}
	for _, member := range []string{"east", "west"} {
		_, found := s.readRemote(member, api.Key{Namespace: "shop", Name: "web"})
		was := membershipOf(existing).has("web", member)
		if stays := p.service != nil && membershipOf(p.service).has("web", member); was && !stays &&
			isUnknown(member) && found == unknown {
			t.Fatalf("%s is unknown, and is a member no longer: %s", member, summary(p))
		}
	}
}

// isFound reports whether the remote Service of a mirror is known to exist, although not all of its cluster are known.
func isFound(s scene, mirror metav1.Object) bool {
	cluster := mirror.GetLabels()[clusterLabel]
	name := mirror.GetName()[:len(mirror.GetName())-len(cluster)-1]
	_, found := s.readRemote(cluster, api.Key{Namespace: "shop", Name: name})
	return found == present
}

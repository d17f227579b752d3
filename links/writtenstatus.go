package links

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply/status"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/internal/words"
)

// A writtenStatus is the part of a Link's status that we write. It is immutable.
type writtenStatus struct {
	conditions       []metav1.Condition
	MirroredServices // with entries of other controllers
}

// A MirrorStatus is what package mirror reports about one Link. Transition times in it are ignored.
type MirrorStatus struct {
	Condition metav1.Condition  // of the type Mirrors
	Services  *MirroredServices // nil: what was handed over before stays
	Unmatched []string          // Services whose label exports them, and that no selector of the Link matches

	unlistedMirrored, unlistedFederated int // entries that the bounds of the lists leave out
}

// MirroredServices are the outcomes for the Services that a Link selects.
type MirroredServices struct {
	Mirrored, Federated []ServiceStatus
}

// A ServiceStatus reports in a Link whether one Service of its cluster is mirrored, in the shape that Linkerd's API
// has.
type ServiceStatus struct {
	ControllerName string             `json:"controllerName"`
	RemoteRef      ObjectRef          `json:"remoteRef"`
	Conditions     []ServiceCondition `json:"conditions,omitempty"`

	// The entry as it was read, if it has more than the fields above, or less: it is written as it is. Others may
	// have written it, or another version of this program.
	read map[string]any
}

// A ServiceCondition is a condition of a ServiceStatus.
type ServiceCondition struct {
	metav1.Condition
	LocalRef *ObjectRef `json:"localRef,omitempty"` // the Service here; nil if it is not mirrored
}

// localRef returns the Service that stands for the one of the cluster; nil if it is not mirrored.
func (s *ServiceStatus) localRef() *ObjectRef {
	for _, c := range s.Conditions {
		if c.LocalRef != nil {
			return c.LocalRef
		}
	}
	return nil
}

// condition returns the condition of a type; nil if there is none.
func (s *ServiceStatus) condition(kind string) *metav1.Condition {
	if s == nil {
		return nil
	}
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i].Condition
		}
	}
	return nil
}

// MarshalJSON implements [json.Marshaler].
func (s ServiceStatus) MarshalJSON() ([]byte, error) {
	if s.read != nil {
		return json.Marshal(s.read)
	}
	type fields ServiceStatus
	return json.Marshal(fields(s))
}

// readServiceStatus reads an entry. What cannot be read of it is empty.
func readServiceStatus(entry map[string]any) (s ServiceStatus) {
	type fields ServiceStatus
	var same map[string]any
	text, err := json.Marshal(entry)
	if err == nil {
		err = json.Unmarshal(text, (*fields)(&s))
	}

	if err == nil {
		text, err = json.Marshal(s)
	}
	if err == nil {
		err = utiljson.Unmarshal(text, &same)
	}

	if err != nil || !reflect.DeepEqual(same, entry) {
		s.read = entry
	}
	s.RemoteRef.normalize()
	for i := range s.Conditions {
		if local := s.Conditions[i].LocalRef; local != nil {
			local.normalize()
		}
	}
	return s
}

// An ObjectRef names an object in a status.
type ObjectRef struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// normalize gives a reference that was read the form in which we write it: the group that Kubernetes calls "" is
// core by default in Linkerd's schema.
func (r *ObjectRef) normalize() {
	if r.Group == "core" {
		r.Group = ""
	}
}

// Bounds of each of the two lists of Services in a status. An API server takes objects of up to 1.5 MB, and
// no status at all once it is larger.
const (
	maxListedServices = 1000
	maxListedBytes    = 350_000
	maxNamed          = 10 // Services that pages and checks name
)

// writable returns a MirrorStatus as it is written after another one, or nil: its lists are sorted and bounded, and
// the message of its condition counts what that leaves out.
func (m MirrorStatus) writable(before *MirrorStatus) *MirrorStatus {
	switch {
	case m.Services != nil:
		services := &MirroredServices{}
		services.Mirrored, m.unlistedMirrored = bounded(m.Services.Mirrored)
		services.Federated, m.unlistedFederated = bounded(m.Services.Federated)
		m.Services = services
	case before != nil:
		m.Services = before.Services
		m.unlistedMirrored, m.unlistedFederated = before.unlistedMirrored, before.unlistedFederated
	}

	message := status.Message(m.Condition.Message)
	if n := len(m.Unmatched); n > 0 {
		message += fmt.Sprintf("; no selector of the Link matches the label of %s, such as %s",
			words.Count(n, "Service"), m.Unmatched[0])
	}
	if n := m.unlistedMirrored; n > 0 {
		message += "; status.mirrorServices leaves out " + words.Count(n, "Service")
	}

	if n := m.unlistedFederated; n > 0 {
		message += "; status.federatedServices leaves out " + words.Count(n, "Service")
	}
	m.Condition.Message = message
	m.Unmatched = m.Unmatched[:min(len(m.Unmatched), maxNamed)]
	return &m
}

// exported returns what is shown of m, which may be nil.
func (m *MirrorStatus) exported() *MirrorReport {
	if m == nil {
		return nil
	}
	report := &MirrorReport{Condition: m.Condition, Unmatched: m.Unmatched}
	if m.Services == nil {
		return report
	}

	for _, s := range slices.Concat(m.Services.Mirrored, m.Services.Federated) {
		if s.localRef() == nil && len(report.NotMirrored) < maxNamed && len(s.Conditions) > 0 {
			c := s.Conditions[0]
			report.NotMirrored = append(report.NotMirrored,
				fmt.Sprintf("%s/%s: %s: %s", s.RemoteRef.Namespace, s.RemoteRef.Name, c.Reason, c.Message))
		}
	}
	return report
}

func (m *MirrorStatus) equal(o *MirrorStatus) bool {
	switch {
	case o == nil || !status.SameCondition(&m.Condition, &o.Condition) || !slices.Equal(m.Unmatched, o.Unmatched):
		return false
	case m.Services == nil || o.Services == nil:
		return m.Services == o.Services
	default:
		return m.Services.sameServices(o.Services)
	}
}

// bounded returns the entries that a list in a status has room for, sorted by name, and how many it leaves
// out. Failures are listed first.
func bounded(all []ServiceStatus) (listed []ServiceStatus, leftOut int) {
	all = slices.Clone(all)
	byName := func(a, b ServiceStatus) int {
		return cmp.Or(
			strings.Compare(a.RemoteRef.Namespace, b.RemoteRef.Namespace),
			strings.Compare(a.RemoteRef.Name, b.RemoteRef.Name))
	}
	slices.SortFunc(all, func(a, b ServiceStatus) int {
		return cmp.Or(cmp.Compare(statusRank(a), statusRank(b)), byName(a, b))
	})

	size := 0
	for i := range all {
		size += all[i].size()
		if i == maxListedServices || size > maxListedBytes {
			leftOut = len(all) - i
			all = all[:i]
			break
		}
	}

	slices.SortFunc(all, byName)
	return all, leftOut
}

// statusRank is lower for a failure.
func statusRank(s ServiceStatus) int {
	if s.localRef() == nil {
		return 0
	}
	return 1
}

// size returns about how many bytes of JSON an entry takes.
func (s *ServiceStatus) size() int {
	const fixed = 270
	n := fixed + len(s.RemoteRef.Namespace) + len(s.RemoteRef.Name)
	for _, c := range s.Conditions {
		n += len(c.Reason) + len(c.Message)
		if c.LocalRef != nil {
			n += len(c.LocalRef.Namespace) + len(c.LocalRef.Name)
		}
	}
	return n
}

// SetMirrorStatus hands over what package mirror reports about a Link, in a term of the local cluster's
// Lease. The statusWriter of that term writes it.
func (r *Reconciler) SetMirrorStatus(link api.Key, uid string, s MirrorStatus) {
	r.mu.Lock()
	p := r.reportOf(link, uid)
	if p == nil {
		r.mu.Unlock()
		return
	}

	next := s.writable(p.mirror)
	isNew := !next.equal(p.mirror)
	if isNew {
		p.mirror = next
	}
	r.mu.Unlock()

	if isNew {
		r.enqueueStatus(link)
	}
}

// ForgetMirrorStatuses forgets what was handed over, at the end of a term.
func (r *Reconciler) ForgetMirrorStatuses() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.reports {
		p.mirror = nil
	}
}

// wantedStatus returns what the status of a Link should be.
func wantedStatus(
	link *Link, conditions []metav1.Condition, mirror *MirrorStatus, mirrors bool, now metav1.Time,
) writtenStatus {
	want := writtenStatus{slices.Clone(conditions), link.status.MirroredServices}
	switch shown := meta.FindStatusCondition(link.status.conditions, Mirrors); {
	case mirror != nil:
		want.conditions = append(want.conditions, mirror.Condition)
	case mirrors && shown != nil:
		want.conditions = append(want.conditions, *shown)
	}

	status.SetTransitionTimes(want.conditions, link.status.conditions, now)
	if mirror != nil && mirror.Services != nil {
		want.Mirrored = wantedServices(link.status.Mirrored, mirror.Services.Mirrored, now)
		want.Federated = wantedServices(link.status.Federated, mirror.Services.Federated, now)
	}
	return want
}

// wantedServices returns a list of Services as it should be: with our entries, and with those of other
// controllers as they are.
func wantedServices(present, ours []ServiceStatus, now metav1.Time) []ServiceStatus {
	shown := map[ObjectRef]*ServiceStatus{}
	var others []ServiceStatus
	for i, s := range present {
		if s.ControllerName == linkerd.ServiceMirrorController {
			shown[s.RemoteRef] = &present[i]
		} else {
			others = append(others, s)
		}
	}

	want := make([]ServiceStatus, 0, len(ours)+len(others))
	for _, s := range ours {
		s.Conditions = slices.Clone(s.Conditions)
		for i := range s.Conditions {
			c := &s.Conditions[i]
			status.SetTransitionTime(&c.Condition, shown[s.RemoteRef].condition(c.Type), now)
		}
		want = append(want, s)
	}
	return append(want, others...)
}

// Tree implements [status.Status]. A list that is empty now is sent as such, for another manager may own its entries.
func (s writtenStatus) Tree(shown writtenStatus) (map[string]any, error) {
	fields := map[string]any{}
	if len(s.conditions) > 0 {
		fields["conditions"] = s.conditions
	}
	if len(s.Mirrored)+len(shown.Mirrored) > 0 {
		fields["mirrorServices"] = append([]ServiceStatus{}, s.Mirrored...)
	}
	if len(s.Federated)+len(shown.Federated) > 0 {
		fields["federatedServices"] = append([]ServiceStatus{}, s.Federated...)
	}

	text, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	return tree, utiljson.Unmarshal(text, &tree)
}

// Contradicts implements [status.Status]. Condition types that are not ours are never compared, and a status without
// conditions is about the lists alone.
func (s writtenStatus) Contradicts(want writtenStatus) bool {
	isUnwanted := func(c metav1.Condition) bool {
		return isOwnCondition(c.Type) && meta.FindStatusCondition(want.conditions, c.Type) == nil
	}
	return len(want.conditions) > 0 && slices.ContainsFunc(s.conditions, isUnwanted) ||
		!status.Includes(s.conditions, want.conditions) || !s.sameServices(&want.MirroredServices)
}

// Same implements [status.Status].
func (s writtenStatus) Same(o writtenStatus) bool {
	return status.Includes(s.conditions, o.conditions) && status.Includes(o.conditions, s.conditions) &&
		s.sameServices(&o.MirroredServices)
}

func (s *MirroredServices) sameServices(o *MirroredServices) bool {
	return slices.EqualFunc(s.Mirrored, o.Mirrored, sameEntry) &&
		slices.EqualFunc(s.Federated, o.Federated, sameEntry)
}

// truncate returns a text as the message of a condition.
func truncate(text string) string { return status.Message(text) }

// sameEntry reports whether two entries are equal but for times.
func sameEntry(a, b ServiceStatus) bool {
	return a.ControllerName == b.ControllerName && a.RemoteRef == b.RemoteRef &&
		slices.EqualFunc(a.Conditions, b.Conditions, sameServiceCondition)
}

func sameServiceCondition(a, b ServiceCondition) bool {
	sameLocal := a.LocalRef == b.LocalRef ||
		a.LocalRef != nil && b.LocalRef != nil && *a.LocalRef == *b.LocalRef
	return a.Type == b.Type && status.SameCondition(&a.Condition, &b.Condition) && sameLocal
}

package links

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
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

// A ServiceStatus reports in a Link whether one Service of its cluster is mirrored.
type ServiceStatus struct {
	ControllerName string             `json:"controllerName"`
	RemoteRef      ObjectRef          `json:"remoteRef"`
	LocalRef       *ObjectRef         `json:"localRef,omitempty"` // nil if it is not mirrored
	Conditions     []metav1.Condition `json:"conditions"`
}

// An ObjectRef names an object in a status.
type ObjectRef struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
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
	message := truncate(m.Condition.Message)
	if n := len(m.Unmatched); n > 0 {
		message += fmt.Sprintf("; %d Services have a label that no selector of the Link matches, such as %s",
			n, m.Unmatched[0])
	}
	if n := m.unlistedMirrored; n > 0 {
		message += fmt.Sprintf("; status.mirrorServices leaves out %d Services", n)
	}
	if n := m.unlistedFederated; n > 0 {
		message += fmt.Sprintf("; status.federatedServices leaves out %d Services", n)
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
	r := &MirrorReport{Condition: m.Condition, Unmatched: m.Unmatched}
	if m.Services == nil {
		return r
	}
	for _, s := range slices.Concat(m.Services.Mirrored, m.Services.Federated) {
		if s.LocalRef == nil && len(r.NotMirrored) < maxNamed && len(s.Conditions) > 0 {
			c := s.Conditions[0]
			r.NotMirrored = append(r.NotMirrored,
				fmt.Sprintf("%s/%s: %s: %s", s.RemoteRef.Namespace, s.RemoteRef.Name, c.Reason, c.Message))
		}
	}
	return r
}

func (m *MirrorStatus) equal(o *MirrorStatus) bool {
	switch {
	case o == nil || !equalConditions(&m.Condition, &o.Condition) || !slices.Equal(m.Unmatched, o.Unmatched):
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
	if s.LocalRef == nil {
		return 0
	}
	return 1
}

// size returns about how many bytes of JSON an entry takes.
func (s *ServiceStatus) size() int {
	const fixed = 270
	n := fixed + len(s.RemoteRef.Namespace) + len(s.RemoteRef.Name)
	if s.LocalRef != nil {
		n += len(s.LocalRef.Namespace) + len(s.LocalRef.Name)
	}
	for _, c := range s.Conditions {
		n += len(c.Reason) + len(c.Message)
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

// reportOf returns the report of a Link; nil if that was deleted meanwhile. The caller holds mu.
func (r *Reconciler) reportOf(link api.Key, uid string) *linkReport {
	if now := r.seenLinks[link]; now == nil || now.uid != uid {
		return nil
	}
	if r.reports[uid] == nil {
		r.reports[uid] = &linkReport{}
	}
	return r.reports[uid]
}

// wantedStatus returns what the status of a Link should be.
func wantedStatus(
	l *Link, conditions []metav1.Condition, m *MirrorStatus, mirrors bool, now metav1.Time,
) writtenStatus {
	want := writtenStatus{slices.Clone(conditions), l.status.MirroredServices}
	switch shown := meta.FindStatusCondition(l.status.conditions, Mirrors); {
	case m != nil:
		want.conditions = append(want.conditions, m.Condition)
	case mirrors && shown != nil:
		want.conditions = append(want.conditions, *shown)
	}
	setTransitionTimes(want.conditions, l.status.conditions, now)
	if m != nil && m.Services != nil {
		want.Mirrored = wantedServices(l.status.Mirrored, m.Services.Mirrored, now)
		want.Federated = wantedServices(l.status.Federated, m.Services.Federated, now)
	}
	return want
}

// setTransitionTimes sets when the status of each condition has changed: now, unless it is the one that is shown.
func setTransitionTimes(conditions, shown []metav1.Condition, now metav1.Time) {
	for i := range conditions {
		c := &conditions[i]
		c.LastTransitionTime = now
		if old := meta.FindStatusCondition(shown, c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
}

// wantedServices returns a list of Services as it should be: with our entries, and with those of other
// controllers as they are.
func wantedServices(present, ours []ServiceStatus, now metav1.Time) []ServiceStatus {
	shown := map[ObjectRef][]metav1.Condition{}
	var others []ServiceStatus
	for _, s := range present {
		if s.ControllerName == linkerd.ServiceMirrorController {
			shown[s.RemoteRef] = s.Conditions
		} else {
			others = append(others, s)
		}
	}
	want := make([]ServiceStatus, 0, len(ours)+len(others))
	for _, s := range ours {
		s.Conditions = slices.Clone(s.Conditions)
		setTransitionTimes(s.Conditions, shown[s.RemoteRef], now)
		want = append(want, s)
	}
	return append(want, others...)
}

// contradicts reports whether a Link's status has to be written to be the wanted one. Condition types that
// are not ours are never compared, and a status without conditions is about the lists alone.
func (s writtenStatus) contradicts(want writtenStatus) bool {
	isUnwanted := func(c metav1.Condition) bool {
		return slices.Contains(ownConditions, c.Type) && meta.FindStatusCondition(want.conditions, c.Type) == nil
	}
	return len(want.conditions) > 0 && slices.ContainsFunc(s.conditions, isUnwanted) ||
		!includes(s.conditions, want.conditions) || !s.sameServices(&want.MirroredServices)
}

// same reports whether two statuses are equal but for times.
func (s writtenStatus) same(o writtenStatus) bool {
	return includes(s.conditions, o.conditions) && includes(o.conditions, s.conditions) &&
		s.sameServices(&o.MirroredServices)
}

func (s *MirroredServices) sameServices(o *MirroredServices) bool {
	return slices.EqualFunc(s.Mirrored, o.Mirrored, sameEntry) &&
		slices.EqualFunc(s.Federated, o.Federated, sameEntry)
}

// sameEntry reports whether two entries are equal but for times.
func sameEntry(a, b ServiceStatus) bool {
	sameLocal := a.LocalRef == b.LocalRef ||
		a.LocalRef != nil && b.LocalRef != nil && *a.LocalRef == *b.LocalRef
	return a.ControllerName == b.ControllerName && a.RemoteRef == b.RemoteRef && sameLocal &&
		len(a.Conditions) == len(b.Conditions) && includes(a.Conditions, b.Conditions)
}

// includes reports whether conditions include others, equal but for their times.
func includes(conditions, others []metav1.Condition) bool {
	return !slices.ContainsFunc(others, func(c metav1.Condition) bool {
		return !equalConditions(meta.FindStatusCondition(conditions, c.Type), &c)
	})
}

func equalConditions(a, b *metav1.Condition) bool {
	return a != nil && a.Status == b.Status && a.Reason == b.Reason &&
		a.Message == b.Message && a.ObservedGeneration == b.ObservedGeneration
}

package routestatus

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// There are three shapes of a status:
//
//	route          parents:    [theirs, theirs, {parentRef, controllerName, conditions}, ...]
//	EgressNetwork  conditions: [theirs, Accepted]
//	rate limit     conditions: [theirs, Accepted]   targetRef: {group, kind, name}
//
// They are one: a list that others write as well, whose elements are theirs or ours. Theirs are taken over as they are,
// ours are computed. The API server knows the list of parents as one value (GEP-1364 has no key for it), so it is
// always written whole. That of conditions is written the same way, though it has a key: one way is enough, and the
// resourceVersion that a patch names keeps what others write meanwhile.
//
// A server-side apply would not do. Of a list that is one value it needs all owners to apply all entries, and each of
// them would own those of the others from then on. So package apply/status has a second way, a merge patch. It is the
// one that package needs anyway where an apply leaves a part of an entry. All else is common: pace, conflicts, fields
// that a schema lacks, what was refused.

const (
	// maxEntries is how many entries the list of parents may have, as the schemas of routes bound it (GEP-1364).
	maxEntries = 32
	// maxSize is how many bytes of memory are kept of a status. 32 entries of an ordinary controller take some 60 KiB.
	maxSize = 256 << 10
)

var errExcess = errors.New("the status has more than may be kept of it, and is left as it is")

// A content is what of a status is written, and what stands beside it in the same lists. It is immutable. It is JSON as
// it was decoded; of another type than expected is like absent.
type content struct {
	parents, conditions list
	target              map[string]any // targetRef; nil: none
	excess              bool           // it was too large to be kept
}

// A list has elements of ours, and of others.
type list struct{ others, own []any }

// read returns what is written of a whole status.
func read(status map[string]any) (c content) {
	parents, _ := status["parents"].([]any)
	conditions, _ := status["conditions"].([]any)
	c.target, _ = status["targetRef"].(map[string]any)
	c.parents = divide(parents, "controllerName", linkerd.PolicyController)
	c.conditions = divide(conditions, "type", accepted)
	return c
}

// readBounded returns the same, or nothing of a status that is too large.
func readBounded(status map[string]any) content {
	c := read(status)
	if api.SizeOf(c) > maxSize {
		return content{excess: true}
	}
	return c
}

// divide returns a list by whose its elements are: ours have a field of that value.
func divide(all []any, field, value string) (l list) {
	for _, element := range all {
		if fields, is := element.(map[string]any); is && fields[field] == value {
			l.own = append(l.own, element)
		} else {
			l.others = append(l.others, element)
		}
	}
	return l
}

// Types of conditions, and the reason of PartiallyInvalid (GEP-1364).
const (
	accepted         = "Accepted"
	resolvedRefs     = "ResolvedRefs"
	partiallyInvalid = "PartiallyInvalid"

	unsupportedValue rules.Reason = "UnsupportedValue"
)

// plan returns what the status of an object of a kind should be, given what it is.
func plan(of rules.Kind, shown content, want *rules.WantedStatus, now time.Time) content {
	next := shown
	if !of.IsRoute() {
		next.conditions.own = conditions(shown.conditions.own, want.Generation, now, verdict(want.Verdict))
		if of == rules.KindRateLimit {
			next.target = map[string]any{
				"group": want.Target.Kind.Group(), "kind": want.Target.Kind.String(), "name": want.Target.Name,
			}
		}
		return next
	}

	next.parents.own = nil
	room := max(maxEntries-len(shown.parents.others), 0)
	for _, parent := range want.Parents[:min(len(want.Parents), room)] {
		next.parents.own = append(next.parents.own, entry(shown.parents.own, want, &parent, now))
	}
	if len(want.Parents) == 0 {
		next.excess = false // a route that is none of ours is left alone, whatever others write
	}
	return next
}

// entry returns what the status of a route has of a parent. shown are the entries of ours that it has.
func entry(shown []any, want *rules.WantedStatus, parent *rules.ParentStatus, now time.Time) map[string]any {
	group := parent.Kind.Group()
	if group == "" {
		group = "core"
	}
	ref := map[string]any{
		"group": group, "kind": parent.Kind.String(), "namespace": parent.Namespace, "name": parent.Name,
	}
	if parent.Port != 0 {
		ref["port"] = int64(parent.Port)
	}

	wanted := []condition{verdict(parent.Verdict)}
	if b := parent.Backends; b != nil {
		wanted = append(wanted, condition{resolvedRefs, b.Reason == rules.ResolvedRefs, b.Reason, b.Message})
	}
	if want.Partial != "" {
		wanted = append(wanted, condition{partiallyInvalid, true, unsupportedValue, want.Partial})
	}

	var before []any
	for _, e := range shown {
		if fields, _ := e.(map[string]any); reflect.DeepEqual(fields["parentRef"], any(ref)) {
			before, _ = fields["conditions"].([]any)
			break
		}
	}
	return map[string]any{
		"parentRef": ref, "controllerName": linkerd.PolicyController,
		"conditions": conditions(before, want.Generation, now, wanted...),
	}
}

// A condition is what one should have.
type condition struct {
	kind    string // its type
	isTrue  bool
	reason  rules.Reason
	message string
}

func verdict(v rules.Verdict) condition {
	return condition{accepted, v.Accepted(), v.Reason, v.Message}
}

// conditions returns conditions of an object's generation as they stand in a status. Those that are shown with the same
// status keep their times of transition.
func conditions(shown []any, generation int64, now time.Time, wanted ...condition) (all []any) {
	for _, c := range wanted {
		is := metav1.ConditionFalse
		if c.isTrue {
			is = metav1.ConditionTrue
		}
		all = append(all, map[string]any{
			"type": c.kind, "status": string(is), "reason": string(c.reason), "message": c.message,
			"observedGeneration": generation, transitionTime: transition(shown, c.kind, string(is), now),
		})
	}
	return all
}

const transitionTime = "lastTransitionTime"

// transition returns since when a condition has a status: as the shown ones have it, or else now. A text that is no
// time would be refused by the API server.
func transition(shown []any, kind, status string, now time.Time) string {
	for _, c := range shown {
		fields, _ := c.(map[string]any)
		since, _ := fields[transitionTime].(string)
		_, err := time.Parse(time.RFC3339, since)
		if fields["type"] == kind && fields["status"] == status && err == nil {
			return since
		}
	}
	return now.UTC().Format(time.RFC3339)
}

// Contradicts implements [status.Status]: what others wrote is not compared.
func (c content) Contradicts(want content) bool { return want.excess || !c.Same(want) }

// Same implements [status.Status].
func (c content) Same(o content) bool {
	return slices.EqualFunc(c.parents.own, o.parents.own, sameButTimes) &&
		slices.EqualFunc(c.conditions.own, o.conditions.own, sameButTimes) && reflect.DeepEqual(c.target, o.target)
}

// sameButTimes reports whether two elements are equal but for times of transition.
func sameButTimes(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, is := b.(map[string]any)
		return is && includes(a, b) && includes(b, a)
	case []any:
		b, is := b.([]any)
		return is && slices.EqualFunc(a, b, sameButTimes)
	default:
		return reflect.DeepEqual(a, b)
	}
}

// includes reports whether a has all of b.
func includes(a, b map[string]any) bool {
	for field, value := range b {
		in, has := a[field]
		if field != transitionTime && (!has || !sameButTimes(in, value)) {
			return false
		}
	}
	return true
}

// Tree implements [status.Status]. A list that is empty now is a part of it. What is others' is taken from what is
// shown: c may lack fields that the schema seemed to lack of late, and that others have written since.
func (c content) Tree(shown content) (map[string]any, error) {
	if c.excess {
		return nil, errExcess
	}

	fields := map[string]any{}
	if all := c.parents.behind(shown.parents); len(all)+len(shown.parents.own) > 0 {
		fields["parents"] = all
	}
	if all := c.conditions.behind(shown.conditions); len(all)+len(shown.conditions.own) > 0 {
		fields["conditions"] = all
	}

	if c.target != nil {
		target := map[string]any{}
		for field := range shown.target {
			target[field] = nil // a merge patch deletes what is null
		}
		maps.Copy(target, c.target)
		fields["targetRef"] = target
	}
	return runtime.DeepCopyJSON(fields), nil
}

// behind returns the elements as they are written: those of others that are shown come first.
func (l list) behind(shown list) []any { return slices.Concat([]any{}, shown.others, l.own) }

package status

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/federation"
)

// MessageLimit bounds the message of a condition, in bytes, so that an Event can carry it as well: parts of it may come
// from others.
const MessageLimit = 960

// Message returns a text as the message of a condition: of bounded length, and printable.
func Message(text string) string {
	const more = "…"
	if len(text) > MessageLimit {
		text = strings.ToValidUTF8(text[:MessageLimit-len(more)], "") + more
	}
	return federation.Printable(text)
}

// SetTransitionTimes sets when the status of each condition has changed: now, unless it is the one that is shown.
func SetTransitionTimes(conditions, shown []metav1.Condition, now metav1.Time) {
	for i := range conditions {
		c := &conditions[i]
		SetTransitionTime(c, meta.FindStatusCondition(shown, c.Type), now)
	}
}

// SetTransitionTime sets that of one condition; shown may be nil.
func SetTransitionTime(c, shown *metav1.Condition, now metav1.Time) {
	c.LastTransitionTime = now
	if shown != nil && shown.Status == c.Status {
		c.LastTransitionTime = shown.LastTransitionTime
	}
}

// Includes reports whether conditions include others, equal but for their times.
func Includes(conditions, others []metav1.Condition) bool {
	return !slices.ContainsFunc(others, func(c metav1.Condition) bool {
		return !SameCondition(meta.FindStatusCondition(conditions, c.Type), &c)
	})
}

// SameCondition reports whether two conditions of a type are equal but for their times. a may be nil.
func SameCondition(a, b *metav1.Condition) bool {
	return a != nil && a.Status == b.Status && a.Reason == b.Reason &&
		a.Message == b.Message && a.ObservedGeneration == b.ObservedGeneration
}

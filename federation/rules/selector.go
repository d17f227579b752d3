package rules

import "slices"

// A LabelSelector selects objects by their labels. One without requirements selects all, and a nil one none.
type LabelSelector struct{ Requirements []LabelRequirement }

// A LabelRequirement is a condition on one label. It holds as in Kubernetes: NotIn also for objects without the label.
type LabelRequirement struct {
	Key      string
	Operator LabelOperator
	Values   []string // of In and NotIn, at least one
}

// A LabelOperator compares a label.
type LabelOperator uint8

// Operators.
const (
	LabelIn LabelOperator = iota
	LabelNotIn
	LabelExists
	LabelDoesNotExist
)

// Matches reports whether an object with those labels is selected.
func (s *LabelSelector) Matches(labels map[string]string) bool {
	return s != nil && !slices.ContainsFunc(s.Requirements, func(r LabelRequirement) bool { return !r.holds(labels) })
}

func (r LabelRequirement) holds(labels map[string]string) bool {
	value, has := labels[r.Key]
	switch r.Operator {
	case LabelIn:
		return has && slices.Contains(r.Values, value)
	case LabelNotIn:
		return !has || !slices.Contains(r.Values, value)
	case LabelExists:
		return has
	default:
		return !has
	}
}

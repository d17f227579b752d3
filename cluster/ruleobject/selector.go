package ruleobject

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// selector reads a selector. One that no API server accepts selects nothing, and neither does one that is absent.
func (r *reader) selector(from *metav1.LabelSelector) *rules.LabelSelector {
	if from == nil {
		return nil
	}
	to, err := parseSelector(from)
	if err != nil {
		r.leaveOut(rules.PartSelector, "it selects nothing: %v", err)
		return nil
	}
	return to
}

func parseSelector(from *metav1.LabelSelector) (*rules.LabelSelector, error) {
	requirements, values := len(from.MatchLabels)+len(from.MatchExpressions), 0
	for _, e := range from.MatchExpressions {
		values += len(e.Values)
	}
	if requirements > maxRequirements || values > maxValues {
		return nil, fmt.Errorf("it has %d requirements with %d values; at most %d with %d are allowed",
			requirements, values, maxRequirements, maxValues)
	}

	to := &rules.LabelSelector{}
	for _, key := range slices.Sorted(maps.Keys(from.MatchLabels)) {
		values := []string{from.MatchLabels[key]}
		to.Requirements = append(to.Requirements, rules.LabelRequirement{Key: key, Values: values})
	}

	for _, e := range from.MatchExpressions {
		operator, known := labelOperators[e.Operator]
		takesValues := operator == rules.LabelIn || operator == rules.LabelNotIn
		if !known || takesValues != (len(e.Values) > 0) {
			return nil, fmt.Errorf("operator %.64q of key %.64q has %d values", e.Operator, e.Key, len(e.Values))
		}
		requirement := rules.LabelRequirement{Key: e.Key, Operator: operator, Values: e.Values}
		to.Requirements = append(to.Requirements, requirement)
	}

	for _, requirement := range to.Requirements {
		if err := checkRequirement(requirement); err != nil {
			return nil, err
		}
	}
	return to, nil
}

func checkRequirement(r rules.LabelRequirement) error {
	if !isLabelKey(r.Key) {
		return fmt.Errorf("%.64q is no key of a label", r.Key)
	}
	for _, value := range r.Values {
		if !isLabelValue(value) {
			return fmt.Errorf("%.64q is no value of a label", value)
		}
	}
	return nil
}

func isLabelKey(text string) bool { return isPlain(text, maxName+1+maxLabel) }

func isLabelValue(text string) bool { return len(text) <= maxLabel && federation.IsPlain(text) }

// labels returns the labels of the object, without those that no API server accepts.
func (r *reader) labels() map[string]string {
	if len(r.object.Labels) > maxLabels {
		r.leaveOut(rules.PartSelector, "it has %d labels, more than %d: none is read", len(r.object.Labels), maxLabels)
		return nil
	}

	kept := make(map[string]string, len(r.object.Labels))
	for key, value := range r.object.Labels {
		if isLabelKey(key) && isLabelValue(value) {
			kept[key] = value
		}
	}
	return kept
}

package inject

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// portAnnotations have lists of ports. Pods get them as they are written, so that nothing but this would find an error.
var portAnnotations = []string{
	OpaqueAnnotation, configPrefix + "skip-inbound-ports", configPrefix + "skip-outbound-ports",
	configPrefix + "proxy-require-identity-inbound-ports",
}

// An OverrideError is an annotation whose value cannot be honoured.
type OverrideError struct {
	Key string
	Err error
}

// Error returns the key, and what is wrong with its value.
func (e *OverrideError) Error() string { return e.Key + ": " + e.Err.Error() }

// Unwrap returns what is wrong.
func (e *OverrideError) Unwrap() error { return e.Err }

// Overrides returns those annotations by which a Pod's settings differ from the Values. It fails with an
// [OverrideError] for the first one, by key, that would be ignored.
func (v *Values) Overrides(annotations map[string]string) (map[string]string, error) {
	differ := map[string]string{}

	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		does, err := v.isOverridden(key, annotations[key])
		if err != nil {
			return nil, &OverrideError{key, err}
		}
		if does {
			differ[key] = annotations[key]
		}
	}
	return differ, nil
}

func (v *Values) isOverridden(key, value string) (is bool, err error) {
	if !slices.Contains(Annotations(), key) {
		return false, errors.New("not an annotation of settings")
	}
	if slices.Contains(portAnnotations, key) {
		if err := validatePorts(key, value); err != nil {
			return false, err
		}
	}
	if key == OpaqueAnnotation { // names have no ports before there is a Pod
		return value != string(v.Proxy.OpaquePorts), nil
	}

	base := settings{Values: *v, spec: &corev1.PodSpec{}}
	image := &base.Proxy.Image
	image.Version, image.PullPolicy = Text(v.Tag()), Text(v.pullPolicy(image))
	changed := base
	changed.apply(nil, map[string]string{key: value}, func(_, _ string, why error) { err = why })
	return !reflect.DeepEqual(base, changed), err
}

func validatePorts(key, list string) error {
	named := func(name string) int32 {
		if key == OpaqueAnnotation && len(validation.IsValidPortName(name)) == 0 {
			return 1 // some port, in a Pod that has the name
		}
		return 0
	}
	if _, unknown := parsePorts(list, named); unknown > 0 {
		return fmt.Errorf("%.40q is no list of ports and ranges", list)
	}
	return nil
}

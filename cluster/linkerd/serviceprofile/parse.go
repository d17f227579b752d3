package serviceprofile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubejson "sigs.k8s.io/json"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/profile"
)

// Bounds on what is accepted, and on messages about it.
const (
	// Proxies reject a whole profile whose messages nest deeper than 100. A condition on the wire is up
	// to four messages: itself, the list of its alternatives, one of these, and the list in there.
	maxDepth = 20

	// Of a new profile. An API server stores 1.5 MiB at most, unless its etcd is configured for more. An
	// empty JSON object of two bytes takes a hundred when decoded; a usual route is 8 objects in 300 bytes.
	maxBytes   = 3 << 19
	maxObjects = 50_000

	maxMessage  = 1000 // bytes
	maxWarnings = 10

	minStatus, maxStatus = 100, 599
)

// Parse reads a stored ServiceProfile. With a profile it returns warnings about what was left out of it. An
// error names the route, and the field of it, that makes the whole unusable.
func Parse(o *unstructured.Unstructured) (p *profile.Profile, warnings []string, err error) {
	var s spec
	b, err := json.Marshal(o.Object["spec"])
	if err == nil {
		err = kubejson.UnmarshalCaseSensitivePreserveInts(b, &s)
	}
	if err != nil {
		return nil, nil, truncate(err)
	}

	var t translation
	if p, err = t.profile(&s); err != nil {
		return nil, nil, truncate(err)
	}
	return p, t.warnings, nil
}

// Validate returns why a new ServiceProfile, as JSON, is rejected; nil if it is not.
func Validate(raw []byte) error {
	if err := checkSize(raw); err != nil {
		return err
	}

	var o object
	strict, err := kubejson.UnmarshalStrict(raw, &o)
	if err = errors.Join(append(strict, err)...); err != nil {
		return truncate(err)
	}
	if problems := validation.IsDNS1123Subdomain(o.Name); len(problems) > 0 {
		return truncate(fmt.Errorf("metadata.name %.100q: %s", o.Name, problems[0]))
	}

	var t translation
	if _, err = t.profile(&o.Spec); err == nil {
		err = t.rejected
	}
	return truncate(err)
}

// checkSize returns why the JSON of a new profile is not decoded.
func checkSize(raw []byte) error {
	if n := len(raw); n > maxBytes {
		return fmt.Errorf("is too large: %d bytes of JSON, %d are allowed", n, maxBytes)
	}
	if n := bytes.Count(raw, []byte("{")); n > maxObjects {
		return fmt.Errorf("is too large: %d JSON objects, %d are allowed", n, maxObjects)
	}
	return nil
}

// truncate bounds the length of an error. Nil stays nil.
func truncate(err error) error {
	if err == nil || len(err.Error()) <= maxMessage {
		return err
	}
	return errors.New(strings.ToValidUTF8(err.Error()[:maxMessage], "") + " ...")
}

// translation is the state of translating one profile.
type translation struct {
	warnings []string
	rejected error // the first of those warnings for which a new profile is rejected
}

// warn adds a warning.
func (t *translation) warn(format string, args ...any) {
	if len(t.warnings) < maxWarnings {
		t.warnings = append(t.warnings, fmt.Sprintf(format, args...))
	}
}

// rejectNew adds a warning about a stored profile, for which a new one is rejected.
func (t *translation) rejectNew(format string, args ...any) {
	t.warn(format, args...)
	if t.rejected == nil {
		t.rejected = fmt.Errorf(format, args...)
	}
}

func (t *translation) profile(spec *spec) (*profile.Profile, error) {
	out := &profile.Profile{}
	at := field.NewPath("spec")

	for i, r := range spec.Routes {
		at := at.Child("routes").Index(i)
		if r == nil {
			return nil, fmt.Errorf("%s is null", at)
		}
		route, err := t.route(r, at)
		if err != nil {
			return nil, fmt.Errorf("route %.100q: %w", r.Name, err)
		}
		out.Routes = append(out.Routes, route)
	}

	if spec.RetryBudget != nil {
		budget, err := t.retryBudget(spec.RetryBudget, at.Child("retryBudget"))
		if err != nil {
			return nil, err
		}
		out.RetryBudget = budget
	}

	for i, o := range spec.DstOverrides {
		at := at.Child("dstOverrides").Index(i)
		if o == nil {
			t.warn("%s is null", at)
			continue
		}
		if o.Weight.warning != "" {
			t.warn("%s: %s", at, o.Weight.warning)
		}
		out.Overrides = append(out.Overrides, profile.Override{Authority: o.Authority, Weight: o.Weight.parts})
	}
	return out, nil
}

func (t *translation) route(route *routeSpec, at *field.Path) (profile.Route, error) {
	out := profile.Route{Name: route.Name, Retryable: route.IsRetryable}
	switch {
	case route.Name == "":
		t.rejectNew("%s: a route needs a name, for the labels of metrics", at)
	case !federation.IsPlain(route.Name):
		t.rejectNew("route %.100q: its name has a character that ends a label of metrics: it is left out", route.Name)
		out.Name = ""
	}

	if route.Timeout != "" {
		d, err := time.ParseDuration(route.Timeout)
		switch at := at.Child("timeout"); {
		case err != nil:
			t.rejectNew("route %.100q: %s: %.100q is not a duration, such as 250ms", route.Name, at, route.Timeout)
		case d < 0:
			t.warn("route %.100q: %s: %s is negative: it counts as none", route.Name, at, d)
		default:
			out.Timeout = d
		}
	}

	var err error
	if out.Condition, err = translateRequest(route.Condition, at.Child("condition"), maxDepth); err != nil {
		return out, err
	}

	for i, c := range route.ResponseClasses {
		at := at.Child("responseClasses").Index(i)
		if c == nil {
			return out, fmt.Errorf("%s is null", at)
		}
		condition, err := translateResponse(c.Condition, at.Child("condition"), maxDepth)
		if err != nil {
			return out, err
		}
		out.Responses = append(out.Responses, profile.ResponseClass{Condition: condition, Failure: c.IsFailure})
	}
	return out, nil
}

func (t *translation) retryBudget(budget *retryBudget, at *field.Path) (*profile.RetryBudget, error) {
	if budget.RetryRatio < 0 {
		t.rejectNew("%s: %g is negative: proxies do not retry", at.Child("retryRatio"), budget.RetryRatio)
	}
	at = at.Child("ttl")
	if budget.TTL == "" {
		return nil, fmt.Errorf("%s is missing: a duration, such as 10s", at)
	}

	ttl, err := time.ParseDuration(budget.TTL)
	if err != nil {
		return nil, fmt.Errorf("%s: %.100q is not a duration, such as 10s", at, budget.TTL)
	}
	if ttl < 0 {
		t.warn("%s: %s is negative: proxies do not retry", at, ttl)
		ttl = 0
	}
	return &profile.RetryBudget{
		Ratio: budget.RetryRatio, MinRetriesPerSecond: budget.MinRetriesPerSecond, TTL: ttl,
	}, nil
}

func translateRequest(match *requestMatch, at *field.Path, depth int) (*profile.Request, error) {
	switch {
	case match == nil:
		return nil, fmt.Errorf("%s is missing", at)
	case depth == 0:
		return nil, fmt.Errorf("%s: conditions nest deeper than %d", at, maxDepth)
	}

	not, err := parseNot[requestMatch](match.Not)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", at.Child("not"), err)
	case match.All == nil && match.Any == nil && len(not) == 0 && match.Method == "" && match.PathRegex == "":
		return nil, fmt.Errorf("%s needs one of all, any, not, method and pathRegex", at)
	}

	out := &profile.Request{Method: strings.ToUpper(match.Method), Path: match.PathRegex}
	if out.All, err = translateAll(translateRequest, match.All, at.Child("all"), depth-1); err != nil {
		return nil, err
	}
	if out.Any, err = translateAll(translateRequest, match.Any, at.Child("any"), depth-1); err != nil {
		return nil, err
	}

	switch at := at.Child("not"); len(not) {
	case 0:
	case 1:
		out.Not, err = translateRequest(not[0], at, depth-1)
	default:
		out.Not = &profile.Request{}
		out.Not.Any, err = translateAll(translateRequest, not, at, depth-1)
	}
	return out, err
}

func translateResponse(match *responseMatch, at *field.Path, depth int) (*profile.Response, error) {
	switch {
	case match == nil:
		return nil, fmt.Errorf("%s is missing", at)
	case depth == 0:
		return nil, fmt.Errorf("%s: conditions nest deeper than %d", at, maxDepth)
	}

	not, err := parseNot[responseMatch](match.Not)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", at.Child("not"), err)
	case match.All == nil && match.Any == nil && len(not) == 0 && match.Status == nil:
		return nil, fmt.Errorf("%s needs one of all, any, not and status", at)
	}

	out := &profile.Response{}
	if out.All, err = translateAll(translateResponse, match.All, at.Child("all"), depth-1); err != nil {
		return nil, err
	}
	if out.Any, err = translateAll(translateResponse, match.Any, at.Child("any"), depth-1); err != nil {
		return nil, err
	}

	if match.Status != nil {
		if out.Status, err = translateStatus(match.Status, at.Child("status")); err != nil {
			return nil, err
		}
	}

	switch at := at.Child("not"); len(not) {
	case 0:
	case 1:
		out.Not, err = translateResponse(not[0], at, depth-1)
	default:
		out.Not = &profile.Response{}
		out.Not.Any, err = translateAll(translateResponse, not, at, depth-1)
	}
	return out, err
}

// translateAll translates a list of conditions. An empty list stays an empty one, and nil stays nil.
func translateAll[M, C any](
	one func(*M, *field.Path, int) (*C, error), list []*M, at *field.Path, depth int,
) ([]*C, error) {
	if list == nil {
		return nil, nil
	}
	out := make([]*C, len(list))
	for i, m := range list {
		var err error
		if out[i], err = one(m, at.Index(i), depth); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func translateStatus(s *statusRange, at *field.Path) (*profile.StatusRange, error) {
	outside := func(n uint32) bool { return n != 0 && (n < minStatus || n > maxStatus) }
	switch {
	case outside(s.Min):
		return nil, fmt.Errorf("%s: %d is not between %d and %d", at.Child("min"), s.Min, minStatus, maxStatus)
	case outside(s.Max):
		return nil, fmt.Errorf("%s: %d is not between %d and %d", at.Child("max"), s.Max, minStatus, maxStatus)
	case s.Min != 0 && s.Max != 0 && s.Max < s.Min:
		return nil, fmt.Errorf("%s: max %d is below min %d", at, s.Max, s.Min)
	}
	return &profile.StatusRange{Min: s.Min, Max: s.Max}, nil
}

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

func (t *translation) profile(s *spec) (*profile.Profile, error) {
	p := &profile.Profile{}
	at := field.NewPath("spec")

	for i, r := range s.Routes {
		at := at.Child("routes").Index(i)
		if r == nil {
			return nil, fmt.Errorf("%s is null", at)
		}
		route, err := t.route(r, at)
		if err != nil {
			return nil, fmt.Errorf("route %.100q: %w", r.Name, err)
		}
		p.Routes = append(p.Routes, route)
	}

	if s.RetryBudget != nil {
		budget, err := t.retryBudget(s.RetryBudget, at.Child("retryBudget"))
		if err != nil {
			return nil, err
		}
		p.RetryBudget = budget
	}

	for i, o := range s.DstOverrides {
		at := at.Child("dstOverrides").Index(i)
		if o == nil {
			t.warn("%s is null", at)
			continue
		}
		if o.Weight.warning != "" {
			t.warn("%s: %s", at, o.Weight.warning)
		}
		p.Overrides = append(p.Overrides, profile.Override{Authority: o.Authority, Weight: o.Weight.parts})
	}
	return p, nil
}

func (t *translation) route(r *routeSpec, at *field.Path) (profile.Route, error) {
	out := profile.Route{Name: r.Name, Retryable: r.IsRetryable}
	switch {
	case r.Name == "":
		t.rejectNew("%s: a route needs a name, for the labels of metrics", at)
	case !federation.IsPlain(r.Name):
		t.rejectNew("route %.100q: its name has a character that ends a label of metrics: it is left out", r.Name)
		out.Name = ""
	}

	if r.Timeout != "" {
		d, err := time.ParseDuration(r.Timeout)
		switch at := at.Child("timeout"); {
		case err != nil:
			t.rejectNew("route %.100q: %s: %.100q is not a duration, such as 250ms", r.Name, at, r.Timeout)
		case d < 0:
			t.warn("route %.100q: %s: %s is negative: it counts as none", r.Name, at, d)
		default:
			out.Timeout = d
		}
	}

	var err error
	if out.Condition, err = translateRequest(r.Condition, at.Child("condition"), maxDepth); err != nil {
		return out, err
	}

	for i, c := range r.ResponseClasses {
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

func (t *translation) retryBudget(b *retryBudget, at *field.Path) (*profile.RetryBudget, error) {
	if b.RetryRatio < 0 {
		t.rejectNew("%s: %g is negative: proxies do not retry", at.Child("retryRatio"), b.RetryRatio)
	}
	at = at.Child("ttl")
	if b.TTL == "" {
		return nil, fmt.Errorf("%s is missing: a duration, such as 10s", at)
	}

	ttl, err := time.ParseDuration(b.TTL)
	if err != nil {
		return nil, fmt.Errorf("%s: %.100q is not a duration, such as 10s", at, b.TTL)
	}
	if ttl < 0 {
		t.warn("%s: %s is negative: proxies do not retry", at, ttl)
		ttl = 0
	}
	return &profile.RetryBudget{Ratio: b.RetryRatio, MinRetriesPerSecond: b.MinRetriesPerSecond, TTL: ttl}, nil
}

func translateRequest(m *requestMatch, at *field.Path, depth int) (*profile.Request, error) {
	switch {
	case m == nil:
		return nil, fmt.Errorf("%s is missing", at)
	case depth == 0:
		return nil, fmt.Errorf("%s: conditions nest deeper than %d", at, maxDepth)
	}

	not, err := parseNot[requestMatch](m.Not)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", at.Child("not"), err)
	case m.All == nil && m.Any == nil && len(not) == 0 && m.Method == "" && m.PathRegex == "":
		return nil, fmt.Errorf("%s needs one of all, any, not, method and pathRegex", at)
	}

	r := &profile.Request{Method: strings.ToUpper(m.Method), Path: m.PathRegex}
	if r.All, err = translateAll(translateRequest, m.All, at.Child("all"), depth-1); err != nil {
		return nil, err
	}
	if r.Any, err = translateAll(translateRequest, m.Any, at.Child("any"), depth-1); err != nil {
		return nil, err
	}

	switch at := at.Child("not"); len(not) {
	case 0:
	case 1:
		r.Not, err = translateRequest(not[0], at, depth-1)
	default:
		r.Not = &profile.Request{}
		r.Not.Any, err = translateAll(translateRequest, not, at, depth-1)
	}
	return r, err
}

func translateResponse(m *responseMatch, at *field.Path, depth int) (*profile.Response, error) {
	switch {
	case m == nil:
		return nil, fmt.Errorf("%s is missing", at)
	case depth == 0:
		return nil, fmt.Errorf("%s: conditions nest deeper than %d", at, maxDepth)
	}

	not, err := parseNot[responseMatch](m.Not)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", at.Child("not"), err)
	case m.All == nil && m.Any == nil && len(not) == 0 && m.Status == nil:
		return nil, fmt.Errorf("%s needs one of all, any, not and status", at)
	}

	r := &profile.Response{}
	if r.All, err = translateAll(translateResponse, m.All, at.Child("all"), depth-1); err != nil {
		return nil, err
	}
	if r.Any, err = translateAll(translateResponse, m.Any, at.Child("any"), depth-1); err != nil {
		return nil, err
	}

	if m.Status != nil {
		if r.Status, err = translateStatus(m.Status, at.Child("status")); err != nil {
			return nil, err
		}
	}

	switch at := at.Child("not"); len(not) {
	case 0:
	case 1:
		r.Not, err = translateResponse(not[0], at, depth-1)
	default:
		r.Not = &profile.Response{}
		r.Not.Any, err = translateAll(translateResponse, not, at, depth-1)
	}
	return r, err
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

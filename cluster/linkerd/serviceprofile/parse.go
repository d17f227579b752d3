package serviceprofile

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubejson "sigs.k8s.io/json"

	"github.com/fingerpost/fingerpost/federation/profile"
)

// Bounds on what is taken and on what is said about it.
const (
	// Proxies give up a whole profile whose messages nest deeper than 100. A condition on the wire is up to
	// four of them: itself, the list of what it says, one of these, and the list in there.
	maxDepth = 20

	maxMessage = 1000 // bytes
	maxRemarks = 10

	minStatus, maxStatus = 100, 599
)

// Parse returns what a ServiceProfile says. With a profile it returns remarks on what was left out of it,
// for an operator to read; the error says which route, and which field of it, makes the whole unusable.
func Parse(o *unstructured.Unstructured) (p *profile.Profile, remarks []string, err error) {
	var s spec
	b, err := json.Marshal(o.Object["spec"])
	if err == nil {
		err = kubejson.UnmarshalCaseSensitivePreserveInts(b, &s)
	}
	if err != nil {
		return nil, nil, brief(err)
	}
	var t translation
	if p, err = t.profile(&s); err != nil {
		return nil, nil, brief(err)
	}
	return p, t.remarks, nil
}

// Validate returns why a ServiceProfile is refused, given as JSON; nil if it is not.
func Validate(raw []byte) error {
	var o object
	strict, err := kubejson.UnmarshalStrict(raw, &o)
	if err = errors.Join(append(strict, err)...); err != nil {
		return brief(err)
	}
	if problems := validation.IsDNS1123Subdomain(o.Name); len(problems) > 0 {
		return brief(fmt.Errorf("metadata.name %.100q: %s", o.Name, problems[0]))
	}
	var t translation
	if _, err = t.profile(&o.Spec); err == nil {
		err = t.refused
	}
	return brief(err)
}

// brief bounds how much an error says. Nil stays nil.
func brief(err error) error {
	if err == nil || len(err.Error()) <= maxMessage {
		return err
	}
	return errors.New(strings.ToValidUTF8(err.Error()[:maxMessage], "") + " ...")
}

// A translation is of one profile.
type translation struct {
	remarks []string
	refused error // the first of those remarks for which a new profile is refused
}

func (t *translation) remark(format string, args ...any) {
	if len(t.remarks) < maxRemarks {
		t.remarks = append(t.remarks, fmt.Sprintf(format, args...))
	}
}

func (t *translation) refuse(format string, args ...any) {
	t.remark(format, args...)
	if t.refused == nil {
		t.refused = fmt.Errorf(format, args...)
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
			t.remark("%s is null", at)
			continue
		}
		if o.Weight.remark != "" {
			t.remark("%s: %s", at, o.Weight.remark)
		}
		p.Overrides = append(p.Overrides, profile.Override{Authority: o.Authority, Weight: o.Weight.parts})
	}
	return p, nil
}

func (t *translation) route(r *route, at *field.Path) (profile.Route, error) {
	out := profile.Route{Name: r.Name, Retryable: r.IsRetryable}
	if r.Name == "" {
		t.refuse("%s: a route needs a name, by which metrics know it", at)
	}
	if r.Timeout != "" {
		d, err := time.ParseDuration(r.Timeout)
		switch at := at.Child("timeout"); {
		case err != nil:
			t.refuse("route %.100q: %s: %.100q is no duration, such as 250ms", r.Name, at, r.Timeout)
		case d < 0:
			t.remark("route %.100q: %s: %s is negative, which is no timeout", r.Name, at, d)
		default:
			out.Timeout = d
		}
	}
	var err error
	if out.Condition, err = request(r.Condition, at.Child("condition"), maxDepth); err != nil {
		return out, err
	}
	for i, c := range r.ResponseClasses {
		at := at.Child("responseClasses").Index(i)
		if c == nil {
			return out, fmt.Errorf("%s is null", at)
		}
		condition, err := response(c.Condition, at.Child("condition"), maxDepth)
		if err != nil {
			return out, err
		}
		out.Responses = append(out.Responses, profile.ResponseClass{Condition: condition, Failure: c.IsFailure})
	}
	return out, nil
}

func (t *translation) retryBudget(b *retryBudget, at *field.Path) (*profile.RetryBudget, error) {
	if b.RetryRatio < 0 {
		t.refuse("%s: %g is negative: proxies do not retry", at.Child("retryRatio"), b.RetryRatio)
	}
	at = at.Child("ttl")
	if b.TTL == "" {
		return nil, fmt.Errorf("%s is missing: a duration, such as 10s", at)
	}
	ttl, err := time.ParseDuration(b.TTL)
	if err != nil {
		return nil, fmt.Errorf("%s: %.100q is no duration, such as 10s", at, b.TTL)
	}
	if ttl < 0 {
		t.remark("%s: %s is negative, which is no ttl: proxies do not retry", at, ttl)
		ttl = 0
	}
	return &profile.RetryBudget{Ratio: b.RetryRatio, MinRetriesPerSecond: b.MinRetriesPerSecond, TTL: ttl}, nil
}

func request(m *requestMatch, at *field.Path, depth int) (*profile.Request, error) {
	switch {
	case m == nil:
		return nil, fmt.Errorf("%s is missing", at)
	case depth == 0:
		return nil, fmt.Errorf("%s: conditions nest deeper than %d", at, maxDepth)
	}
	not, err := negated[requestMatch](m.Not)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", at.Child("not"), err)
	case m.All == nil && m.Any == nil && len(not) == 0 && m.Method == "" && m.PathRegex == "":
		return nil, fmt.Errorf("%s needs one of all, any, not, method and pathRegex", at)
	}
	r := &profile.Request{Method: strings.ToUpper(m.Method), Path: m.PathRegex}
	if r.All, err = each(request, m.All, at.Child("all"), depth-1); err != nil {
		return nil, err
	}
	if r.Any, err = each(request, m.Any, at.Child("any"), depth-1); err != nil {
		return nil, err
	}
	switch at := at.Child("not"); len(not) {
	case 0:
	case 1:
		r.Not, err = request(not[0], at, depth-1)
	default:
		r.Not = &profile.Request{}
		r.Not.Any, err = each(request, not, at, depth-1)
	}
	return r, err
}

func response(m *responseMatch, at *field.Path, depth int) (*profile.Response, error) {
	switch {
	case m == nil:
		return nil, fmt.Errorf("%s is missing", at)
	case depth == 0:
		return nil, fmt.Errorf("%s: conditions nest deeper than %d", at, maxDepth)
	}
	not, err := negated[responseMatch](m.Not)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", at.Child("not"), err)
	case m.All == nil && m.Any == nil && len(not) == 0 && m.Status == nil:
		return nil, fmt.Errorf("%s needs one of all, any, not and status", at)
	}
	r := &profile.Response{}
	if r.All, err = each(response, m.All, at.Child("all"), depth-1); err != nil {
		return nil, err
	}
	if r.Any, err = each(response, m.Any, at.Child("any"), depth-1); err != nil {
		return nil, err
	}
	if m.Status != nil {
		if r.Status, err = status(m.Status, at.Child("status")); err != nil {
			return nil, err
		}
	}
	switch at := at.Child("not"); len(not) {
	case 0:
	case 1:
		r.Not, err = response(not[0], at, depth-1)
	default:
		r.Not = &profile.Response{}
		r.Not.Any, err = each(response, not, at, depth-1)
	}
	return r, err
}

// each translates a list of conditions. A list that is empty is said nevertheless; nil is not.
func each[M, C any](one func(*M, *field.Path, int) (*C, error), list []*M, at *field.Path, depth int) ([]*C, error) {
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

func status(s *statusRange, at *field.Path) (*profile.StatusRange, error) {
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

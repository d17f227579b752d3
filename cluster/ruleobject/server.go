package ruleobject

import (
	"errors"
	"fmt"
	"math"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fingerpost/fingerpost/federation/rules"
)

// Server reads a Server of any served version. One that cannot be read selects nothing.
func Server(u *unstructured.Unstructured) (*rules.Server, error) {
	return stored(rules.KindServer, u, (*reader).server)
}

func (r *reader) server() (*rules.Server, error) {
	var spec struct {
		PodSelector              *metav1.LabelSelector `json:"podSelector"`
		ExternalWorkloadSelector *metav1.LabelSelector `json:"externalWorkloadSelector"`
		Port                     intstr.IntOrString    `json:"port"`
		ProxyProtocol            string                `json:"proxyProtocol"`
		AccessPolicy             string                `json:"accessPolicy"`
	}

	if err := decode(r.spec, &spec); err != nil {
		return nil, err
	}
	if spec.PodSelector == nil && spec.ExternalWorkloadSelector == nil {
		return nil, errors.New("it has no selector")
	}

	port, err := portRef(spec.Port)
	if err != nil {
		return nil, err
	}
	protocol, known := rules.ParseServerProtocol(spec.ProxyProtocol)
	if !known {
		return nil, fmt.Errorf("proxyProtocol %.64q is unknown", spec.ProxyProtocol)
	}
	access, known := rules.ParseDefaultPolicy(spec.AccessPolicy)
	if !known && spec.AccessPolicy != "" {
		r.deny(r.leaveOut(rules.PartAccess, "%.64q is unknown: it counts as %v", spec.AccessPolicy, access))
	}

	to := &rules.Server{
		Labels: r.labels(), Pods: r.selector(spec.PodSelector), Externals: r.selector(spec.ExternalWorkloadSelector),
		Port: port, Protocol: protocol, Access: access,
	}
	to.Meta = r.meta()
	return to, nil
}

func portRef(from intstr.IntOrString) (rules.PortRef, error) {
	if from.Type == intstr.String {
		if !isPlain(from.StrVal, maxLabel) {
			return rules.PortRef{}, fmt.Errorf("no port has the name %.64q", from.StrVal)
		}
		return rules.PortRef{Name: from.StrVal}, nil
	}
	number, err := portNumber(int64(from.IntVal))
	return rules.PortRef{Number: number}, err
}

func portNumber(n int64) (uint16, error) {
	if n < 1 || n > math.MaxUint16 {
		return 0, fmt.Errorf("port %d is not between 1 and 65535", n)
	}
	return uint16(n), nil
}

// RateLimit reads an HTTPLocalRateLimitPolicy. One that cannot be read limits nothing.
func RateLimit(u *unstructured.Unstructured) (*rules.RateLimit, error) {
	return stored(rules.KindRateLimit, u, (*reader).rateLimit)
}

// A limitSpec is a number of requests per second.
type limitSpec struct {
	RequestsPerSecond uint32 `json:"requestsPerSecond"`
}

// An overrideSpec is the limit of some clients.
type overrideSpec struct {
	limitSpec  `json:",inline"`
	ClientRefs []reference `json:"clientRefs"`
}

func (r *reader) rateLimit() (*rules.RateLimit, error) {
	var spec struct {
		TargetRef *reference     `json:"targetRef"`
		Total     *limitSpec     `json:"total"`
		Identity  *limitSpec     `json:"identity"`
		Overrides []overrideSpec `json:"overrides"`
	}
	if err := decode(r.spec, &spec); err != nil {
		return nil, err
	}
	if spec.TargetRef == nil {
		return nil, errors.New("it has no targetRef")
	}

	to := &rules.RateLimit{}
	target, err := r.referent(*spec.TargetRef)
	switch {
	case err != nil:
		return nil, err
	case target.Kind == rules.KindServer:
		to.Server = target.Name
		target.Namespace = r.object.Namespace
		r.referents = []rules.Reference{target}
	default:
		r.deny(r.leaveOut(rules.PartReference, "targetRef is of the kind %s, and no Server", spec.TargetRef.kindText()))
	}

	to.Total, to.Identity = r.limit("total", spec.Total), r.limit("identity", spec.Identity)
	r.checkLimit("identity", to.Identity, to.Total)
	for _, from := range firstOf(r, rules.PartSpec, spec.Overrides, maxOverrides) {
		override := rules.RateOverride{Limit: r.limit("an override", &from.limitSpec)}
		r.checkLimit("an override", override.Limit, to.Total)
		override.Accounts = r.accounts(from.ClientRefs, false)
		to.Overrides = append(to.Overrides, override)
	}

	to.Meta = r.meta()
	return to, nil
}

// limit returns a limit. 0 is none.
func (r *reader) limit(name string, from *limitSpec) uint32 {
	if from == nil {
		return 0
	}
	if from.RequestsPerSecond == 0 {
		r.deny(r.note(rules.PartSpec, "%s allows 0 requests per second: it counts as no limit", name))
	}
	return from.RequestsPerSecond
}

// checkLimit has a new object denied if a limit is above the total one.
func (r *reader) checkLimit(name string, limit, total uint32) {
	if total > 0 && limit > total {
		r.deny(r.note(rules.PartSpec, "%s allows %d requests per second, more than the total of %d", name, limit,
			total))
	}
}

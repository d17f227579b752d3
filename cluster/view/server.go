package view

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/fingerpost/fingerpost/federation"
)

// opaqueProtocol is what a Server says of a port whose protocol is not to be detected.
const opaqueProtocol = "opaque"

// server is what is kept of a Server: only of one that makes a port opaque.
type server struct {
	pods, externals labels.Selector // never nil
	port            intstr.IntOrString
}

// translateServer returns nil for a Server that makes nothing opaque.
func translateServer(u *unstructured.Unstructured, r *remarks) (*server, error) {
	var parsed struct {
		Spec struct {
			PodSelector              *metav1.LabelSelector `json:"podSelector"`
			ExternalWorkloadSelector *metav1.LabelSelector `json:"externalWorkloadSelector"`
			Port                     intstr.IntOrString    `json:"port"`
			ProxyProtocol            string                `json:"proxyProtocol"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &parsed); err != nil {
		return nil, err
	}
	spec := parsed.Spec
	if spec.ProxyProtocol != opaqueProtocol || spec.PodSelector == nil && spec.ExternalWorkloadSelector == nil {
		return nil, nil
	}
	for _, selector := range []*metav1.LabelSelector{spec.PodSelector, spec.ExternalWorkloadSelector} {
		if err := bounded(selector); err != nil {
			return nil, err
		}
	}
	if !r.valid("all of it: the name of its port", spec.Port.StrVal, maxLabel) {
		return nil, nil
	}
	pods, err := metav1.LabelSelectorAsSelector(spec.PodSelector) // nil selects nothing
	if err != nil {
		return nil, err
	}
	externals, err := metav1.LabelSelectorAsSelector(spec.ExternalWorkloadSelector)
	if err != nil {
		return nil, err
	}
	return &server{pods, externals, spec.Port}, nil
}

// bounded returns an error for a selector that would take too long, as it is applied to each workload of a namespace.
func bounded(s *metav1.LabelSelector) error {
	if s == nil {
		return nil
	}
	requirements, values := len(s.MatchLabels)+len(s.MatchExpressions), 0
	for _, e := range s.MatchExpressions {
		values += len(e.Values)
	}
	if requirements > maxRequirements || values > maxValues {
		return fmt.Errorf("a selector has %d requirements with %d values: there may be %d with %d", requirements, values, maxRequirements, maxValues)
	}
	return nil
}

// selects reports whether a Server is about a workload of an origin. A nil one is about none.
func (s *server) selects(kind what, name string, o *origin) bool {
	if s == nil {
		return false
	}
	selector := s.pods
	if kind == anExternal {
		selector = s.externals
	}
	return selector.Matches(podLabels{name, o.labels})
}

// opens appends the ports that a Server makes opaque at the Pods of an origin.
func (s *server) opens(to []federation.PortRange, o *origin) []federation.PortRange {
	if s.port.Type == intstr.String {
		return o.ports.appendNamed(to, s.port.StrVal)
	}
	if n, is := portNumber(s.port.IntVal); is {
		to = append(to, federation.PortRange{First: n, Last: n})
	}
	return to
}

// labelSet is the labels of a Pod in one string, k=v,k=v, sorted. Neither keys nor values can hold the separators, nor the marks,
// which stand for the Pod's own name and the ordinal in it: so the Pods of a StatefulSet have one labelSet.
type labelSet string

const (
	nameMark    = "$name"
	ordinalMark = "$ordinal"
)

func labelsOf(pod string, m map[string]string, r *remarks) labelSet {
	if len(m) > maxLabels {
		r.add("labels: there are %d, more than %d", len(m), maxLabels)
		return ""
	}
	marked := make(labels.Set, len(m))
	for k, v := range m {
		if !r.valid("a label: its key", k, maxName+1+maxLabel) || !r.valid("a label: its value", v, maxLabel) {
			continue
		}
		switch v {
		case pod:
			v = nameMark
		case ordinal(pod):
			v = ordinalMark
		}
		marked[k] = v
	}
	return labelSet(marked.String())
}

func ordinal(pod string) string { return pod[strings.LastIndexByte(pod, '-')+1:] }

// podLabels implements [labels.Labels].
type podLabels struct {
	pod string
	set labelSet
}

// Lookup returns the value of a label.
func (l podLabels) Lookup(name string) (value string, found bool) {
	for item := range strings.SplitSeq(string(l.set), ",") {
		k, v, _ := strings.Cut(item, "=")
		switch {
		case k != name:
			continue
		case v == nameMark:
			v = l.pod
		case v == ordinalMark:
			v = ordinal(l.pod)
		}
		return v, true
	}
	return "", false
}

// Has reports whether there is such a label.
func (l podLabels) Has(name string) bool {
	_, found := l.Lookup(name)
	return found
}

// Get returns the value of a label; empty if there is none.
func (l podLabels) Get(name string) string {
	value, _ := l.Lookup(name)
	return value
}

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

// opaqueProtocol is the proxyProtocol of ports on which proxies detect no protocol.
const opaqueProtocol = "opaque"

// serverRecord is what is kept of a Server: only of one that makes a port opaque.
type serverRecord struct {
	pods, externals labels.Selector // never nil
	port            intstr.IntOrString
}

// newServerRecord returns nil for a Server that makes nothing opaque.
func newServerRecord(u *unstructured.Unstructured, out *omissions) (*serverRecord, error) {
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
	selects := spec.PodSelector != nil || spec.ExternalWorkloadSelector != nil
	if spec.ProxyProtocol != opaqueProtocol || !selects {
		return nil, nil
	}
	if !out.validText("all of it: the name of its port", spec.Port.StrVal, maxLabel) {
		return nil, nil
	}

	pods, err := boundedSelector(spec.PodSelector)
	if err != nil {
		return nil, err
	}
	externals, err := boundedSelector(spec.ExternalWorkloadSelector)
	if err != nil {
		return nil, err
	}
	return &serverRecord{pods, externals, spec.Port}, nil
}

// fact returns what is published of a Server.
func (s *serverRecord) fact() federation.OpaqueServer {
	f := federation.OpaqueServer{Pods: selectorFact(s.pods), Externals: selectorFact(s.externals)}
	if s.port.Type == intstr.String {
		f.PortName = s.port.StrVal
	} else {
		f.Port, _ = portNumber(s.port.IntVal)
	}
	return f
}

func selectorFact(s labels.Selector) federation.Selector {
	if _, selectable := s.Requirements(); !selectable {
		return federation.Selector{}
	}
	return federation.Selector{Text: s.String(), Given: true}
}

// publishedServer is the reverse of fact.
func publishedServer(from federation.OpaqueServer) (*serverRecord, error) {
	pods, err := publishedSelector(from.Pods)
	if err != nil {
		return nil, err
	}
	externals, err := publishedSelector(from.Externals)
	if err != nil {
		return nil, err
	}

	port := intstr.FromInt32(int32(from.Port))
	if from.PortName != "" {
		port = intstr.FromString(from.PortName)
	}
	return &serverRecord{pods, externals, port}, nil
}

func publishedSelector(f federation.Selector) (labels.Selector, error) {
	if !f.Given {
		return boundedSelector(nil)
	}
	parsed, err := metav1.ParseToLabelSelector(f.Text)
	if err != nil {
		return nil, err
	}
	return boundedSelector(parsed)
}

// boundedSelector returns the selector for that of an object; nil selects nothing. A selector with too many
// requirements is an error, because each is applied to each workload of a namespace.
func boundedSelector(selector *metav1.LabelSelector) (labels.Selector, error) {
	if selector == nil {
		return labels.Nothing(), nil
	}
	requirements, values := len(selector.MatchLabels)+len(selector.MatchExpressions), 0
	for _, e := range selector.MatchExpressions {
		values += len(e.Values)
	}
	if requirements > maxRequirements || values > maxValues {
		return nil, fmt.Errorf("a selector has %d requirements with %d values; at most %d with %d are allowed",
			requirements, values, maxRequirements, maxValues)
	}
	return metav1.LabelSelectorAsSelector(selector)
}

// appliesTo reports whether a Server applies to a workload of a class; a nil one to none.
func (s *serverRecord) appliesTo(kind objectKind, name string, class *podClass) bool {
	if s == nil {
		return false
	}
	selector := s.pods
	if kind == kindExternal {
		selector = s.externals
	}
	return selector.Matches(podLabels{name, class.labels})
}

// appendOpaque appends the ports that a Server makes opaque at the workloads of a class.
func (s *serverRecord) appendOpaque(to []federation.PortRange, class *podClass) []federation.PortRange {
	if s.port.Type == intstr.String {
		return class.ports.appendNamed(to, s.port.StrVal)
	}
	if n, is := portNumber(s.port.IntVal); is {
		to = append(to, federation.PortRange{First: n, Last: n})
	}
	return to
}

// labelSet is the labels of a Pod in one string, k=v,k=v, sorted. Neither keys nor values can hold the
// separators, nor the marks, which stand for the Pod's own name and the ordinal in it. So all Pods of a
// StatefulSet have the same labelSet.
type labelSet string

const (
	nameMark    = "$name"
	ordinalMark = "$ordinal"
)

func newLabelSet(pod string, given map[string]string, out *omissions) labelSet {
	size := 0
	for k, v := range given {
		size += len(k) + len(v)
	}
	if size > maxLabelText {
		out.addf("labels: they have %d bytes, more than %d, so that no Server selects the workload", size, maxLabelText)
		return ""
	}

	marked := make(labels.Set, len(given))
	for name, value := range given {
		if !out.validText("a label: its key", name, maxName+1+maxLabel) ||
			!out.validText("a label: its value", value, maxLabel) {
			continue
		}

		switch value {
		case pod:
			value = nameMark
		case ordinal(pod):
			value = ordinalMark
		}
		marked[name] = value
	}

	return labelSet(marked.String())
}

func ordinal(pod string) string { return pod[strings.LastIndexByte(pod, '-')+1:] }

// podLabels implements [labels.Labels].
type podLabels struct {
	pod string
	set labelSet
}

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

func (l podLabels) Has(name string) bool {
	_, found := l.Lookup(name)
	return found
}

func (l podLabels) Get(name string) string {
	value, _ := l.Lookup(name)
	return value
}

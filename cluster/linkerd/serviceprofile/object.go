package serviceprofile

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubejson "sigs.k8s.io/json"
)

// An object is a ServiceProfile as the API has it. Every field that the API knows stands here: strict
// decoding refuses others.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec spec `json:"spec"`
}

type spec struct {
	Routes       []*route        `json:"routes"`
	RetryBudget  *retryBudget    `json:"retryBudget"`
	DstOverrides []*override     `json:"dstOverrides"`
	OpaquePorts  map[uint32]bool `json:"opaquePorts"` // known, and not used: the Service says which ports are opaque
}

type route struct {
	Name            string           `json:"name"`
	Condition       *requestMatch    `json:"condition"`
	ResponseClasses []*responseClass `json:"responseClasses"`
	IsRetryable     bool             `json:"isRetryable"`
	Timeout         string           `json:"timeout"`
}

type requestMatch struct {
	All       []*requestMatch `json:"all"`
	Any       []*requestMatch `json:"any"`
	Not       json.RawMessage `json:"not"`
	Method    string          `json:"method"`
	PathRegex string          `json:"pathRegex"`
}

type responseClass struct {
	Condition *responseMatch `json:"condition"`
	IsFailure bool           `json:"isFailure"`
}

type responseMatch struct {
	All    []*responseMatch `json:"all"`
	Any    []*responseMatch `json:"any"`
	Not    json.RawMessage  `json:"not"`
	Status *statusRange     `json:"status"`
}

// negated reads what stands under not: Linkerd's documents and its Go type have one condition there, its
// CRD takes nothing but a list. Of several none must hold. It is read apart, and level by level, so that
// what nests too deep is not read at all; fields that are not known are refused here in any case.
func negated[M any](raw json.RawMessage) (list []*M, err error) {
	var strict []error
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil, nil
	case raw[0] == '[':
		strict, err = kubejson.UnmarshalStrict(raw, &list)
	default:
		list = []*M{new(M)}
		strict, err = kubejson.UnmarshalStrict(raw, list[0])
	}
	return list, errors.Join(append(strict, err)...)
}

type statusRange struct {
	Min uint32 `json:"min"`
	Max uint32 `json:"max"`
}

type retryBudget struct {
	RetryRatio          float32 `json:"retryRatio"`
	MinRetriesPerSecond uint32  `json:"minRetriesPerSecond"`
	TTL                 string  `json:"ttl"`
}

type override struct {
	Authority string `json:"authority"`
	Weight    weight `json:"weight"`
}

// A weight is a Quantity in ten-thousandths.
type weight struct {
	parts  uint32
	remark string // why it is not what was written
}

// quantity bounds what is parsed as a Quantity: the parser computes powers of ten, so an exponent of a few
// digits would keep it busy for minutes.
var quantity = regexp.MustCompile(`^[+-]?[0-9.]{1,30}([eE][+-]?[0-9]{1,2}|[A-Za-z]{1,2})?$`)

var maxWeight = resource.NewMilliQuantity(math.MaxUint32/10, resource.DecimalSI)

// UnmarshalJSON reads a Quantity: a string, or a number.
func (w *weight) UnmarshalJSON(b []byte) error {
	text := string(b)
	switch {
	case text == "null":
		return nil
	case b[0] == '"':
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
	}
	if !quantity.MatchString(text) {
		return fmt.Errorf("spec.dstOverrides: weight %.40q is no quantity, such as 1 or 500m", text)
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return fmt.Errorf("spec.dstOverrides: weight %q: %w", text, err)
	}
	switch {
	case q.Sign() < 0:
		w.remark = fmt.Sprintf("weight %q is negative: it counts as 0", text)
	case q.Cmp(*maxWeight) > 0:
		w.parts = uint32(maxWeight.MilliValue() * 10)
		w.remark = fmt.Sprintf("weight %q is more than can be said: it counts as %s", text, maxWeight)
	default:
		w.parts = uint32(q.MilliValue() * 10)
	}
	return nil
}

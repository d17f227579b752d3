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

// object is a ServiceProfile with every field of the API: strict decoding rejects others.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec spec `json:"spec"`
}

type spec struct {
	Routes       []*routeSpec `json:"routes"`
	RetryBudget  *retryBudget `json:"retryBudget"`
	DstOverrides []*override  `json:"dstOverrides"`
	// Allowed, and not used: the Service has an annotation for that.
	OpaquePorts map[uint32]bool `json:"opaquePorts"`
}

type routeSpec struct {
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

// parseNot reads the field not: a single condition, as in Linkerd's documentation and Go type, or a list,
// as in its CRD; of a list, none must hold. It is decoded level by level, so that what nests too deep is
// not decoded at all. Unknown fields are always rejected.
func parseNot[M any](raw json.RawMessage) (list []*M, err error) {
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
	parts   uint32
	warning string // why it differs from what was written
}

// quantity bounds what is parsed as a Quantity: the parser computes powers of ten, so that an exponent of a
// few digits would keep it busy for minutes.
var quantity = regexp.MustCompile(`^[+-]?[0-9.]{1,30}([eE][+-]?[0-9]{1,2}|[A-Za-z]{1,2})?$`)

var maxWeight = resource.NewMilliQuantity(math.MaxUint32/10, resource.DecimalSI)

// UnmarshalJSON accepts a Quantity as a string or a number.
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
		return fmt.Errorf("spec.dstOverrides: weight %.40q is not a quantity, such as 1 or 500m", text)
	}

	parsed, err := resource.ParseQuantity(text)
	if err != nil {
		return fmt.Errorf("spec.dstOverrides: weight %q: %w", text, err)
	}

	switch {
	case parsed.Sign() < 0:
		w.warning = fmt.Sprintf("weight %q is negative: it counts as 0", text)
	case parsed.Cmp(*maxWeight) > 0:
		w.parts = uint32(maxWeight.MilliValue() * 10)
		w.warning = fmt.Sprintf("weight %q is more than a proxy can be sent: it counts as %s", text, maxWeight)
	default:
		w.parts = uint32(parsed.MilliValue() * 10)
	}
	return nil
}

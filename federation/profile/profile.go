// Package profile holds a ServiceProfile, which configures the traffic to a Service, as plain values: what was
// parsed, and nothing of Kubernetes or of the wire.
package profile

import "time"

// A Profile is one ServiceProfile. It is immutable once it was handed out.
type Profile struct {
	Routes      []Route
	RetryBudget *RetryBudget // nil: the default
	Overrides   []Override
}

// A Route is a class of requests; the first whose condition holds counts.
type Route struct {
	Name      string
	Condition *Request
	Responses []ResponseClass
	Retryable bool
	Timeout   time.Duration // 0: none
}

// A Request is a condition on requests. Of several fields that are set all must hold; at least one is set. A
// list is set unless it is nil: of an empty one all hold, and none does.
type Request struct {
	All, Any []*Request
	Not      *Request
	Method   string // in upper case
	Path     string // regular expression
}

// A ResponseClass is a class of responses, and whether they count as failures.
type ResponseClass struct {
	Condition *Response
	Failure   bool
}

// A Response is a condition on responses, to be read like a Request.
type Response struct {
	All, Any []*Response
	Not      *Response
	Status   *StatusRange
}

// A StatusRange holds both its ends; 0 is an open one.
type StatusRange struct{ Min, Max uint32 }

// A RetryBudget bounds retries.
type RetryBudget struct {
	Ratio               float32 // of retries to requests
	MinRetriesPerSecond uint32
	TTL                 time.Duration // for which a request counts; 0: not set
}

// An Override sends a part of the traffic to another authority.
type Override struct {
	Authority string
	Weight    uint32 // relative to the other Overrides'; 10000 for a weight of 1
}

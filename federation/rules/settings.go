package rules

import "time"

// Settings are what the annotations of a Service or an EgressNetwork ask of proxies. What is nil is not asked for.
type Settings struct {
	Accrual     *Accrual
	Load        *Load // of Services only
	Timeouts    Timeouts
	HTTPRetry   *Retries
	GRPCRetry   *Retries
	OpaquePorts *PortList // nil: those of the process
}

// Timeouts bound the exchanges of HTTP and gRPC.
type Timeouts struct {
	Request  Timeout // the whole exchange
	Response Timeout // until its headers
	Idle     Timeout // between frames
}

// Given reports whether any of them is: others are then not inherited.
func (t Timeouts) Given() bool { return t.Request.Given || t.Response.Given || t.Idle.Given }

// Retries are how often and when a request is tried again.
type Retries struct {
	Limit   uint16        // 0: never, and nothing is inherited
	Timeout time.Duration // of each attempt; 0: none

	// Without conditions nothing is tried again.
	Statuses []StatusRange // of HTTP
	Codes    GRPCCodes     // of gRPC
}

// A StatusRange holds both its ends, which are between 100 and 599 and in order.
type StatusRange struct{ First, Last uint16 }

// GRPCCodes are a set of codes of gRPC.
type GRPCCodes uint8

// Codes on which requests can be tried again.
const (
	GRPCCancelled GRPCCodes = 1 << iota
	GRPCDeadlineExceeded
	GRPCInternal
	GRPCResourceExhausted
	GRPCUnavailable
)

// An Accrual is when a proxy stops to send to an endpoint that fails.
type Accrual struct {
	MaxFailures uint32 // one after another
	Backoff     Backoff

	// Unified is whether the rate of successes counts besides; otherwise what follows is zero.
	Unified         bool
	Threshold       float64       // 0 to 1
	Window          time.Duration // > 0
	MinRequests     uint32        // in a Window; at most MaxMinRequests
	HonorRetryAfter bool          // of responses
}

// MaxMinRequests is the greatest MinRequests that proxies take.
const MaxMinRequests = 1_000_000

// A Backoff is how long an endpoint that fails is left out.
type Backoff struct {
	Min, Max time.Duration // Min <= Max, and Max > 0
	Jitter   float64       // 0 to 100
}

// A Load is how endpoints that fail count as loaded when a proxy balances.
type Load struct {
	Penalty       time.Duration // at most 2^32-1 ms
	MaxRetryAfter time.Duration // up to which a Retry-After counts
}

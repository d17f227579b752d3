package policy

import (
	"math"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// timeoutsOf reads the timeouts of a rule. The deprecated field counts if the newer one is absent.
func timeoutsOf(p part) Timeouts {
	timeouts := p.at("timeouts")
	t := Timeouts{Response: timeoutOf(timeouts, "response"), Idle: timeoutOf(timeouts, "idle")}

	if timeouts.has("request") {
		p.duration("requestTimeout")
		t.Request = timeoutOf(timeouts, "request")
	} else {
		t.Request = timeoutOf(p, "requestTimeout")
	}
	return t
}

// timeoutOf reads a timeout. One of zero is not none.
func timeoutOf(p part, name string) time.Duration {
	d, present := p.duration(name)
	if present && d == 0 {
		p.failsAtOnce(name, "zero")
	}
	return d
}

// checkRetry reads what a rule tries again.
func checkRetry(rule part) {
	if !rule.has("retry") {
		return
	}

	retry := rule.at("retry")
	timeoutOf(retry, "timeout")
	if retry.has("backoff") {
		checkBackoff(retry.at("backoff"))
	}

	conditions, present := retry.need("conditions")
	if !present {
		return
	}
	if !hasAny(conditions) {
		conditions.odd("", "none, and nothing is tried again")
	}
	if conditions.field("status_ranges") != nil {
		checkStatuses(retry, conditions)
	}
}

// checkStatuses reads what only the retries of HTTP have: gRPC's may be more than 65,535.
func checkStatuses(retry, conditions part) {
	if n := retry.number("max_retries"); n > math.MaxUint16 {
		retry.invalid("max_retries", "%d", n)
	}

	for _, statuses := range conditions.list("status_ranges") {
		start, end := statuses.number("start"), statuses.number("end")
		if start == 0 || end > 599 || start > end {
			statuses.invalid("", "%d to %d", start, end)
		}
	}
}

// hasAny reports whether a message has any field that is not empty.
func hasAny(p part) (has bool) {
	p.message.Range(func(protoreflect.FieldDescriptor, protoreflect.Value) bool {
		has = true
		return false
	})
	return has
}

// maxJitter is the largest ratio of jitter that a backoff may have.
const maxJitter = 100

func checkBackoff(p part) {
	least, most := p.needDuration("min_backoff"), p.needDuration("max_backoff")
	switch {
	case least > most:
		p.invalid("min_backoff", "%v, beyond the maximum of %v", least, most)
	case p.has("max_backoff") && most == 0:
		p.invalid("max_backoff", "zero")
	}

	if jitter := p.value("jitter_ratio").Float(); !(jitter >= 0 && jitter <= maxJitter) {
		p.invalid("jitter_ratio", "%v", jitter)
	}
}

// Bounds of the breaker that looks at success rates.
const (
	minWindow      = 10 * time.Millisecond
	maxMinRequests = 1_000_000
	thresholdSteps = 10_000 // the proxy rounds a threshold to 0.01 %
)

// checkAccrual reads which failures break the circuit of an endpoint.
func checkAccrual(protocol part) {
	if !protocol.has("failure_accrual") {
		return
	}

	accrual := protocol.at("failure_accrual")
	kind := accrual.needOne("kind")
	if kind == "" {
		return
	}

	breaker := accrual.at(kind)
	if backoff, present := breaker.need("backoff"); present {
		checkBackoff(backoff)
	}
	if kind == "unified" {
		checkSuccessRate(breaker)
	}
}

// checkSuccessRate reads what the unified breaker has besides. The window counts only if there is a threshold.
func checkSuccessRate(breaker part) {
	threshold := breaker.value("success_rate_threshold").Float()
	if !(threshold >= 0 && threshold <= 1) {
		breaker.invalid("success_rate_threshold", "%v", threshold)
	}

	window, present := breaker.duration("decay")
	if present && window < minWindow && math.Round(threshold*thresholdSteps) != 0 {
		breaker.invalid("decay", "%v, below %v", window, minWindow)
	}
	if n := breaker.number("min_requests"); n > maxMinRequests {
		breaker.invalid("min_requests", "%d", n)
	}
}

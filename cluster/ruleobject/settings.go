package ruleobject

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// Annotations come in groups: accrual, load, timeouts, and the retries of HTTP and of gRPC. A bad value discards its
// group and nothing else, because half of a group may be worse than none. The lists of ports are a group each, too, but
// there a bad item is dropped alone.

// maxConditions bounds the conditions on which requests are tried again.
const maxConditions = 100

// settings reads the annotations of a Service or, without load, of an EgressNetwork.
func (r *reader) settings(load bool) (to rules.Settings) {
	to.Accrual = group(r, parseAccrual)
	if load {
		to.Load = group(r, parseLoad)
	}
	to.Timeouts = r.timeouts()
	to.HTTPRetry, to.GRPCRetry = group(r, parseHTTPRetry), group(r, parseGRPCRetry)
	r.checkRetries(to.HTTPRetry, to.GRPCRetry)

	to.OpaquePorts = r.portList(linkerd.OpaquePortsAnnotation)
	return to
}

// group reads a group of annotations. One with a bad value is left out, and the reader has why.
func group[V any](r *reader, parse func(values) (*V, error)) *V {
	to, err := parse(r.object.Annotations)
	if err == nil {
		return to
	}
	reason := r.leaveOut(rules.PartAnnotation, "%v", err)
	if r.kind.IsRoute() {
		r.deny(reason)
	}
	return nil
}

func (r *reader) timeouts() rules.Timeouts {
	to := group(r, parseTimeouts)
	if to == nil {
		return rules.Timeouts{}
	}
	for _, timeout := range []rules.Timeout{to.Request, to.Response, to.Idle} {
		if timeout.Given && timeout.After == 0 {
			r.note(rules.PartAnnotation, "a timeout of 0 is no timeout")
		}
	}
	return *to
}

// checkRetries notes a limit without conditions. Of a Service those of one protocol are enough.
func (r *reader) checkRetries(all ...*rules.Retries) {
	limited := false

	for _, retries := range all {
		switch {
		case retries == nil || retries.Limit == 0:
		case len(retries.Statuses) > 0 || retries.Codes != 0:
			return
		default:
			limited = true
		}
	}

	if limited {
		r.note(rules.PartAnnotation, "nothing is tried again without %s or %s", linkerd.RetryHTTPAnnotation,
			linkerd.RetryGRPCAnnotation)
	}
}

// values are annotations, of which each method reads one by its key. A bad value is an error that has the key.
type values map[string]string

// value parses an annotation, or returns what counts without it.
func value[V any](all values, key string, otherwise V, parse func(string) (V, error)) (V, error) {
	text, given := all[key]
	if !given {
		return otherwise, nil
	}
	v, err := parse(text)
	if err != nil {
		return otherwise, fmt.Errorf("%s: %w", key, err)
	}
	return v, nil
}

func (v values) duration(key string, otherwise time.Duration) (time.Duration, error) {
	return value(v, key, otherwise, rules.ParseAnnotationDuration)
}

func (v values) timeout(key string) (rules.Timeout, error) {
	_, given := v[key]
	after, err := v.duration(key, 0)
	return rules.Timeout{After: after, Given: given}, err
}

func (v values) boolean(key string) (bool, error) {
	return value(v, key, false, func(text string) (bool, error) {
		b, err := strconv.ParseBool(text)
		return b, wrong(err, text, "no boolean")
	})
}

func (v values) integer(key string, bits int, otherwise uint64) (uint64, error) {
	return value(v, key, otherwise, func(text string) (uint64, error) {
		n, err := strconv.ParseUint(text, 10, bits)
		return n, wrong(err, text, fmt.Sprintf("no number of at most %d", uint64(1)<<bits-1))
	})
}

// ratio reads a decimal number between 0 and a greatest one.
func (v values) ratio(key string, otherwise, greatest float64) (float64, error) {
	return value(v, key, otherwise, func(text string) (float64, error) {
		f, err := strconv.ParseFloat(text, 64)
		isDecimal := strings.Trim(text, "0123456789.eE+-") == ""
		if err == nil && (!isDecimal || !(f >= 0 && f <= greatest)) {
			err = strconv.ErrRange
		}
		return f, wrong(err, text, fmt.Sprintf("no number between 0 and %g", greatest))
	})
}

// wrong returns what is wrong with a text if there is an error.
func wrong(err error, text, what string) error {
	if err != nil {
		err = fmt.Errorf("%.64q is %s", text, what)
	}
	return err
}

const (
	consecutive = "consecutive"
	unified     = "unified"

	defaultMaxFailures = 7
	defaultMinPenalty  = time.Second
	defaultMaxPenalty  = time.Minute
	defaultJitter      = 0.5
	defaultThreshold   = 0.8
	defaultWindow      = 10 * time.Second
	defaultMinRequests = 5
	minWindow          = 10 * time.Millisecond // which proxies divide
)

// parseAccrual reads when endpoints are left out. Nil without error is never.
func parseAccrual(all values) (*rules.Accrual, error) {
	mode, given := all[linkerd.FailureAccrualAnnotation]
	switch {
	case !given:
		return nil, nil
	case mode != consecutive && mode != unified:
		return nil, fmt.Errorf("%s: %.64q is neither %s nor %s", linkerd.FailureAccrualAnnotation, mode, consecutive,
			unified)
	}

	failures, err := all.integer(linkerd.MaxFailuresAnnotation, 32, defaultMaxFailures)
	if err != nil {
		return nil, err
	}
	to := &rules.Accrual{MaxFailures: uint32(failures), Unified: mode == unified}
	if to.Backoff, err = parseBackoff(all); err != nil {
		return nil, err
	}
	if to.Unified {
		err = parseUnified(all, to)
	}
	return to, err
}

func parseBackoff(all values) (to rules.Backoff, err error) {
	if to.Min, err = all.duration(linkerd.MinPenaltyAnnotation, defaultMinPenalty); err != nil {
		return to, err
	}
	if to.Max, err = all.duration(linkerd.MaxPenaltyAnnotation, defaultMaxPenalty); err != nil {
		return to, err
	}
	if to.Max == 0 || to.Min > to.Max {
		return to, fmt.Errorf("%s: it is to be at least %v, and not 0", linkerd.MaxPenaltyAnnotation, to.Min)
	}
	to.Jitter, err = all.ratio(linkerd.JitterRatioAnnotation, defaultJitter, 100)
	return to, err
}

// parseUnified reads what only the unified mode has.
func parseUnified(all values, to *rules.Accrual) (err error) {
	if to.Threshold, err = all.ratio(linkerd.SuccessThresholdAnnotation, defaultThreshold, 1); err != nil {
		return err
	}
	if to.Window, err = all.duration(linkerd.SuccessWindowAnnotation, defaultWindow); err != nil {
		return err
	}
	if to.Window == 0 || to.Window < minWindow && to.Threshold > 0 {
		return fmt.Errorf("%s: %v is less than %v", linkerd.SuccessWindowAnnotation, to.Window, minWindow)
	}

	requests, err := all.integer(linkerd.SuccessMinRequestsAnnotation, 32, defaultMinRequests)
	if err != nil {
		return err
	}
	to.MinRequests = uint32(min(requests, rules.MaxMinRequests))
	to.HonorRetryAfter, err = all.boolean(linkerd.HonorRetryAfterAnnotation)
	return err
}

const (
	defaultPenalty       = 5 * time.Second
	defaultMaxRetryAfter = 300 * time.Second
	maxPenalty           = math.MaxUint32 * time.Millisecond // which proxies count in
)

// parseLoad reads how failures count as load. Nil without error is not at all.
func parseLoad(all values) (*rules.Load, error) {
	penalize, err := all.boolean(linkerd.PenalizeFailuresAnnotation)
	if err != nil || !penalize {
		return nil, err
	}

	to := &rules.Load{}
	if to.Penalty, err = all.duration(linkerd.LoadPenaltyAnnotation, defaultPenalty); err != nil {
		return nil, err
	}
	if to.Penalty > maxPenalty {
		return nil, fmt.Errorf("%s: %v is more than %v", linkerd.LoadPenaltyAnnotation, to.Penalty, maxPenalty)
	}
	to.MaxRetryAfter, err = all.duration(linkerd.LoadMaxRetryAfterAnnotation, defaultMaxRetryAfter)
	return to, err
}

func parseTimeouts(all values) (*rules.Timeouts, error) {
	request, err := all.timeout(linkerd.RequestTimeoutAnnotation)
	if err != nil {
		return nil, err
	}
	response, err := all.timeout(linkerd.ResponseTimeoutAnnotation)
	if err != nil {
		return nil, err
	}
	idle, err := all.timeout(linkerd.IdleTimeoutAnnotation)
	return &rules.Timeouts{Request: request, Response: response, Idle: idle}, err
}

func parseHTTPRetry(all values) (*rules.Retries, error) {
	to, err := parseRetry(all, linkerd.RetryHTTPAnnotation)
	if to == nil || err != nil {
		return nil, err
	}
	to.Statuses, err = value(all, linkerd.RetryHTTPAnnotation, nil, parseStatuses)
	return to, err
}

func parseGRPCRetry(all values) (*rules.Retries, error) {
	to, err := parseRetry(all, linkerd.RetryGRPCAnnotation)
	if to == nil || err != nil {
		return nil, err
	}
	to.Codes, err = value(all, linkerd.RetryGRPCAnnotation, 0, parseCodes)
	return to, err
}

// parseRetry reads what HTTP and gRPC have in common. Without any annotation of the group it returns nil.
func parseRetry(all values, conditions string) (*rules.Retries, error) {
	keys := []string{linkerd.RetryLimitAnnotation, linkerd.RetryTimeoutAnnotation, conditions}
	if !slices.ContainsFunc(keys, func(key string) bool { _, given := all[key]; return given }) {
		return nil, nil
	}

	limit, err := all.integer(linkerd.RetryLimitAnnotation, 16, 1)
	if err != nil {
		return nil, err
	}
	timeout, err := all.duration(linkerd.RetryTimeoutAnnotation, 0)
	return &rules.Retries{Limit: uint16(limit), Timeout: timeout}, err
}

var (
	errConditions = fmt.Errorf("it has more than %d conditions", maxConditions)
	errStatus     = errors.New("no status between 100 and 599, range of them, 5xx or gateway-error")
	errCode       = errors.New("no code on which calls are tried again")
)

func parseStatuses(text string) (all []rules.StatusRange, err error) {
	for item := range strings.SplitSeq(text, ",") {
		if len(all) == maxConditions {
			return nil, errConditions
		}
		status, err := parseStatus(strings.ToLower(item))
		if err != nil {
			return nil, fmt.Errorf("%.64q: %w", item, err)
		}
		all = append(all, status)
	}
	return all, nil
}

func parseStatus(item string) (to rules.StatusRange, err error) {
	switch item {
	case "5xx":
		return rules.StatusRange{First: 500, Last: 599}, nil
	case "gateway-error":
		return rules.StatusRange{First: 502, Last: 504}, nil
	}

	from, until, isRange := strings.Cut(item, "-")
	if !isRange {
		until = from
	}
	first, err1 := strconv.ParseUint(from, 10, 16)
	last, err2 := strconv.ParseUint(until, 10, 16)
	if err1 != nil || err2 != nil || first < 100 || last > 599 || first > last {
		return to, errStatus
	}
	return rules.StatusRange{First: uint16(first), Last: uint16(last)}, nil
}

var grpcCodes = map[string]rules.GRPCCodes{
	"cancelled": rules.GRPCCancelled, "deadline-exceeded": rules.GRPCDeadlineExceeded, "internal": rules.GRPCInternal,
	"resource-exhausted": rules.GRPCResourceExhausted, "unavailable": rules.GRPCUnavailable,
}

func parseCodes(text string) (all rules.GRPCCodes, err error) {
	for item := range strings.SplitSeq(text, ",") {
		code, known := grpcCodes[strings.ToLower(item)]
		if !known {
			return 0, fmt.Errorf("%.64q: %w", item, errCode)
		}
		all |= code
	}
	return all, nil
}

package app_test

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What the model reads of annotations. A bad one of a group makes all of the group count for nothing.

const (
	balancerNote = "balancer.linkerd.io/failure-accrual"
	alphaNote    = "balancer.alpha.linkerd.io/"
	retryNote    = "retry.linkerd.io/"
	timeoutNote  = "timeout.linkerd.io/"
	opaqueNote   = "config.linkerd.io/opaque-ports"
)

// notes are the annotations of an object, read one after the other. After a bad one all of them are.
type notes struct {
	all map[string]string
	bad bool
}

// duration returns that in an annotation.
func (n *notes) duration(key string, otherwise time.Duration) time.Duration {
	text, given := n.all[key]
	if !given {
		return otherwise
	}
	d, ok := annotationDuration(text)
	n.bad = n.bad || !ok
	return d
}

// number returns one up to a greatest one.
func (n *notes) number(key string, otherwise, greatest float64) float64 {
	text, given := n.all[key]
	if !given {
		return otherwise
	}
	f, err := strconv.ParseFloat(text, 64)
	n.bad = n.bad || err != nil || f < 0 || f > greatest
	return f
}

func (n *notes) truth(key string) bool {
	text, given := n.all[key]
	is, err := strconv.ParseBool(text)
	n.bad = n.bad || given && err != nil
	return is
}

// accrualOf returns when endpoints are left out, as it is printed; empty for never.
func (m *policyModel) accrualOf(annotations map[string]string) string {
	n := &notes{all: annotations}
	mode, given := n.all[balancerNote]
	failures := n.number(balancerNote+"-consecutive-max-failures", 7, math.MaxUint32)
	least := n.duration(balancerNote+"-consecutive-min-penalty", time.Second)
	most := n.duration(balancerNote+"-consecutive-max-penalty", time.Minute)
	jitter := n.number(balancerNote+"-consecutive-jitter-ratio", 0.5, 100)
	backoff := fmt.Sprintf("backoff=%v/%v/%v", least, most, jitter)
	n.bad = n.bad || most == 0 || least > most

	text := fmt.Sprintf("accrual consecutive failures=%v %s", failures, backoff)
	switch mode {
	case "consecutive":
	case "unified":
		threshold := n.number(alphaNote+"failure-accrual-success-rate-threshold", 0.8, 1)
		window := n.duration(alphaNote+"failure-accrual-success-rate-window", 10*time.Second)
		requests := n.number(alphaNote+"failure-accrual-success-rate-min-requests", 5, math.MaxUint32)
		n.bad = n.bad || window == 0 || window < 10*time.Millisecond && threshold > 0
		if n.truth(alphaNote + "failure-accrual-honor-retry-after") {
			backoff += "/hint"
		}
		text = fmt.Sprintf("accrual unified threshold=%v window=%v requests=%d failures=%v %s",
			threshold, window, min(int(requests), 1_000_000), failures, backoff)
	default:
		n.bad = true
	}

	switch {
	case !given:
		return ""
	case n.bad:
		m.sees("an accrual with a bad value")
		return ""
	}
	m.sees("accrual " + mode)
	return text
}

// loadOf returns how failures count as load, as it is printed; empty if they do not.
func (m *policyModel) loadOf(annotations map[string]string) string {
	n := &notes{all: annotations}
	penalizes := n.truth(alphaNote + "penalize-failures")
	penalty := n.duration(alphaNote+"load-biaser-penalty", 5*time.Second)
	most := n.duration(alphaNote+"load-biaser-max-retry-after", 300*time.Second)
	if !penalizes || n.bad || penalty.Milliseconds() > math.MaxUint32 {
		return ""
	}
	m.sees("failures that count as load")
	return fmt.Sprintf("penalty=%v/10s/%v", penalty, most)
}

// A modelTimeouts is timeouts that annotations or a rule give.
type modelTimeouts struct {
	given                   bool
	request, response, idle time.Duration // 0: none
	requestGiven            bool
}

func (m *policyModel) timeoutsOf(annotations map[string]string) (to modelTimeouts) {
	n := &notes{all: annotations}
	to.request = n.duration(timeoutNote+"request", 0)
	to.response, to.idle = n.duration(timeoutNote+"response", 0), n.duration(timeoutNote+"idle", 0)
	if n.bad {
		m.sees("a timeout annotation with a bad value")
		return modelTimeouts{}
	}

	for _, name := range []string{"request", "response", "idle"} {
		_, given := annotations[timeoutNote+name]
		to.given = to.given || given
		to.requestGiven = to.requestGiven || given && name == "request"
	}
	return to
}

// text returns them as they are printed.
func (t modelTimeouts) text() string {
	var set []string
	add := func(name string, after time.Duration) {
		if after != 0 {
			set = append(set, name+"="+after.String())
		}
	}
	add("request", t.request)
	add("response", t.response)
	add("idle", t.idle)
	return unless("[]", "timeouts", brackets(set, " "))
}

// A modelRetry is what annotations have of retries.
type modelRetry struct {
	given bool
	text  string // as it is printed; empty for none
}

// retryOf returns the retries of requests, or of calls of gRPC.
func (m *policyModel) retryOf(annotations map[string]string, isGRPC bool) (to modelRetry) {
	n := &notes{all: annotations}
	limit := n.number(retryNote+"limit", 1, math.MaxUint16)
	timeout := n.duration(retryNote+"timeout", 0)
	conditions, condition := "", "http"
	if isGRPC {
		condition = "grpc"
	}
	if text, given := n.all[retryNote+condition]; given {
		read := statusConditions
		if isGRPC {
			read = codeConditions
		}
		var ok bool
		conditions, ok = read(text)
		n.bad = n.bad || !ok
	}
	if n.bad {
		m.sees("a retry annotation with a bad value")
		return modelRetry{}
	}

	for _, name := range []string{"limit", "timeout", condition} {
		_, given := annotations[retryNote+name]
		to.given = to.given || given
	}
	if !to.given || limit == 0 {
		return to
	}
	words := []string{fmt.Sprint("limit=", limit)}
	if timeout != 0 {
		words = append(words, "timeout="+timeout.String())
	}
	to.text = "retry=" + brackets(append(words, "on="+dash(conditions)), " ")
	return to
}

func statusConditions(text string) (conditions string, readable bool) {
	var all []string
	for item := range strings.SplitSeq(strings.ToLower(text), ",") {
		match := regexp.MustCompile(`^([1-5]\d\d)(?:-([1-5]\d\d))?$`).FindStringSubmatch(item)
		switch {
		case item == "5xx":
			all = append(all, "500-599")
		case item == "gateway-error":
			all = append(all, "502-504")
		case match == nil || match[2] != "" && match[2] < match[1]:
			return "", false
		case match[2] == "":
			all = append(all, item+"-"+item)
		default:
			all = append(all, item)
		}
	}
	return strings.Join(all, ","), true
}

func codeConditions(text string) (conditions string, readable bool) {
	known := []string{"cancelled", "deadline-exceeded", "resource-exhausted", "internal", "unavailable"}
	given := strings.Split(text, ",")
	for _, item := range given {
		if !slices.Contains(known, item) {
			return "", false
		}
	}
	known = slices.DeleteFunc(known, func(code string) bool { return !slices.Contains(given, code) })
	return strings.Join(known, ","), true
}

// opaquePort reports whether a port is in a list of ports, where names are those of ports.
func (m *policyModel) opaquePort(list string, port int, named map[string][]int) bool {
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		first, last, isRange := strings.Cut(item, "-")
		from, err1 := strconv.Atoi(first)
		until, err2 := strconv.Atoi(last)
		switch {
		case isRange && err1 == nil && err2 == nil:
			if from > 0 && until < 65536 && from <= port && port <= until {
				m.sees("a port in an opaque range")
				return true
			}
		case item == strconv.Itoa(port):
			return true
		case slices.Contains(named[item], port):
			m.sees("an opaque port by name")
			return true
		}
	}
	return false
}

package rules

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Why a text is no duration.
var (
	ErrDuration = errors.New("not a duration, such as 1s or 250ms")
	ErrNegative = errors.New("a negative duration")
)

// A Timeout is the time that something may take. One that is given and 0 is no timeout, and not inherited either.
type Timeout struct {
	After time.Duration // never negative
	Given bool
}

// ParseGoDuration reads a duration of HTTPRoutes of policy.linkerd.io, as Go prints them: 1h30m, 0.5s. The error wraps
// ErrDuration or ErrNegative.
func ParseGoDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%.64q: %w", text, ErrDuration)
	case d < 0:
		return 0, fmt.Errorf("%.64q: %w", text, ErrNegative)
	}
	return d, nil
}

// gatewayDuration is a duration of GEP-2257.
var gatewayDuration = regexp.MustCompile(`^([0-9]{1,5}(h|m|s|ms)){1,4}$`)

// ParseGatewayDuration reads a duration of routes of the Gateway API: a sum such as 1m30s (GEP-2257), or what
// ParseAnnotationDuration reads. The error wraps ErrDuration.
func ParseGatewayDuration(text string) (time.Duration, error) {
	if gatewayDuration.MatchString(text) {
		return ParseGoDuration(text)
	}
	return ParseAnnotationDuration(text)
}

// ParseAnnotationDuration reads a duration of annotations: one integer and one of the units ms, s, m, h and d, without
// sign, fraction or blanks. 0 needs no unit. The error wraps ErrDuration; more than 292 years are one.
func ParseAnnotationDuration(text string) (time.Duration, error) {
	digits := strings.TrimRight(text, "mshd")
	unit, known := units[text[len(digits):]]
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || !known && (n != 0 || text != digits) || known && n > uint64(math.MaxInt64/unit) {
		return 0, fmt.Errorf("%.64q: %w", text, ErrDuration)
	}
	return time.Duration(n) * unit, nil
}

var units = map[string]time.Duration{
	"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
}

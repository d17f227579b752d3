package ruleobject

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/federation/rules"
)

const (
	accrual = "balancer.linkerd.io/failure-accrual"
	success = "balancer.alpha.linkerd.io/failure-accrual-success-rate"
	load    = "balancer.alpha.linkerd.io/"
)

func given(d time.Duration) rules.Timeout { return rules.Timeout{After: d, Given: true} }

func serviceSettings(annotations map[string]string) (rules.Settings, []rules.Finding) {
	service := ReadService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}})
	return service.Settings, service.Findings
}

func TestServiceSettings(t *testing.T) {
	consecutively := rules.Accrual{
		MaxFailures: 7, Backoff: rules.Backoff{Min: time.Second, Max: time.Minute, Jitter: 0.5},
	}
	accruing := func(change func(*rules.Accrual)) rules.Settings {
		a := consecutively
		change(&a)
		return rules.Settings{Accrual: &a}
	}
	byDefault := accruing(func(*rules.Accrual) {})
	unifying := func(change func(*rules.Accrual)) rules.Settings {
		return accruing(func(a *rules.Accrual) {
			a.Unified, a.Threshold, a.Window, a.MinRequests = true, 0.8, 10*time.Second, 5
			change(a)
		})
	}
	retrying := func(http, grpc *rules.Retries) rules.Settings {
		return rules.Settings{HTTPRetry: http, GRPCRetry: grpc}
	}
	statuses := func(limit uint16, all ...rules.StatusRange) *rules.Retries {
		return &rules.Retries{Limit: limit, Statuses: all}
	}
	loading := func(penalty, retryAfter time.Duration) rules.Settings {
		return rules.Settings{Load: &rules.Load{Penalty: penalty, MaxRetryAfter: retryAfter}}
	}
	var nothing rules.Settings
	const noConditions = "annotation: nothing is tried again without"

	for _, c := range []struct {
		id          string
		annotations map[string]string
		want        rules.Settings
		findings    []string
	}{
		{"none", map[string]string{"other": "x"}, nothing, nil},
		{"PR86", map[string]string{accrual: "consecutive"}, byDefault, nil},
		{
			"PR87", map[string]string{
				accrual: "consecutive", accrual + "-consecutive-max-failures": "3",
				accrual + "-consecutive-min-penalty": "2s", accrual + "-consecutive-max-penalty": "4s",
				accrual + "-consecutive-jitter-ratio": "0.1",
			}, accruing(func(a *rules.Accrual) {
				a.MaxFailures = 3
				a.Backoff = rules.Backoff{Min: 2 * time.Second, Max: 4 * time.Second, Jitter: 0.1}
			}), nil,
		},
		{
			"PR88/order",
			map[string]string{accrual: "consecutive", accrual + "-consecutive-min-penalty": "61s"},
			nothing,
			[]string{"annotation: balancer.linkerd.io/failure-accrual-consecutive-max-penalty: it is to be at least"},
		},
		{
			"PR88/0", map[string]string{
				accrual: "consecutive", accrual + "-consecutive-min-penalty": "0", accrual + "-consecutive-max-penalty": "0",
			}, nothing, []string{"and not 0"},
		},
		{
			"PR88/jitter",
			map[string]string{accrual: "consecutive", accrual + "-consecutive-jitter-ratio": "101"},
			nothing,
			[]string{`"101" is no number between 0 and 100`},
		},
		{
			"jitter/NaN",
			map[string]string{accrual: "consecutive", accrual + "-consecutive-jitter-ratio": "NaN"},
			nothing,
			[]string{`"NaN" is no number`},
		},
		{
			"jitter/hexadecimal",
			map[string]string{accrual: "consecutive", accrual + "-consecutive-jitter-ratio": "0x1p-2"},
			nothing,
			[]string{`"0x1p-2" is no number`},
		},
		{"PR88/mode", map[string]string{accrual: "x"}, nothing, []string{`"x" is neither consecutive nor unified`}},
		{
			"failures",
			map[string]string{accrual: "consecutive", accrual + "-consecutive-max-failures": "4294967296"},
			nothing,
			[]string{"is no number of at most 4294967295"},
		},
		{
			"PR89", map[string]string{
				accrual: "unified", success + "-threshold": "0.9", success + "-window": "30s",
				success + "-min-requests": "10", load + "failure-accrual-honor-retry-after": "true",
			}, unifying(func(a *rules.Accrual) {
				a.Threshold, a.Window, a.MinRequests, a.HonorRetryAfter = 0.9, 30*time.Second, 10, true
			}), nil,
		},
		{"PR90", map[string]string{accrual: "consecutive", success + "-threshold": "2"}, byDefault, nil},
		{
			"threshold",
			map[string]string{accrual: "unified", success + "-threshold": "2"},
			nothing,
			[]string{`"2" is no number between 0 and 1`},
		},
		{
			"PR91",
			map[string]string{accrual: "unified", success + "-window": "5ms"},
			nothing,
			[]string{"5ms is less than 10ms"},
		},
		{
			"PR91/threshold 0", map[string]string{
				accrual: "unified", success + "-window": "5ms", success + "-threshold": "0",
			}, unifying(func(a *rules.Accrual) { a.Threshold, a.Window = 0, 5*time.Millisecond }), nil,
		},
		{
			"window 0",
			map[string]string{accrual: "unified", success + "-window": "0", success + "-threshold": "0"},
			nothing,
			[]string{"0s is less than"},
		},
		{
			"min-requests",
			map[string]string{accrual: "unified", success + "-min-requests": "4000000000"},
			unifying(func(a *rules.Accrual) { a.MinRequests = rules.MaxMinRequests }), nil,
		},
		{
			"honor",
			map[string]string{accrual: "unified", load + "failure-accrual-honor-retry-after": "yes"},
			nothing,
			[]string{`"yes" is no boolean`},
		},
		{
			"PR93", map[string]string{
				load + "penalize-failures": "true", load + "load-biaser-penalty": "1s",
				load + "load-biaser-max-retry-after": "60s",
			}, loading(time.Second, time.Minute), nil,
		},
		{"load", map[string]string{load + "penalize-failures": "1"}, loading(5*time.Second, 300*time.Second), nil},
		{
			"load off",
			map[string]string{load + "penalize-failures": "f", load + "load-biaser-penalty": "x"},
			nothing, nil,
		},
		{
			"load/long",
			map[string]string{load + "penalize-failures": "true", load + "load-biaser-penalty": "50d"},
			nothing,
			[]string{"is more than"},
		},
		{
			"PR74", map[string]string{
				"timeout.linkerd.io/request": "5s", "timeout.linkerd.io/response": "2s", "timeout.linkerd.io/idle": "1m",
			}, rules.Settings{Timeouts: rules.Timeouts{
				Request: given(5 * time.Second), Response: given(2 * time.Second), Idle: given(time.Minute),
			}}, nil,
		},
		{
			"timeout 0",
			map[string]string{"timeout.linkerd.io/request": "0"},
			rules.Settings{Timeouts: rules.Timeouts{Request: given(0)}},
			[]string{"annotation: a timeout of 0 is no timeout"},
		},
		{
			"PR78",
			map[string]string{"timeout.linkerd.io/request": "abc", "timeout.linkerd.io/idle": "1s"},
			nothing,
			[]string{`annotation: timeout.linkerd.io/request: "abc": not a duration`},
		},
		{
			"PR98",
			map[string]string{"retry.linkerd.io/limit": "-1", "timeout.linkerd.io/idle": "1s"},
			rules.Settings{Timeouts: rules.Timeouts{Idle: given(time.Second)}},
			[]string{`annotation: retry.linkerd.io/limit: "-1" is no number of at most 65535`},
		},
		{"PR81/blank", map[string]string{"retry.linkerd.io/http": "5xx, 404"}, nothing, []string{`" 404": no status`}},
		{"PR81/600", map[string]string{"retry.linkerd.io/http": "600"}, nothing, []string{`"600": no status`}},
		{"PR81/order", map[string]string{"retry.linkerd.io/http": "404-400"}, nothing, []string{`"404-400": no status`}},
		{"status/empty", map[string]string{"retry.linkerd.io/http": ""}, nothing, []string{`"": no status`}},
		{
			"status/many",
			map[string]string{"retry.linkerd.io/http": strings.Repeat("500,", 100) + "500"},
			nothing,
			[]string{"more than 100 conditions"},
		},
		{
			"statuses",
			map[string]string{"retry.linkerd.io/http": "5XX,Gateway-Error,404,500-503"},
			retrying(statuses(1, rules.StatusRange{First: 500, Last: 599}, rules.StatusRange{First: 502, Last: 504},
				rules.StatusRange{First: 404, Last: 404}, rules.StatusRange{First: 500, Last: 503}), nil), nil,
		},
		{
			"PR82", map[string]string{
				"retry.linkerd.io/grpc": "cancelled,deadline-exceeded,internal,resource-exhausted,unavailable",
			}, retrying(nil, &rules.Retries{Limit: 1, Codes: 31}), nil,
		},
		{"codes", map[string]string{"retry.linkerd.io/grpc": "unknown"}, nothing, []string{`"unknown": no code`}},
		{
			"PR83/timeout",
			map[string]string{"retry.linkerd.io/timeout": "2s"},
			retrying(&rules.Retries{Limit: 1, Timeout: 2 * time.Second}, &rules.Retries{Limit: 1, Timeout: 2 * time.Second}),
			[]string{noConditions},
		},
		{
			"PR83/limit",
			map[string]string{"retry.linkerd.io/limit": "3"},
			retrying(statuses(3), statuses(3)),
			[]string{noConditions},
		},
		{
			"limit and statuses",
			map[string]string{"retry.linkerd.io/limit": "3", "retry.linkerd.io/http": "500"},
			retrying(statuses(3, rules.StatusRange{First: 500, Last: 500}), statuses(3)), nil,
		},
		{
			"limit 0",
			map[string]string{"retry.linkerd.io/limit": "0", "retry.linkerd.io/http": "500"},
			retrying(statuses(0, rules.StatusRange{First: 500, Last: 500}), statuses(0)), nil,
		},
		{"PO34", map[string]string{"config.linkerd.io/opaque-ports": "8080"}, opaque("8080"), nil},
		{"PO36", map[string]string{"config.linkerd.io/opaque-ports": ""}, opaque(""), nil},
		{
			"ports/bad",
			map[string]string{"config.linkerd.io/opaque-ports": "8080,0,http,x_y"},
			opaque("8080,http"),
			[]string{`annotation: config.linkerd.io/opaque-ports: 2 items are left out: "0"`},
		},
	} {
		t.Run(c.id, func(t *testing.T) {
			got, findings := serviceSettings(c.annotations)
			if diff := cmp.Diff(c.want, got, readable); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if !contain(lines(findings), c.findings) {
				t.Errorf("findings %q, want %q", lines(findings), c.findings)
			}
		})
	}
}

func opaque(list string) rules.Settings {
	ports, _, _ := rules.ParsePortList(list)
	return rules.Settings{OpaquePorts: ports}
}

// Whatever annotations have, proxies accept what is read of them.
func FuzzServiceSettings(f *testing.F) {
	for _, c := range [][3]string{
		{"unified", "1s", "5xx"}, {"consecutive", "0", "cancelled"}, {"true", "0.5", "1,2"}, {"100-599", "65536", "a-b"},
	} {
		f.Add(c[0], c[1], c[2])
	}
	f.Fuzz(func(t *testing.T, a, b, c string) {
		annotations := map[string]string{}
		for i, key := range []string{
			accrual, accrual + "-consecutive-max-failures", accrual + "-consecutive-min-penalty",
			accrual + "-consecutive-max-penalty", accrual + "-consecutive-jitter-ratio", success + "-threshold",
			success + "-window", success + "-min-requests", load + "penalize-failures", load + "load-biaser-penalty",
			"timeout.linkerd.io/request", "retry.linkerd.io/limit", "retry.linkerd.io/http", "retry.linkerd.io/grpc",
		} {
			annotations[key] = []string{a, b, c}[i%3]
		}
		got, findings := serviceSettings(annotations)
		checkFindings(t, &rules.Meta{Findings: findings})

		if a := got.Accrual; a != nil && (a.Backoff.Max <= 0 || a.Backoff.Min > a.Backoff.Max || !(a.Backoff.Jitter >= 0 &&
			a.Backoff.Jitter <= 100) || a.Unified && (!(a.Threshold >= 0 && a.Threshold <= 1) || a.Window <= 0 ||
			a.MinRequests > rules.MaxMinRequests)) {
			t.Errorf("%+v", a)
		}
		if retry := got.HTTPRetry; retry != nil {
			for _, s := range retry.Statuses {
				if s.First < 100 || s.First > s.Last || s.Last > 599 {
					t.Errorf("%+v", s)
				}
			}
		}
	})
}

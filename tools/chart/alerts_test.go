package main

import (
	"os/exec"
	"strings"
	"testing"
)

const (
	alertsFile = server + "/files/alerts.yaml"
	alertTests = server + "/tests/alerts.yaml"
)

// promtool runs that of this module. Its discovery of clouds is left out: it would take most of the time to build.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	args = append([]string{"run", "-tags", "remove_all_sd", "github.com/prometheus/prometheus/cmd/promtool"}, args...)
	if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

func TestAlerts(t *testing.T) {
	promtool(t, "check", "rules", alertsFile)
	promtool(t, "test", "rules", alertTests, server+"/tests/healthy.yaml")
}

// Every alert fires in a unit test, which lists all that fire in it, and has one of two severities. Where it leads is
// tested in internal/repo.
func TestAlertsAreExplained(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert               string
				Labels, Annotations map[string]string
			}
		}
	}
	read(t, alertsFile, &rules)
	var tests struct {
		Tests []struct {
			Cases []struct {
				Samples []struct{ Labels string } `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		}
	}
	read(t, alertTests, &tests)
	fires := map[string]bool{}
	for _, test := range tests.Tests {
		for _, c := range test.Cases {
			for _, s := range c.Samples {
				_, name, _ := strings.Cut(s.Labels, `alertname="`)
				name, _, _ = strings.Cut(name, `"`)
				fires[name] = true
			}
		}
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if !fires[r.Alert] {
				t.Errorf("%s fires in no test", r.Alert)
			}
			if s := r.Labels["severity"]; s != "page" && s != "ticket" {
				t.Errorf("%s has severity %q", r.Alert, s)
			}
			for _, annotation := range []string{"summary", "description", "runbook_url"} {
				if r.Annotations[annotation] == "" {
					t.Errorf("%s has no %s", r.Alert, annotation)
				}
			}
		}
	}
	if len(fires) < 10 {
		t.Errorf("%d alerts are tested", len(fires))
	}
}

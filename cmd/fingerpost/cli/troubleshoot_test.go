package cli

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
)

// Each replica has its steps, and the exit code is that of the worst.
func TestTroubleshoot(t *testing.T) {
	passes := api.Step{Name: "TCP", OK: true, Took: 1234567, Text: "connected to 10.0.0.1:6443"}
	fails := api.Step{Name: "TLS", Text: "not trusted\x1b[31m", Reason: api.Untrusted, Remedy: "correct it"}
	page := func(steps ...api.Step) string {
		all := []cluster.Diagnosis{{Source: "Secret mc/west", Steps: steps}}
		return cmdtest.DebugServer(t, map[string]any{"/debug/troubleshoot/west": all})
	}
	one, two := page(passes), page(passes, fails)
	out, err := fingerpost(t, "troubleshoot", "west", "--debug-addr", one)
	if err != nil || strings.Contains(out, "replica") || !strings.HasPrefix(out, "with Secret mc/west\n") {
		t.Errorf("%v\n%s", err, out)
	}

	out, err = fingerpost(t, "troubleshoot", "west", "--debug-addr", one+","+two)
	for _, want := range []string{
		"from replica " + one + ", with Secret mc/west\n", "√  TCP   1.2ms  connected to 10.0.0.1:6443\n",
		"×  TLS   0s     not trusted[31m: correct it\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it lacks %q:\n%s", want, out)
		}
	}
	if err == nil || ExitCode(err) != ExitNo || err.Error() != "TLS fails, from replica "+two {
		t.Errorf("the error is %v, with code %d", err, ExitCode(err))
	}

	none := cmdtest.DebugServer(t, map[string]any{"/debug/troubleshoot/west": []cluster.Diagnosis{}})
	if _, err := fingerpost(t, "troubleshoot", "west", "--debug-addr", none); ExitCode(err) != ExitNo {
		t.Errorf("without credentials the error is %v", err)
	}
	if _, err := fingerpost(t, "troubleshoot", "north", "--debug-addr", none); err == nil {
		t.Error("a cluster that is not known has no error")
	}
	if _, err := fingerpost(t, "troubleshoot"); !strings.Contains(errors.Join(err).Error(), "CLUSTER is missing") {
		t.Errorf("without a cluster the error is %v", err)
	}
	if diagnosisTimeout < 6*api.ProbeTimeout+time.Second {
		t.Errorf("a page may take %s, and the steps more", diagnosisTimeout)
	}
}

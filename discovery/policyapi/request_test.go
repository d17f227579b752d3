package policyapi

import (
	"testing"

	outbound "github.com/linkerd/linkerd2-proxy-api/go/outbound"
)

// Whatever a client sends, it names something or is refused.
func FuzzRequest(f *testing.F) {
	for _, seed := range [][2]string{
		{"shop:p", "web.shop.svc.cluster.local:8080"},
		{`{"ns":"shop","external_workload":"w"}`, "web.shop.svc."},
		{`{"ns":"shop","pod":"p","x":[{}]}`, "[::1]:80"},
		{"{", "%ff.shop.svc"},
		{`{"pod":"","ns":"n"}`, "a b:c"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, workload, authority string) {
		if w, err := parseWorkload(workload); err == nil && (w.Namespace == "" || w.Name == "") {
			t.Errorf("%q is %+v", workload, w)
		}
		spec := &outbound.TrafficSpec{Target: &outbound.TrafficSpec_Authority{Authority: authority}}
		asked, err := parseTarget(spec, "cluster.local")
		isNamed := label.MatchString(asked.service.Name) && label.MatchString(asked.service.Namespace)
		if err == nil && (!isNamed || asked.port == 0) {
			t.Errorf("%q is %s", authority, asked)
		}
	})
}

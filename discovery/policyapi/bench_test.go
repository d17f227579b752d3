package policyapi_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/fingerpost/fingerpost/discovery/policyapi"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// fiftyRules returns a Service with 50 rules of two backends.
func fiftyRules() *rules.Target {
	var routes []*rules.Route
	for i := range 10 {
		route := &rules.Route{
			Meta: rules.Meta{Reference: rules.Reference{
				Kind: rules.KindHTTPRoute, Namespace: "shop", Name: fmt.Sprint("route-", i),
			}},
			Parents: []rules.Parent{{Reference: web}},
		}
		for j := range 5 {
			route.Rules = append(route.Rules, rules.Rule{
				Matches: []rules.Match{{
					Path: rules.PathMatch{Type: rules.PathPrefix, Text: fmt.Sprint("/", i, "/", j)},
				}},
				Backends: []rules.Backend{
					{Reference: web, Port: 80, Weight: 90}, {Reference: api, Port: 80, Weight: 10},
				},
			})
		}
		routes = append(routes, route)
	}
	return &rules.Target{
		Reference: web, Exists: true, Found: map[rules.Reference]bool{web: true, api: true},
		Attached: rules.Attach(rules.ParentObject{Reference: web, Exists: true, HasIP: true}, routes),
	}
}

// BenchmarkOutbound computes and encodes the answer about a Service.
func BenchmarkOutbound(b *testing.B) {
	target, options, size := fiftyRules(), options(), 0
	b.ReportAllocs()
	for b.Loop() {
		answer := options.Outbound(target, rules.OutboundQuery{Port: 80, ByAddress: false})
		bytes, err := proto.Marshal(policyapi.EncodeOutbound(answer, original))
		if err != nil {
			b.Fatal(err)
		}
		size = len(bytes)
	}
	b.ReportMetric(float64(size), "B/message")
}

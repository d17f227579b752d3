// Package webhook has the reviews of admission webhooks, by what they are about.
package webhook

import (
	"context"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/admission"
	"github.com/fingerpost/fingerpost/cluster/linkerd/serviceprofile"
	"github.com/fingerpost/fingerpost/cluster/ruleobject"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// ServiceProfiles returns the review that denies ServiceProfiles that would have no effect, or not the one meant.
func ServiceProfiles() admission.Review {
	return admission.Review{
		Subject: "ServiceProfile",
		Verdicts: admission.NewVerdicts(prometheus.CounterOpts{
			Name: "fingerpost_profile_reviews_total",
			Help: "Reviews of ServiceProfiles by verdict: allowed, denied, failed if there was no answer, or " +
				"unreadable if the request was none.",
		}),
		Takes: func(kind metav1.GroupVersionKind) bool {
			return strings.EqualFold(kind.Group, "linkerd.io") && strings.EqualFold(kind.Kind, "ServiceProfile")
		},
		Decide: func(_ context.Context, r *admission.Request) (admission.Response, error) {
			if err := serviceprofile.Validate(r.Object); err != nil {
				return admission.Response{}, &admission.Denial{Message: "ServiceProfile " + err.Error()}
			}
			return admission.Response{}, nil
		},
	}
}

// Policy returns the review that denies objects of policy that Linkerd's policy controller denies: those of
// policy.linkerd.io and routes of the Gateway API. What of an object that is allowed has no effect is a warning, and so
// is what it refers to if lookup, which may be nil, has it as missing. Whatever is of no such kind is denied.
func Policy(lookup ruleobject.Lookup) admission.Review {
	return admission.Review{
		Subject: "policy object",
		Strict:  true,
		Verdicts: admission.NewVerdictsByKind(prometheus.CounterOpts{
			Name: "fingerpost_policy_reviews_total",
			Help: "Reviews of objects of policy by kind with its group, other for what is none, and verdict: " +
				"allowed, " +
				"denied, failed if there was no answer, or unreadable if the request was none.",
		}, policyKinds(), policyKind),
		Decide: func(_ context.Context, r *admission.Request) (admission.Response, error) {
			verdict := ruleobject.Review(r.Kind.Group, r.Kind.Kind, r.Object, lookup)
			if verdict.Denied != "" {
				return admission.Response{}, &admission.Denial{Message: verdict.Denied}
			}
			return admission.Response{Warnings: verdict.Warnings}, nil
		},
	}
}

// policyKinds are the values of the label kind.
func policyKinds() []string {
	kinds := []string{otherKind}
	for kind := rules.KindServer; kind <= rules.KindTCPRoute; kind++ {
		kinds = append(kinds, kind.String()+"."+kind.Group())
	}
	return kinds
}

const otherKind = "other"

func policyKind(of metav1.GroupVersionKind) string {
	if kind := rules.KindOf(of.Group, of.Kind); kind >= rules.KindServer {
		return kind.String() + "." + kind.Group()
	}
	return otherKind
}

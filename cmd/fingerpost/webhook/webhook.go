// Package webhook has the reviews of admission webhooks, by what they are about.
package webhook

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fingerpost/fingerpost/admission"
	"github.com/fingerpost/fingerpost/cluster/linkerd/serviceprofile"
	"github.com/fingerpost/fingerpost/cluster/ruleobject"
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
		Decide: func(_ context.Context, r *admission.Request) (admission.Response, error) {
			if err := serviceprofile.Validate(r.Object); err != nil {
				return admission.Response{}, &admission.Denial{Message: "ServiceProfile " + err.Error()}
			}
			return admission.Response{}, nil
		},
	}
}

// Policy returns the review that denies objects of policy that Linkerd's policy controller denies: those of
// policy.linkerd.io and routes of the Gateway API. What of an object that is allowed has no effect is a warning.
// Whether an object refers to others that exist is not looked up.
func Policy() admission.Review {
	return admission.Review{
		Subject: "policy object",
		Verdicts: admission.NewVerdicts(prometheus.CounterOpts{
			Name: "fingerpost_policy_reviews_total",
			Help: "Reviews of objects of policy by verdict: allowed, denied, failed if there was no answer, or " +
				"unreadable if the request was none.",
		}),
		Decide: func(_ context.Context, r *admission.Request) (admission.Response, error) {
			verdict := ruleobject.Review(r.Kind.Group, r.Kind.Kind, r.Object)
			if verdict.Denied != "" {
				return admission.Response{}, &admission.Denial{Message: verdict.Denied}
			}
			return admission.Response{Warnings: verdict.Warnings}, nil
		},
	}
}

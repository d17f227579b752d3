// Package webhook has the reviews of admission webhooks, by what they are about.
package webhook

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fingerpost/fingerpost/admission"
	"github.com/fingerpost/fingerpost/cluster/linkerd/serviceprofile"
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

// Package webhook serves the admission webhook for ServiceProfiles.
package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/linkerd/serviceprofile"
)

const (
	maxBody = 10 << 20

	// maxReviews bounds how many objects are decoded at once: each may then be forty times as large as its
	// text.
	maxReviews = 4
)

// A Webhook answers AdmissionReviews of ServiceProfiles.
type Webhook struct {
	log      logr.Logger
	slots    chan struct{}
	verdicts *prometheus.CounterVec
}

// New returns a Webhook.
func New(log logr.Logger) *Webhook {
	verdicts := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fingerpost_profile_reviews_total",
		Help: "Reviews of ServiceProfiles by verdict: allowed, denied, or unreadable if the request was none.",
	}, []string{"verdict"})
	for _, verdict := range []string{"allowed", "denied", "unreadable"} {
		verdicts.WithLabelValues(verdict)
	}
	return &Webhook{log: log, slots: make(chan struct{}, maxReviews), verdicts: verdicts}
}

// Collectors returns the Webhook's metrics.
func (w *Webhook) Collectors() []prometheus.Collector { return []prometheus.Collector{w.verdicts} }

// ServeHTTP answers an AdmissionReview with another. An empty request, as of a health check, gets an empty
// response.
func (w *Webhook) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(to, r.Body, maxBody))
	if err != nil {
		w.rejectRequest(to, r, err, http.StatusInternalServerError)
		return
	}
	if len(body) == 0 {
		return
	}
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-r.Context().Done():
		return
	}
	review, err := parseReview(body)
	if err != nil {
		w.rejectRequest(to, r, err, http.StatusBadRequest)
		return
	}
	answer := admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: w.decide(review.Request)}
	to.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(to).Encode(answer) // fails only if the API server has closed the connection
}

func parseReview(body []byte) (*admissionv1.AdmissionReview, error) {
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, fmt.Errorf("not an AdmissionReview: %.1000s", err.Error())
	}
	if review.Request == nil || review.Request.UID == "" {
		return nil, errors.New("not the request of an AdmissionReview: it has no UID")
	}
	return &review, nil
}

func (w *Webhook) decide(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	log := w.log.WithValues("namespace", r.Namespace, "name", r.Name, "operation", r.Operation,
		"user", r.UserInfo.Username, "uid", r.UID)
	if err := serviceprofile.Validate(r.Object.Raw); err != nil {
		w.verdicts.WithLabelValues("denied").Inc()
		log.Info("Denied a ServiceProfile", "reason", err.Error())
		return &admissionv1.AdmissionResponse{UID: r.UID, Result: &metav1.Status{
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonBadRequest, Code: http.StatusBadRequest,
			Message: "ServiceProfile " + err.Error(),
		}}
	}
	w.verdicts.WithLabelValues("allowed").Inc()
	log.V(1).Info("Allowed a ServiceProfile")
	return &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true}
}

// rejectRequest answers a request that is no AdmissionReview.
func (w *Webhook) rejectRequest(to http.ResponseWriter, r *http.Request, err error, code int) {
	w.verdicts.WithLabelValues("unreadable").Inc()
	w.log.Info("A request to the webhook cannot be read; only an API server should send any",
		"client", r.RemoteAddr, "reason", err.Error())
	http.Error(to, err.Error(), code)
}

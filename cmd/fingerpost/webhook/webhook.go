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

	// Decoded, an object may be forty times as large as its text: this is how many are, at the same time.
	maxReviews = 4
)

// A Webhook answers an API server whether ServiceProfiles are valid.
type Webhook struct {
	log      logr.Logger
	slots    chan struct{}
	verdicts *prometheus.CounterVec
}

// New returns a Webhook.
func New(log logr.Logger) *Webhook {
	w := &Webhook{log: log, slots: make(chan struct{}, maxReviews), verdicts: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fingerpost_profile_reviews_total",
		Help: "Reviews of ServiceProfiles by verdict: allowed, denied, or unreadable if the request was none.",
	}, []string{"verdict"})}
	for _, verdict := range []string{"allowed", "denied", "unreadable"} {
		w.verdicts.WithLabelValues(verdict)
	}
	return w
}

// Collectors returns what a Webhook counts.
func (w *Webhook) Collectors() []prometheus.Collector { return []prometheus.Collector{w.verdicts} }

// ServeHTTP answers an AdmissionReview with one. Nothing is answered to nothing.
func (w *Webhook) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(to, r.Body, maxBody))
	if err != nil {
		w.unreadable(to, r, err, http.StatusInternalServerError)
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
	review, err := read(body)
	if err != nil {
		w.unreadable(to, r, err, http.StatusBadRequest)
		return
	}
	to.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(to).Encode(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: w.judge(review.Request)}) // it fails where nobody reads any more
}

func read(body []byte) (*admissionv1.AdmissionReview, error) {
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, fmt.Errorf("this is no AdmissionReview: %.1000s", err.Error())
	}
	if review.Request == nil || review.Request.UID == "" {
		return nil, errors.New("this is no request of an AdmissionReview: it has no UID")
	}
	return &review, nil
}

func (w *Webhook) judge(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	log := w.log.WithValues("namespace", r.Namespace, "name", r.Name, "operation", r.Operation, "user", r.UserInfo.Username, "uid", r.UID)
	if err := serviceprofile.Validate(r.Object.Raw); err != nil {
		w.verdicts.WithLabelValues("denied").Inc()
		log.Info("A ServiceProfile is denied: whoever applied it was told why", "reason", err.Error())
		return &admissionv1.AdmissionResponse{UID: r.UID, Result: &metav1.Status{
			Status: metav1.StatusFailure, Message: "ServiceProfile " + err.Error(), Reason: metav1.StatusReasonBadRequest, Code: http.StatusBadRequest,
		}}
	}
	w.verdicts.WithLabelValues("allowed").Inc()
	log.V(1).Info("A ServiceProfile is allowed")
	return &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true}
}

func (w *Webhook) unreadable(to http.ResponseWriter, r *http.Request, err error, code int) {
	w.verdicts.WithLabelValues("unreadable").Inc()
	w.log.Info("A request to the webhook cannot be read: it should come from an API server alone", "client", r.RemoteAddr, "reason", err.Error())
	http.Error(to, err.Error(), code)
}

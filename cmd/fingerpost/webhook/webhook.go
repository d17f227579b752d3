// Package webhook serves the admission webhook for ServiceProfiles.
package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fingerpost/fingerpost/cluster/linkerd/serviceprofile"
)

const (
	maxBody = 10 << 20 // bytes

	// maxBodies bounds the bytes of all requests that are read at once. The first freeBytes of each request are read
	// beyond that, up to maxAll together, so that a usual review is answered beside large ones that arrive slowly. With
	// one object that is decoded maxAll fits into the limit of the chart, 64 MiB.
	maxBodies = maxBody
	maxAll    = 16 << 20
	freeBytes = 64 << 10

	maxNames = 4 << 10 // bytes of what is logged of a request, or sent back
)

var errBusy = errors.New("the requests that are read at present take all the memory that there is for them")

// A Webhook answers AdmissionReviews of ServiceProfiles. What requests can have it hold is bounded: the bytes
// that are read, and one object that is decoded, which takes up to twenty times its text.
type Webhook struct {
	log      logr.Logger
	bodies   atomic.Int64 // bytes
	decoding sync.Mutex
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
	return &Webhook{log: log, verdicts: verdicts}
}

// Collectors returns the Webhook's metrics.
func (w *Webhook) Collectors() []prometheus.Collector { return []prometheus.Collector{w.verdicts} }

// ServeHTTP answers an AdmissionReview with another. An empty request, as of a health check, gets an empty
// response.
func (w *Webhook) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	counted := &countedBody{Reader: http.MaxBytesReader(to, r.Body, maxBody), all: &w.bodies}
	defer func() { w.bodies.Add(-counted.bytes) }()

	body, err := io.ReadAll(counted)
	switch {
	case errors.Is(err, errBusy):
		w.rejectRequest(to, r, err, http.StatusServiceUnavailable)
		return
	case err != nil:
		w.rejectRequest(to, r, err, http.StatusInternalServerError)
		return
	case len(body) == 0:
		return
	}

	answer, err := w.answer(body)
	if err != nil {
		w.rejectRequest(to, r, err, http.StatusBadRequest)
		return
	}
	to.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(to).Encode(answer) // fails only if the API server has closed the connection
}

func (w *Webhook) answer(body []byte) (*admissionv1.AdmissionReview, error) {
	w.decoding.Lock()
	defer w.decoding.Unlock()
	review, err := parseReview(body)
	if err != nil {
		return nil, err
	}
	return &admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: w.decide(review.Request)}, nil
}

// A countedBody adds what is read of a request to the bytes of all.
type countedBody struct {
	io.Reader
	bytes int64
	all   *atomic.Int64
}

func (c *countedBody) Read(to []byte) (int, error) {
	n, err := c.Reader.Read(to)
	c.bytes += int64(n)
	if all := c.all.Add(int64(n)); all > maxBodies && c.bytes > freeBytes || all > maxAll {
		return n, errBusy
	}
	return n, err
}

// An admissionReview is what is read of an AdmissionReview. What it lacks, such as the old object and the groups of the
// user, takes no memory.
type admissionReview struct {
	metav1.TypeMeta `json:",inline"`

	Request *request `json:"request"`
}

type request struct {
	UID       types.UID             `json:"uid"`
	Namespace string                `json:"namespace"`
	Name      string                `json:"name"`
	Operation admissionv1.Operation `json:"operation"`
	UserInfo  struct {
		Username string `json:"username"`
	} `json:"userInfo"`
	Object json.RawMessage `json:"object"`
}

func parseReview(body []byte) (*admissionReview, error) {
	var r admissionReview
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, fmt.Errorf("not an AdmissionReview: %.1000s", err.Error())
	}
	if r.Request == nil || r.Request.UID == "" {
		return nil, errors.New("not the request of an AdmissionReview: it has no UID")
	}

	q := r.Request
	if len(r.Kind)+len(r.APIVersion)+len(q.UID)+len(q.Namespace)+len(q.Name)+len(q.Operation)+
		len(q.UserInfo.Username) > maxNames {
		return nil, fmt.Errorf("not the request of an AdmissionReview: its names have more than %d bytes", maxNames)
	}
	return &r, nil
}

func (w *Webhook) decide(r *request) *admissionv1.AdmissionResponse {
	log := w.log.WithValues("namespace", r.Namespace, "name", r.Name, "operation", r.Operation,
		"user", r.UserInfo.Username, "uid", r.UID)
	if err := serviceprofile.Validate(r.Object); err != nil {
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

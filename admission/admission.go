// Package admission serves the webhooks that API servers ask about objects before they keep them.
//
// A [Server] has a [Review] for each path, which validates objects or changes them. The Server does for all of them
// what any webhook has to do: it bounds what requests can make the process hold, reads AdmissionReviews of
// admission.k8s.io/v1 and v1beta1, which have the same fields, and answers in the version of the request. Whatever a
// request contains, and whatever a Review does with it, the process goes on.
//
// An answer is one of three, and they mean different things to who applied the object:
//
//   - allowed (HTTP 200), with a patch and warnings or without
//   - denied (HTTP 200), with a message: kubectl prints it
//   - no answer (any other code): the failurePolicy of the webhook's configuration decides
package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Review decides about the objects that a path is asked about.
type Review struct {
	Subject  string                 // what it is about, for the log, in the singular: Pod
	Verdicts *prometheus.CounterVec // as NewVerdicts returns it, for who registers it

	// Decide allows an object, as the Response has it. A *Denial denies it. After any other error the failurePolicy
	// decides: it is for what has nothing to do with the object, such as a right that is missing. ctx ends when the API
	// server no longer waits. As many calls as the Server takes at once may run beside one another.
	Decide func(ctx context.Context, r *Request) (Response, error)
}

// A Response is how an object is allowed.
type Response struct {
	Patch    []byte   // what to change in it (RFC 6902, JSON); empty for nothing
	Warnings []string // for who has sent it; API servers cut what is longer than some 120 characters
}

// A Denial is why an object is not allowed. An API server passes it on.
type Denial struct{ Message string }

// Error returns the message.
func (d *Denial) Error() string { return d.Message }

// Verdicts, as the label of that name has them.
const (
	allowed    = "allowed"
	denied     = "denied"
	failed     = "failed"
	unreadable = "unreadable"
)

// NewVerdicts returns a metric of what a Review has decided, with all verdicts at zero.
func NewVerdicts(o prometheus.CounterOpts) *prometheus.CounterVec {
	verdicts := prometheus.NewCounterVec(o, []string{"verdict"})
	for _, verdict := range []string{allowed, denied, failed, unreadable} {
		verdicts.WithLabelValues(verdict)
	}
	return verdicts
}

// A Server answers AdmissionReviews.
type Server struct {
	log   logr.Logger
	mux   *http.ServeMux
	bytes bytesRead
	turns chan struct{} // one for each request that is decoded, decided about and answered
}

// NewServer returns a Server of Reviews by path; one at / also has the paths that no other has. It decodes and decides
// about concurrent requests at once, others wait for their turn: a request takes up to some twenty times its size.
func NewServer(log logr.Logger, concurrent int, reviews map[string]Review) *Server {
	s := &Server{log: log, mux: http.NewServeMux(), turns: make(chan struct{}, concurrent)}
	for path, review := range reviews {
		s.mux.HandleFunc(path, func(to http.ResponseWriter, r *http.Request) { s.serve(to, r, &review) })
	}
	return s
}

// ServeHTTP answers an AdmissionReview with another. An empty request, as of a health check, gets an empty response.
// One that is no AdmissionReview is answered 400, one in another format than JSON 415, one of more than [MaxBody] 500,
// and one for which there is no memory at present 503. Where a Review fails or panics the answer is 500.
func (s *Server) ServeHTTP(to http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(to, r) }

func (s *Server) serve(to http.ResponseWriter, request *http.Request, review *Review) {
	body, done, err := s.bytes.read(to, request)
	defer done()
	if err != nil {
		s.reject(to, request, review, err)
		return
	}
	if len(body) == 0 {
		return
	}

	answer, err := s.answer(request.Context(), review, body)
	if err != nil {
		s.reject(to, request, review, err)
		return
	}
	to.Header().Set("Content-Type", jsonFormat)
	_ = json.NewEncoder(to).Encode(answer) // fails only if the API server has closed the connection
}

// answer returns the answer to a request. It waits for a turn, and has given it back when the answer is sent.
func (s *Server) answer(ctx context.Context, review *Review, body []byte) (*admissionv1.AdmissionReview, error) {
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
	case <-ctx.Done(): // no client waits for the answer any more
		return nil, &rejection{http.StatusServiceUnavailable, "too many reviews are waiting"}
	}

	request, err := decode(body)
	if err != nil {
		return nil, err
	}
	response, err := s.decide(ctx, review, request.Request)
	if err != nil {
		return nil, errNoAnswer
	}
	return &admissionv1.AdmissionReview{TypeMeta: request.TypeMeta, Response: response}, nil
}

// decide returns the response of a Review to a request; an error, which is logged, if there is none.
func (s *Server) decide(ctx context.Context, review *Review, request *Request) (*admissionv1.AdmissionResponse, error) {
	log := s.log.WithValues("namespace", request.Namespace, "name", request.Name, "operation", request.Operation,
		"user", request.User.Name, "uid", request.UID)
	response, err := ask(ctx, log, review, request)

	if denial, is := errors.AsType[*Denial](err); is {
		review.Verdicts.WithLabelValues(denied).Inc()
		log.Info("Denied a "+review.Subject, "reason", denial.Message)
		return &admissionv1.AdmissionResponse{UID: request.UID, Result: &metav1.Status{
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonBadRequest, Code: http.StatusBadRequest,
			Message: denial.Message,
		}}, nil
	}

	if err != nil {
		review.Verdicts.WithLabelValues(failed).Inc()
		log.Error(err, "There is no answer about a "+review.Subject+": the failurePolicy of the webhook decides")
		return nil, err
	}

	review.Verdicts.WithLabelValues(allowed).Inc()
	log.V(1).Info("Allowed a "+review.Subject, "patched", len(response.Patch) > 0)
	answer := &admissionv1.AdmissionResponse{UID: request.UID, Allowed: true, Warnings: response.Warnings}
	if len(response.Patch) > 0 {
		answer.Patch, answer.PatchType = response.Patch, new(admissionv1.PatchTypeJSONPatch)
	}
	return answer, nil
}

// ask asks a Review. A panic of it is an error, and so is a patch that no API server can read.
func ask(ctx context.Context, log logr.Logger, review *Review, r *Request) (response Response, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
			log.Error(err, "BUG: a review has panicked; others go on", "stack", string(debug.Stack()))
		}
	}()

	response, err = review.Decide(ctx, r)
	if err == nil && len(response.Patch) > 0 && !json.Valid(response.Patch) {
		err = errors.New("the patch is no JSON")
	}
	return response, err
}

// errNoAnswer is the answer where a Review has failed.
var errNoAnswer = errors.New("the review has failed: the log of the webhook has more")

// reject answers a request that is no AdmissionReview, or about which a Review has failed.
func (s *Server) reject(to http.ResponseWriter, request *http.Request, review *Review, err error) {
	if errors.Is(err, errNoAnswer) { // it is logged and counted
		http.Error(to, err.Error(), http.StatusInternalServerError)
		return
	}
	code := http.StatusInternalServerError
	if rejected, is := errors.AsType[*rejection](err); is {
		code = rejected.code
	}

	review.Verdicts.WithLabelValues(unreadable).Inc()
	s.log.Info("A request to the webhook cannot be read; only an API server should send any",
		"client", request.RemoteAddr, "reason", err.Error())
	http.Error(to, err.Error(), code)
}

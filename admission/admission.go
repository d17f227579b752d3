// Package admission serves the webhooks that API servers ask about objects before they keep them.
//
// A [Server] has a [Review] for each path, or several by kind, which validate objects or change them. The Server does
// for all of them what any webhook has to do: it bounds what requests can make the process hold, reads AdmissionReviews
// of admission.k8s.io/v1 and v1beta1, which have the same fields, and answers in the version of the request. Whatever a
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
	"k8s.io/apimachinery/pkg/types"
)

// A Review decides about the objects that a path is asked about.
type Review struct {
	Subject  string    // what it is about, for the log, in the singular: Pod
	Verdicts *Verdicts // for who registers it

	// Takes reports whether the Review decides about a kind. The last Review of a path, whose Takes is not used, has
	// what no other takes, and what is no AdmissionReview.
	Takes func(kind metav1.GroupVersionKind) bool

	// Strict is how Linkerd's policy controller answers what is no AdmissionReview: with a denial that has no UID,
	// where others answer 400, or nothing to an empty request. Only POST to the very path is then served: 404.
	Strict bool

	// AnyFormat is how Linkerd's proxy injector reads requests: one may be YAML, and one of more than MaxBody is
	// answered 413. It counts in the last Review of a path.
	AnyFormat bool

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

// Verdicts is a metric of what a Review has decided.
type Verdicts struct {
	*prometheus.CounterVec

	kindOf func(metav1.GroupVersionKind) string // value of the label kind; nil: the metric has none
}

// NewVerdicts returns a metric with all verdicts at zero.
func NewVerdicts(o prometheus.CounterOpts) *Verdicts {
	verdicts := &Verdicts{CounterVec: prometheus.NewCounterVec(o, []string{"verdict"})}
	verdicts.begin()
	return verdicts
}

// NewVerdictsByKind returns a metric that has the label kind as well, all of it at zero. kindOf returns one of kinds
// for whatever it is given: that of a request which cannot be read is the zero one.
func NewVerdictsByKind(
	o prometheus.CounterOpts, kinds []string, kindOf func(metav1.GroupVersionKind) string,
) *Verdicts {
	verdicts := &Verdicts{prometheus.NewCounterVec(o, []string{"kind", "verdict"}), kindOf}
	for _, kind := range kinds {
		verdicts.begin(kind)
	}
	return verdicts
}

func (v *Verdicts) begin(labels ...string) {
	for _, verdict := range []string{allowed, denied, failed, unreadable} {
		v.WithLabelValues(append(labels, verdict)...)
	}
}

func (v *Verdicts) count(kind metav1.GroupVersionKind, verdict string) {
	if v.kindOf == nil {
		v.WithLabelValues(verdict).Inc()
		return
	}
	v.WithLabelValues(v.kindOf(kind), verdict).Inc()
}

// A Server answers AdmissionReviews.
type Server struct {
	log   logr.Logger
	paths map[string][]Review
	bytes bytesRead
	turns chan struct{} // one for each request that is decoded, decided about and answered
	large chan struct{} // the same, of requests beyond freeBytes: one
}

// NewServer returns a Server of Reviews by path; those at / also have the paths that no other has, unless they are
// Strict. It decodes and decides about concurrent requests at once, others wait for their turn. A request takes up to
// some twenty times its size: of those with more than 64 KiB there is one at a time.
func NewServer(log logr.Logger, concurrent int, paths map[string][]Review) *Server {
	return &Server{
		log: log, paths: paths, turns: make(chan struct{}, concurrent), large: make(chan struct{}, 1),
	}
}

// ServeHTTP answers an AdmissionReview with another. An empty request, as of a health check, gets an empty response.
// One that is no AdmissionReview is answered 400, one in another format than JSON 415, one of more than [MaxBody] 500,
// and one for which there is no memory at present 503. Where a Review fails or panics the answer is 500. A path that
// has no Review is not found, and one that is Strict, or takes AnyFormat, has answers of its own.
func (s *Server) ServeHTTP(to http.ResponseWriter, request *http.Request) {
	reviews, is := s.paths[request.URL.Path]
	if !is {
		reviews = s.paths["/"]
	}
	if len(reviews) == 0 || lastOf(reviews).Strict && (!is || request.Method != http.MethodPost) {
		http.NotFound(to, request)
		return
	}
	s.serve(to, request, reviews)
}

// lastOf returns the Review of a path that has what no other takes.
func lastOf(reviews []Review) *Review { return &reviews[len(reviews)-1] }

func (s *Server) serve(to http.ResponseWriter, request *http.Request, reviews []Review) {
	last := lastOf(reviews)
	body, done, err := s.bytes.read(to, request, last.AnyFormat)
	defer done()
	if err != nil {
		s.reject(to, request, last, err)
		return
	}
	if len(body) == 0 && !last.Strict {
		return
	}

	answer, err := s.answer(request.Context(), reviews, body)
	if err != nil {
		s.reject(to, request, last, err)
		return
	}
	respond(to, answer)
}

// respond fails only if the API server has closed the connection.
func respond(to http.ResponseWriter, answer *admissionv1.AdmissionReview) {
	to.Header().Set("Content-Type", jsonFormat)
	_ = json.NewEncoder(to).Encode(answer)
}

// answer returns the answer to a request. It waits for a turn, and has given it back when the answer is sent.
func (s *Server) answer(ctx context.Context, reviews []Review, body []byte) (*admissionv1.AdmissionReview, error) {
	if len(body) > freeBytes {
		if !take(ctx, s.large) {
			return nil, errWaiting
		}
		defer func() { <-s.large }()
	}
	if !take(ctx, s.turns) {
		return nil, errWaiting
	}
	defer func() { <-s.turns }()

	request, err := decode(body)
	if err != nil {
		return nil, err
	}

	review := lastOf(reviews)
	for i := range reviews[:len(reviews)-1] {
		if reviews[i].Takes(request.Request.Kind) {
			review = &reviews[i]
			break
		}
	}

	response, err := s.decide(ctx, review, request.Request)
	if err != nil {
		return nil, errNoAnswer
	}
	return &admissionv1.AdmissionReview{TypeMeta: request.TypeMeta, Response: response}, nil
}

// take takes a turn. It does not if no client waits for the answer any more.
func take(ctx context.Context, turns chan struct{}) bool {
	select {
	case turns <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// decide returns the response of a Review to a request; an error, which is logged, if there is none.
func (s *Server) decide(ctx context.Context, review *Review, request *Request) (*admissionv1.AdmissionResponse, error) {
	log := s.log.WithValues("namespace", request.Namespace, "name", request.Name, "operation", request.Operation,
		"user", request.User.Name, "uid", request.UID)
	response, err := ask(ctx, log, review, request)

	if denial, is := errors.AsType[*Denial](err); is {
		review.Verdicts.count(request.Kind, denied)
		log.Info("Denied a "+review.Subject, "reason", denial.Message)
		return deniedWith(request.UID, denial.Message), nil
	}

	if err != nil {
		review.Verdicts.count(request.Kind, failed)
		log.Error(err, "There is no answer about a "+review.Subject+": the failurePolicy of the webhook decides")
		return nil, err
	}

	review.Verdicts.count(request.Kind, allowed)
	log.V(1).Info("Allowed a "+review.Subject, "patched", len(response.Patch) > 0)
	answer := &admissionv1.AdmissionResponse{UID: request.UID, Allowed: true, Warnings: response.Warnings}
	if len(response.Patch) > 0 {
		answer.Patch, answer.PatchType = response.Patch, new(admissionv1.PatchTypeJSONPatch)
	}
	return answer, nil
}

func deniedWith(uid types.UID, message string) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{UID: uid, Result: &metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonBadRequest, Code: http.StatusBadRequest,
		Message: message,
	}}
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
	if _, is := errors.AsType[*http.MaxBytesError](err); is && review.AnyFormat {
		code = http.StatusRequestEntityTooLarge
	}

	review.Verdicts.count(metav1.GroupVersionKind{}, unreadable)
	s.log.Info("A request to the webhook cannot be read; only an API server should send any",
		"client", request.RemoteAddr, "reason", err.Error())
	if review.Strict && code == http.StatusBadRequest {
		respond(to, &admissionv1.AdmissionReview{TypeMeta: newest, Response: deniedWith("", err.Error())})
		return
	}
	http.Error(to, err.Error(), code)
}

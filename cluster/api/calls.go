package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// What an API server does not do of what is requested of it.
//
// Whatever sends a request over a Connection, an informer, an Elector, a writer or what reviews tokens, it passes the
// ledger, which has what came of the last request of each Call: a verb and a resource. So what was tried and did not
// succeed can be reported by one rule, and what is built later is reported without doing anything for it.
//
// A Call fails from the first request that fails until one succeeds. It is reported after callTries requests and
// callPatience: before that an API server restarts, or two writers meet. A request that is not answered within
// callPatience is reported at once. What is not tried any more is forgotten: whatever fails is tried again within 45 s.
//
// These are answers, and no failures: what does not exist (404), what exists already (409 to a create), what is too old
// (410), and that lists cannot be streamed (422 to such a watch). A request that was given up here is neither. Probes
// are no Calls: the state of the cluster reports what comes of them, and a new token fails without harm to the one in
// use.
//
// It costs a lock and an entry in a map for each request under way; a path is parsed where something fails. Example:
// while "watch secrets" is answered 500, one Call fails, however many informers ask.
const (
	callTries     = 3
	callPatience  = 30 * time.Second
	callForgotten = 55 * time.Second // after the last request
	maxCalls      = 64               // that fail at a time; further ones are not reported
)

// A Call is what requests ask an API server for.
type Call struct {
	Verb     string `json:"verb"`     // as Kubernetes has it, such as watch
	Resource string `json:"resource"` // such as leases.coordination.k8s.io, or links.multicluster.linkerd.io/status
}

// String returns it for people.
func (c Call) String() string { return c.Verb + " " + c.Resource }

// IsRead reports whether it asks for objects, and changes none.
func (c Call) IsRead() bool { return c.Verb == "get" || c.Follows() }

// Follows reports whether it asks for all objects of a kind.
func (c Call) Follows() bool { return c.Verb == "list" || c.Verb == "watch" }

// A FailedCall is a Call that has failed for a while.
type FailedCall struct {
	Call
	Since time.Time `json:"since"` // the first of the requests that failed in a row
	Count int       `json:"count"` // of them
	Cause
}

// IsSame reports whether both are one failure, which may have been tried more often meanwhile.
func (f FailedCall) IsSame(o FailedCall) bool {
	return f.Call == o.Call && f.Cause == o.Cause && f.Since.Equal(o.Since)
}

// A ledger has what came of the requests of one Connection.
type ledger struct {
	mu      sync.Mutex // guards all below; a leaf
	failed  map[Call]*entry
	pending map[*pending]struct{}
}

// An entry is a Call that fails.
type entry struct {
	FailedCall
	last time.Time // the newest request
}

// pending is a request that is not answered yet.
type pending struct {
	request *http.Request
	began   time.Time
}

// probeKey is in the context of requests that are no Calls.
type probeKey struct{}

// roundTrip sends a request over next, and notes what came of it.
func (l *ledger) roundTrip(request *http.Request, next http.RoundTripper) (*http.Response, error) {
	if request.Context().Value(probeKey{}) != nil {
		return next.RoundTrip(request)
	}
	sent := &pending{request, time.Now()}
	l.begin(sent)
	response, err := next.RoundTrip(request)
	l.end(sent, response, err)
	return response, err
}

func (l *ledger) begin(p *pending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending == nil {
		l.pending, l.failed = map[*pending]struct{}{}, map[Call]*entry{}
	}
	l.pending[p] = struct{}{}
}

// end notes what came of a request.
func (l *ledger) end(sent *pending, response *http.Response, err error) {
	if err == nil {
		err = failureOf(sent.request, response)
	}
	abandoned := err != nil && errors.Is(sent.request.Context().Err(), context.Canceled)
	if errors.Is(err, context.DeadlineExceeded) && time.Since(sent.began) < time.Second {
		abandoned = true // the time that was given was spent on others before
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pending, sent)
	if abandoned || err == nil && len(l.failed) == 0 {
		return
	}

	call, is := callOf(sent.request)
	switch {
	case !is:
	case err == nil:
		delete(l.failed, call)
	default:
		l.note(call, sent.began, err)
	}
}

// note notes that one more request has failed. It needs l.mu.
func (l *ledger) note(call Call, began time.Time, err error) {
	of := l.failed[call]
	if of == nil {
		if len(l.failed) >= maxCalls {
			return
		}
		of = &entry{FailedCall: FailedCall{Call: call, Since: began}}
		l.failed[call] = of
	}

	of.last, of.Count, of.Cause = time.Now(), of.Count+1, CauseOf(err)
	if errors.Is(err, context.DeadlineExceeded) {
		of.Cause = slowCause(time.Since(began))
	}
}

func slowCause(waited time.Duration) Cause {
	return Cause{Slow, fmt.Sprintf("no response within %s", waited.Round(time.Second))}
}

// failures returns the Calls that have failed for a while, sorted.
func (l *ledger) failures(now time.Time) (all []FailedCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting, unanswered := map[Call]bool{}, map[Call]FailedCall{}

	for p := range l.pending {
		waits, is := callOf(p.request)
		waiting[waits] = true
		if first := unanswered[waits]; !is || now.Sub(p.began) < callPatience ||
			first.Count > 0 && first.Since.Before(p.began) {
			continue
		}
		unanswered[waits] = FailedCall{waits, p.began, 1, slowCause(callPatience)}
	}

	maps.DeleteFunc(l.failed, func(call Call, e *entry) bool {
		return now.Sub(e.last) > callForgotten && !waiting[call]
	})
	for call, e := range l.failed {
		if e.Count >= callTries && now.Sub(e.Since) >= callPatience {
			delete(unanswered, call)
			all = append(all, e.FailedCall)
		}
	}
	all = slices.AppendSeq(all, maps.Values(unanswered))
	slices.SortFunc(all, func(a, b FailedCall) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// causeOf returns why the last request of a Call has failed, or is not answered; false if neither.
func (l *ledger) causeOf(call Call) (Cause, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.pending {
		if waits, _ := callOf(p.request); waits == call && time.Since(p.began) >= callPatience {
			return slowCause(callPatience), true
		}
	}
	if e := l.failed[call]; e != nil {
		return e.Cause, true
	}
	return Cause{}, false
}

// FailedCalls returns what the API server was asked for again and again, or for long, and does not do. They are sorted.
func (c *Connection) FailedCalls() []FailedCall { return c.calls.failures(time.Now()) }

// failureOf returns why a response is none to a request; nil if it is. What it has read of the body can be read again.
func failureOf(request *http.Request, response *http.Response) error {
	code := response.StatusCode
	streams := request.URL.Query().Has("sendInitialEvents")
	switch {
	case code == http.StatusNotFound, code == http.StatusGone, code == http.StatusUnprocessableEntity && streams:
		return nil
	case code < http.StatusBadRequest:
		return checkMedia(response)
	}

	body, _ := io.ReadAll(io.LimitReader(response.Body, maxError)) // what is torn is no Status
	response.Body = restoredBody{io.MultiReader(bytes.NewReader(body), response.Body), response.Body}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if status, is := object.(*metav1.Status); err == nil && is && status.Status == metav1.StatusFailure {
		if status.Reason == metav1.StatusReasonAlreadyExists {
			return nil
		}
		return apierrors.FromObject(status)
	}

	return plainFailure(response)
}

// plainFailure returns what an error means that has no Status, as what stands in front of an API server sends it.
func plainFailure(response *http.Response) error {
	reason, text := Malformed, fmt.Sprintf("%s answers %d", answerer(response), response.StatusCode)
	switch code := response.StatusCode; {
	case code == http.StatusUnauthorized:
		reason = Unauthorized
	case code == http.StatusTooManyRequests:
		reason = Overloaded
	case code >= 500:
		reason = NotReady
	}
	return &ProbeError{reason, errors.New(text)}
}

// restoredBody is one of which something was read, and is read again.
type restoredBody struct {
	io.Reader
	io.Closer
}

// checkMedia returns an error if a response of success is of a type that no API server sends.
func checkMedia(response *http.Response) error {
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	switch media {
	case "", runtime.ContentTypeJSON, runtime.ContentTypeProtobuf:
		return nil
	default:
		return newResponseError("a response is of type %q, which no API server sends", media)
	}
}

// callOf returns what a request asks for; false for one that is about no resource.
func callOf(request *http.Request) (Call, bool) {
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	at := slices.IndexFunc(parts, func(part string) bool { return part == "api" || part == "apis" })
	if at < 0 {
		return Call{}, false
	}

	group := ""
	rest := parts[at+1:]
	if parts[at] == "apis" && len(rest) > 0 {
		group, rest = rest[0], rest[1:]
	}
	if len(rest) < 2 { // the version, and nothing of it
		return Call{"discover", "API groups"}, true
	}
	rest = rest[1:]
	if rest[0] == "namespaces" && len(rest) > 2 && rest[2] != "status" && rest[2] != "finalize" {
		rest = rest[2:]
	}

	if rest[0] == "" {
		return Call{}, false
	}

	resource, name := rest[0], ""
	if group != "" {
		resource += "." + group
	}

	if len(rest) > 1 {
		name = rest[1]
	}
	if len(rest) > 2 {
		resource += "/" + rest[2]
	}
	return Call{verbOf(request, name), resource}, true
}

// verbOf returns the verb of a request about an object, or about all if name is empty.
func verbOf(request *http.Request, name string) string {
	watches := request.URL.Query().Get("watch")
	switch request.Method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}

	switch {
	case watches == "true" || watches == "1":
		return "watch"
	case name == "":
		return "list"
	default:
		return "get"
	}
}

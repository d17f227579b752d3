package api

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/federation"
)

// A Cause is why a request to an API server has failed: one Reason of few, and the other side's own words. It depends
// on the error alone, whatever was requested.
type Cause struct {
	Reason Reason `json:"reason"`
	Text   string `json:"text"` // on one line, printable, 512 bytes at most
}

// maxCause bounds the text of a Cause, in bytes: an API server, a webhook or what stands in front of one wrote it.
const maxCause = 512

// A pattern finds out from the message of a response what has refused a request. API servers have no other way to
// report it.
type pattern struct {
	reason Reason
	found  *regexp.Regexp // its groups fill the text
	text   string
}

var patterns = []pattern{
	{QuotaExceeded, regexp.MustCompile(`exceeded quota: ([^,]+), (.*)`), "quota %s is exceeded: %s"},
	{
		DeniedByPolicy,
		regexp.MustCompile(`AdmissionPolicy '([^']*)' with binding '([^']*)' denied request: (.*)`),
		"denied by admission policy %s, binding %s: %s",
	},
	{
		DeniedByWebhook, regexp.MustCompile(`admission webhook "([^"]*)" denied the request(?:: | )(.*)`),
		"denied by webhook %s: %s",
	},
	{WebhookFails, regexp.MustCompile(`failed calling webhook "([^"]*)": (.*)`), "webhook %s does not answer: %s"},
	{StorageFails, regexp.MustCompile(`(etcdserver: .*|no space left on device.*)`), "its storage fails: %s"},
}

// CauseOf returns why a request has failed. Of several errors that were joined it is the first one's, and the text has
// how many there are more.
func CauseOf(err error) Cause {
	more, first := firstOf(err)
	cause := causeOf(first)
	cause.Text = cmp.Or(bounded(cause.Text), "it gives no reason")
	if more > 0 {
		cause.Text += fmt.Sprintf(" (and %d more)", more)
	}
	return cause
}

// InWords returns an error whose text has, in the place of what a library reports of a request, its cause and what
// mends it. It wraps err; one that is about no request is returned as it is.
func InWords(err error) error {
	var raw error
	if request, is := errors.AsType[*url.Error](err); is {
		raw = request
	}
	if response, is := errors.AsType[*apierrors.StatusError](err); is {
		raw = response
	}
	if raw == nil {
		return err
	}

	cause := causeOf(raw)
	text := bounded(cause.Text)
	if remedy := cause.Reason.Remedy(); remedy != "" {
		text += "; " + remedy
	}
	return worded{err, strings.Replace(err.Error(), raw.Error(), text, 1)}
}

// A worded error has another text than the one that it wraps.
type worded struct {
	error
	text string
}

func (w worded) Error() string { return w.text }
func (w worded) Unwrap() error { return w.error }

// bounded returns a text of the other side on one line, printable, of maxCause bytes at most.
func bounded(text string) string { return federation.PrintableWithin(text, maxCause) }

// firstOf returns the first of joined errors, and how many there are besides.
func firstOf(err error) (more int, first error) {
	for {
		joined, is := err.(interface{ Unwrap() []error })
		if !is || len(joined.Unwrap()) == 0 {
			return more, err
		}
		all := joined.Unwrap()
		err, more = all[0], more+len(all)-1
	}
}

func causeOf(err error) Cause {
	if probe, is := errors.AsType[*ProbeError](err); is {
		return Cause{probe.Reason, probe.Error()}
	}
	var response apierrors.APIStatus
	if !errors.As(err, &response) {
		return Cause{transportReason(err), stableError(err, ProbeTimeout).Error()}
	}

	message := strings.ReplaceAll(response.Status().Message, "\n", " ")
	for _, p := range patterns {
		if groups := p.found.FindStringSubmatch(message); groups != nil {
			parts := make([]any, len(groups)-1)
			for i, group := range groups[1:] {
				parts[i] = group
			}
			return Cause{p.reason, fmt.Sprintf(p.text, parts...)}
		}
	}
	return Cause{responseReason(err, response.Status()), message}
}

// responseReason returns what a response means that nothing else has refused than the API server itself.
func responseReason(err error, status metav1.Status) Reason {
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return NamespaceEnds
	case apierrors.IsUnauthorized(err):
		return Unauthorized
	case apierrors.IsForbidden(err):
		return Forbidden
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return Conflicting
	case apierrors.IsTooManyRequests(err):
		return Overloaded
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return Invalid
	case status.Code >= 500:
		return NotReady
	default:
		return Refused
	}
}

// Remedy returns what mends the cause of a Reason; empty if that depends.
func (r Reason) Remedy() string { return remedies[r] }

var remedies = map[Reason]string{
	Unauthorized: "put new credentials into the Secret, as 'fingerpost link rotate' prints them",
	Untrusted: "if its authority was replaced, 'fingerpost link rotate' prints the Secret with the new one; " +
		"otherwise correct certificate-authority-data, or the address, in the kubeconfig",
	Malformed:       "name the API server itself in the kubeconfig, not what stands in front of it",
	Forbidden:       "grant what it refuses",
	QuotaExceeded:   "raise the quota, or exempt what Fingerpost writes from it",
	DeniedByPolicy:  "exempt what Fingerpost writes from the policy",
	DeniedByWebhook: "exempt what Fingerpost writes from the webhook",
	WebhookFails:    "see why the webhook does not answer, or set its failurePolicy to Ignore",
	StorageFails:    "see the storage of the API server",
	Overloaded:      "see what keeps the API server busy",
	Slow:            "see what keeps the API server busy",
	NamespaceEnds:   "see why the namespace is not deleted completely, if that lasts",
}

package api

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
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

// A ReasonInfo is what is known of all causes of a Reason.
type ReasonInfo struct {
	Reason Reason
	Means  string
	Remedy string // empty if it depends
	Advice string // what to do then
}

var reasons = []ReasonInfo{
	{
		Unreachable, "there is no answer", "",
		"see the network, firewalls, and the address in the kubeconfig; `fingerpost troubleshoot` tries each step",
	},
	{NotReady, "the API server reports that it is not ready, or answers with an error of its own", "", "see its state"},
	{
		Untrusted, "its certificate is not signed by the authority in the kubeconfig",
		"if its authority was replaced, 'fingerpost link rotate' prints the Secret with the new one; " +
			"otherwise correct certificate-authority-data, or the address, in the kubeconfig", "",
	},
	{
		Unauthorized, "the API server refuses the token or certificate (401): it has expired, or was revoked",
		"put new credentials into the Secret, as 'fingerpost link rotate' prints them", "",
	},
	{
		Forbidden, "the account lacks a right", "grant what it refuses",
		"the charts fingerpost and fingerpost-link have all that is needed",
	},
	{
		Malformed, "a redirect, a compression that was not asked for, or an oversized response",
		"name the API server itself in the kubeconfig, not what stands in front of it", "",
	},
	{
		OverBudget, "it lists more than twice of what may be held of it", "",
		"see [bounds of clusters](bounds.md#bounds-of-clusters)",
	},
	{
		QuotaExceeded, "a ResourceQuota allows no more",
		"raise the quota, or exempt what Fingerpost writes from it", "",
	},
	{
		DeniedByPolicy, "an admission policy does not allow it",
		"exempt what Fingerpost writes from the policy", "",
	},
	{DeniedByWebhook, "a webhook does not allow it", "exempt what Fingerpost writes from the webhook", ""},
	{
		WebhookFails, "a webhook that has to allow it does not answer",
		"see why the webhook does not answer, or set its failurePolicy to Ignore", "",
	},
	{StorageFails, "what the API server keeps objects in fails", "see the storage of the API server", ""},
	{Overloaded, "it takes no more requests at present (429)", "see what keeps the API server busy", ""},
	{Slow, "nothing comes in time", "see what keeps the API server busy", ""},
	{
		NamespaceEnds, "the namespace is being deleted",
		"see why the namespace is not deleted completely, if that lasts", "",
	},
	{
		Conflicting, "another client writes the same object, again and again", "",
		"see which one in `metadata.managedFields`",
	},
	{Invalid, "the API server does not take the object", "", "see the message"},
	{Refused, "anything else that it has answered", "", "see the message"},
}

// Reasons returns what is known of each Reason.
func Reasons() []ReasonInfo { return slices.Clone(reasons) }

// Remedy returns what mends the cause of a Reason; empty if that depends.
func (r Reason) Remedy() string {
	i := slices.IndexFunc(reasons, func(info ReasonInfo) bool { return info.Reason == r })
	if i < 0 {
		return ""
	}
	return reasons[i].Remedy
}

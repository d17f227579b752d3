package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"sync/atomic"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

const (
	// MaxBody is how many bytes a request may have.
	MaxBody = 10 << 20

	// maxBodies bounds the bytes of all requests that are read at once. The first freeBytes of each request are read
	// beyond that, up to maxAll together, so that a usual review is answered beside large ones that arrive slowly. With
	// one large object that is decoded maxAll fits into the limit of the chart, 64 MiB.
	maxBodies = MaxBody
	maxAll    = 16 << 20
	freeBytes = 64 << 10

	maxNames = 4 << 10 // bytes of what is logged of a request, or sent back

	jsonFormat = "application/json"
)

// A Request is what an API server asks about an object. What an AdmissionReview has besides, such as the old object and
// the groups of the user, is not read, and takes no memory.
type Request struct {
	UID       types.UID               `json:"uid"`
	Kind      metav1.GroupVersionKind `json:"kind"`
	Namespace string                  `json:"namespace"`
	Name      string                  `json:"name"` // empty if it is generated
	Operation admissionv1.Operation   `json:"operation"`
	User      User                    `json:"userInfo"`
	Object    json.RawMessage         `json:"object"` // JSON; nil or null if it is deleted
}

// A User is who has sent an object.
type User struct {
	Name string `json:"username"`
}

// An admissionReview is what is read of an AdmissionReview.
type admissionReview struct {
	metav1.TypeMeta `json:",inline"`

	Request *Request `json:"request"`
}

// versions are those of an AdmissionReview. A request that names none is of the first.
var versions = []string{"admission.k8s.io/v1", "admission.k8s.io/v1beta1"}

// newest is what the answer to a request that cannot be read is.
var newest = metav1.TypeMeta{APIVersion: versions[0], Kind: "AdmissionReview"}

// A rejection is why a request is not read, and the code of the answer.
type rejection struct {
	code   int
	reason string
}

func (r *rejection) Error() string { return r.reason }

func badRequest(format string, args ...any) error {
	return &rejection{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

var errBusy = &rejection{
	http.StatusServiceUnavailable,
	"the requests that are read at present take all the memory that there is for them",
}

var errWaiting = &rejection{http.StatusServiceUnavailable, "too many reviews are waiting"}

// decode reads an AdmissionReview.
func decode(body []byte) (*admissionReview, error) {
	var review admissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, badRequest("not an AdmissionReview: %.1000s", err.Error())
	}
	if review.Request == nil || review.Request.UID == "" {
		return nil, badRequest("not the request of an AdmissionReview: it has no UID")
	}

	r := review.Request
	if len(review.Kind)+len(review.APIVersion)+len(r.UID)+len(r.Kind.Group)+len(r.Kind.Version)+
		len(r.Kind.Kind)+len(r.Namespace)+len(r.Name)+len(r.Operation)+len(r.User.Name) > maxNames {
		return nil, badRequest("not the request of an AdmissionReview: its names have more than %d bytes", maxNames)
	}
	if review.TypeMeta != (metav1.TypeMeta{}) &&
		(review.Kind != "AdmissionReview" || !slices.Contains(versions, review.APIVersion)) {
		return nil, badRequest("%q of %q is no AdmissionReview of any of %q", review.Kind, review.APIVersion, versions)
	}
	return &review, nil
}

// bytesRead counts the bytes of all requests that are held.
type bytesRead struct{ atomic.Int64 }

// read reads the body of a request, and counts it until done is called.
func (b *bytesRead) read(
	to http.ResponseWriter, request *http.Request, anyFormat bool,
) (body []byte, done func(), err error) {
	counted := &countedBody{Reader: http.MaxBytesReader(to, request.Body, MaxBody), all: b}
	done = func() { b.Add(-counted.bytes) }

	body, err = io.ReadAll(counted)
	if err != nil || len(body) == 0 {
		return nil, done, err
	}
	if anyFormat && !isObject(body) {
		body, err = fromYAML(body)
		return body, done, err
	}

	format := request.Header.Get("Content-Type")
	if media, _, _ := mime.ParseMediaType(format); format != "" && media != jsonFormat {
		return nil, done, &rejection{
			http.StatusUnsupportedMediaType, fmt.Sprintf("the format of an AdmissionReview is %s, not %.100q",
				jsonFormat, format),
		}
	}
	return body, done, nil
}

// isObject reports whether a text begins as an object of JSON does.
func isObject(text []byte) bool {
	text = bytes.TrimLeft(text, " \t\r\n")
	return len(text) > 0 && text[0] == '{'
}

// fromYAML returns a request as JSON. No API server sends YAML, which takes far more memory than JSON: it is for who
// tries a webhook by hand.
func fromYAML(text []byte) ([]byte, error) {
	if len(text) > freeBytes {
		return nil, badRequest("not an AdmissionReview in JSON, and too long to be read as YAML")
	}
	body, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, badRequest("not an AdmissionReview: %.1000s", err.Error())
	}
	return body, nil
}

// A countedBody adds what is read of a request to the bytes of all.
type countedBody struct {
	io.Reader
	bytes int64
	all   *bytesRead
}

func (c *countedBody) Read(to []byte) (int, error) {
	n, err := c.Reader.Read(to)
	c.bytes += int64(n)
	if all := c.all.Add(int64(n)); all > maxBodies && c.bytes > freeBytes || all > maxAll {
		return n, errBusy
	}
	return n, err
}

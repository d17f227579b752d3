package ruleobject

import (
	"bytes"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// Bounds on reviews.
const (
	// Of a new object. An API server stores 1.5 MiB at most, unless its etcd is configured for more. An empty JSON
	// object of two bytes takes a hundred when decoded; a usual rule is 8 objects in 300 bytes.
	maxBytes   = 3 << 19
	maxObjects = 50_000

	maxWarnings = 10  // about one object
	maxWarning  = 256 // bytes
)

// A Verdict is what the author of a new object gets to know.
type Verdict struct {
	Denied   string   // why the object is denied; empty if it is allowed. A line of at most 256 bytes
	Warnings []string // what of an object that is allowed has no effect. At most 10 lines of at most 256 bytes
}

// reviews have what reads an object of each kind that is reviewed.
var reviews = map[rules.Kind]func(*reader) error{
	rules.KindServer:                reviewing((*reader).server),
	rules.KindServerAuthorization:   reviewing((*reader).serverAuthorization),
	rules.KindAuthorizationPolicy:   reviewing((*reader).authorizationPolicy),
	rules.KindMeshTLSAuthentication: reviewing((*reader).meshTLSAuthentication),
	rules.KindNetworkAuthentication: reviewing((*reader).networkAuthentication),
	rules.KindRateLimit:             reviewing((*reader).rateLimit),
	rules.KindEgressNetwork:         reviewing((*reader).egressNetwork),
	rules.KindPolicyHTTPRoute:       reviewing((*reader).route),
	rules.KindHTTPRoute:             reviewing((*reader).route),
	rules.KindGRPCRoute:             reviewing((*reader).route),
	rules.KindTLSRoute:              reviewing((*reader).route),
	rules.KindTCPRoute:              reviewing((*reader).route),
}

func reviewing[V any](read func(*reader) (*V, error)) func(*reader) error {
	return func(r *reader) error {
		_, err := read(r)
		return err
	}
}

// A Lookup reports whether an object exists, if that is known.
type Lookup func(of rules.Reference) (exists, known bool)

// Review returns the verdict on a new object, as JSON, of a group and kind, which compare without regard to case. Of
// the object only its namespace, annotations and spec are read. What an AuthorizationPolicy or a rate limit that is
// allowed refers to is looked up, and is a warning if it is known not to exist; a nil Lookup knows of nothing.
//
// An object of policy.linkerd.io that does not decode is denied. One of the Gateway API is allowed, as it may be meant
// for another implementation.
func Review(group, kind string, object []byte, lookup Lookup) Verdict {
	of := rules.KindOf(group, kind)
	read, reviewed := reviews[of]
	switch {
	case !reviewed:
		return Verdict{Denied: "unsupported resource type"}
	case len(object) > maxBytes:
		return Verdict{Denied: fmt.Sprintf("it has %d bytes, more than %d", len(object), maxBytes)}
	case bytes.Count(object, []byte("{")) > maxObjects:
		return Verdict{Denied: fmt.Sprintf("it has more than %d JSON objects", maxObjects)}
	}

	var from struct {
		Metadata struct {
			Namespace   string            `json:"namespace"`
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec json.RawMessage `json:"spec"`
	}

	r := &reader{kind: of}
	err := decode(object, &from)
	if err == nil {
		r.object = metav1.ObjectMeta{Namespace: from.Metadata.Namespace, Annotations: from.Metadata.Annotations}
		r.spec = from.Spec
		err = read(r)
	}
	if err == nil && lookup != nil && r.object.Namespace != "" {
		r.lookUp(lookup)
	}
	return r.verdict(err)
}

// lookUp notes what of the referents does not exist. They may come later, so it is no reason to deny the object.
func (r *reader) lookUp(lookup Lookup) {
	for _, of := range r.referents {
		if exists, known := lookup(of); known && !exists {
			r.note(rules.PartReference, "%v %s does not exist at present", of.Kind, of.Name)
		}
	}
}

// verdict returns the one on what was read. An error is why none of it can be used.
func (r *reader) verdict(err error) Verdict {
	isForeign := r.kind.Group() == rules.GatewayGroup
	switch {
	case err != nil && !isForeign:
		return Verdict{Denied: federation.PrintableWithin(err.Error(), maxWarning)}
	case err != nil:
		r.leaveOut(rules.PartSpec, "%v", err)
	case r.misread != "" && !isForeign:
		return Verdict{Denied: r.misread}
	case r.denied != "" && r.misread == "":
		return Verdict{Denied: r.denied}
	}
	return Verdict{Warnings: r.warnings()}
}

func (r *reader) warnings() (warnings []string) {
	more := r.more
	for i, f := range r.findings {
		if len(warnings) == maxWarnings-1 && len(r.findings)+r.more > maxWarnings {
			more += len(r.findings) - i
			return append(warnings, fmt.Sprintf("and %d more", more))
		}
		warnings = append(warnings, federation.PrintableWithin(f.String(), maxWarning))
	}
	return warnings
}

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/internal/logs"
)

// Is a cluster the one that its Link describes? Four things that Links get wrong are cheap to find, and
// each of them fails in ways that are hard to trace back: two names for one API server duplicate every
// endpoint, a wrong trust domain fails mTLS, and so do meshes that trust other anchors, and a clock that is off fails
// tokens and Leases.
//
// The identity is read by followSelf. The probe measures the clock, because it requests something anyway. Nothing is
// withdrawn or rejected for a Mismatch. A cluster can claim the UID of another one, so that a Mismatch is a report for
// people, not a proof.

const (
	identityTimeout = 10 * time.Second

	// maxSkew is how far the clock of a cluster may be from ours.
	maxSkew = 10 * time.Second

	maxIdentity = 253 // length of what is kept of an Identity
)

// Identity is what a cluster reports of itself. Fields that are not known are empty.
type Identity struct {
	UID         string `json:"uid,omitempty"`         // of the namespace kube-system
	TrustDomain string `json:"trustDomain,omitempty"` // that its mesh was installed with

	// Anchors are those that its proxies trust, as ParseAnchors returns them.
	Anchors []linkerd.Anchor `json:"trustAnchors,omitempty"`

	// Issuer is that of its mesh, as the values of its installation have it.
	Issuer linkerd.Issuer `json:"issuer,omitzero"`
}

func (i Identity) equal(o Identity) bool {
	return i.UID == o.UID && i.TrustDomain == o.TrustDomain && slices.Equal(i.Anchors, o.Anchors) &&
		i.Issuer.Equal(o.Issuer)
}

// readIdentity reads the identity of the cluster, and publishes what is known of it. What was read before stays while
// the API server does not respond: a Mismatch is not over because it cannot be seen. It returns why something
// cannot be read.
func (r *selfReader) readIdentity(ctx context.Context) error {
	err := r.requestIdentity(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}

	if text := ErrorText(err); text != r.identityProblem {
		r.identityProblem = text
		if text == "" {
			r.log.Info("The identity of the cluster is known again")
		} else {
			logs.Warn(r.log, "The identity of the cluster is not known completely", "error", text)
		}
	}

	r.registry.changeStatus(r.supervisor, func(s *Status) { s.Identity = r.identity })
	return err
}

// requestIdentity reads the identity of the cluster. What does not exist is no error.
func (r *selfReader) requestIdentity(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	system, systemErr := r.core.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if isResult(systemErr) {
		r.identity.UID = bounded(string(system.UID))
	}

	var meshErr error
	if r.registry.options.ControllerNamespace != "" {
		meshErr = r.requestMesh(ctx)
	}
	return errors.Join(describeGet(systemErr, "namespaces", metav1.NamespaceSystem), meshErr)
}

// requestMesh reads what identifies the mesh of the cluster. The trust domain of the local one is a flag.
func (r *selfReader) requestMesh(ctx context.Context) error {
	var config linkerd.Config
	values, err := r.readConfigMap(ctx, linkerd.ConfigName, linkerd.ConfigValuesKey)
	if err == nil {
		config, err = linkerd.ParseConfig(values)
	}
	if !isResult(err) {
		return describeGet(err, "configmaps", linkerd.ConfigName)
	}

	if !r.local {
		r.identity.TrustDomain = bounded(config.TrustDomain)
	}
	if err != nil {
		r.identity.Anchors, r.identity.Issuer = nil, linkerd.Issuer{}
		return describeGet(err, "configmaps", linkerd.ConfigName)
	}
	return r.requestAnchors(ctx, config)
}

// requestAnchors reads the trust anchors of the mesh, unless its configuration has them. What cannot be understood is
// not known.
func (r *selfReader) requestAnchors(ctx context.Context, config linkerd.Config) error {
	bundle := config.Anchors
	if bundle == "" {
		var err error
		bundle, err = r.readConfigMap(ctx, linkerd.AnchorsName, linkerd.AnchorsKey)
		if err != nil {
			if isResult(err) {
				r.identity.Anchors, r.identity.Issuer = nil, linkerd.Issuer{}
			}
			return describeGet(err, "configmaps", linkerd.AnchorsName)
		}
	}

	var err error
	r.identity.Issuer = linkerd.Issuer{}
	if r.identity.Anchors, err = linkerd.ParseAnchors(bundle); err != nil || config.Issuer == "" {
		return err
	}
	r.identity.Issuer, err = linkerd.ParseIssuer(config.Issuer, bundle)
	return err
}

// readConfigMap returns the value of a key in a ConfigMap of the control plane.
func (r *selfReader) readConfigMap(ctx context.Context, name, key string) (string, error) {
	configMaps := r.core.ConfigMaps(r.registry.options.ControllerNamespace)
	found, err := configMaps.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return found.Data[key], nil
}

// isResult reports whether a get request that returned err shows what there is, or that we may not read it.
func isResult(err error) bool {
	return err == nil || apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
}

// describeGet returns the error of a get request, nil if there is no such object.
func describeGet(err error, resource, name string) error {
	switch {
	case apierrors.IsForbidden(err):
		return missingRight("grant get on " + resource + " of the name " + name)
	case err == nil, apierrors.IsNotFound(err):
		return nil
	default:
		return fmt.Errorf("get %s %s: %w", resource, name, err)
	}
}

// A missingRight is one that a linked cluster need not grant: what to grant.
type missingRight string

func (m missingRight) Error() string { return string(m) }

func bounded(text string) string {
	if len(text) > maxIdentity {
		return ""
	}
	return text
}

// compareIdentities sets in each Status what follows from the identities of all.
func compareIdentities(statuses map[string]Status) {
	nameSameClusters(statuses)
	compareAnchors(statuses)
}

// compareAnchors sets in each Status the trust anchors of the local cluster if none of them is one of its own, and
// otherwise whose issuer is not trusted by the other one. Two sets that overlap are those of a rotation, or of meshes
// that each have the anchors of both. A cluster whose anchors are not known differs from none.
func compareAnchors(statuses map[string]Status) {
	var ours Identity
	for _, s := range statuses {
		if s.Local {
			ours = s.Identity
		}
	}

	for name, status := range statuses {
		theirs := status.Identity
		isShared := func(a linkerd.Anchor) bool { return slices.Contains(theirs.Anchors, a) }
		status.OtherAnchors, status.Untrusted = "", ""

		switch {
		case len(ours.Anchors) == 0 || len(theirs.Anchors) == 0:
		case !slices.ContainsFunc(ours.Anchors, isShared):
			status.OtherAnchors = anchorsText(ours.Anchors)
		default:
			status.Untrusted = untrustedText(ours, theirs)
		}
		statuses[name] = status
	}
}

// untrustedText describes for people which of two issuers proxies of the other cluster do not trust; empty for none.
// One that leads to no anchor of its own mesh is not the one in use: nothing follows from it.
func untrustedText(ours, theirs Identity) string {
	trusts := func(anchors []linkerd.Anchor, issuer linkerd.Issuer) bool {
		return len(issuer.Under) == 0 || slices.ContainsFunc(anchors, func(a linkerd.Anchor) bool {
			return slices.Contains(issuer.Under, a.Fingerprint)
		})
	}

	var texts []string
	if !trusts(theirs.Anchors, ours.Issuer) {
		texts = append(texts, "proxies there do not trust the issuer here, "+ours.Issuer.String())
	}
	if !trusts(ours.Anchors, theirs.Issuer) {
		texts = append(texts, "proxies here do not trust its issuer, "+theirs.Issuer.String())
	}
	return strings.Join(texts, "; ")
}

// anchorsText describes trust anchors for people.
func anchorsText(anchors []linkerd.Anchor) string {
	const shown = 2 // so that a condition has room for both clusters
	var texts []string
	for _, anchor := range anchors[:min(shown, len(anchors))] {
		texts = append(texts, anchor.String())
	}
	text := strings.Join(texts, ", ")
	if more := len(anchors) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// nameSameClusters sets in each Status the names of the other clusters with its UID.
func nameSameClusters(statuses map[string]Status) {
	names := map[string][]string{} // by UID
	for _, name := range slices.Sorted(maps.Keys(statuses)) {
		uid := statuses[name].Identity.UID
		names[uid] = append(names[uid], name)
	}

	for name, s := range statuses {
		s.SameAs = ""
		if uid := s.Identity.UID; uid != "" {
			others := slices.DeleteFunc(slices.Clone(names[uid]), func(o string) bool { return o == name })
			s.SameAs = strings.Join(others, ", ")
		}
		statuses[name] = s
	}
}

// steadySkew returns the skew to report after a measurement: none up to maxSkew, and the old one while the
// new one is close to it, because measurements vary by as much as a request takes.
func steadySkew(old, measured time.Duration) time.Duration {
	switch {
	case old != 0 && (measured-old).Abs() <= maxSkew/2:
		return old
	case measured.Abs() <= maxSkew:
		return 0
	default:
		return measured.Round(time.Second)
	}
}

// skewText returns a skew as Statuses have it; empty for none.
func skewText(skew time.Duration) string {
	switch {
	case skew > 0:
		return skew.String() + " ahead of this replica's"
	case skew < 0:
		return skew.Abs().String() + " behind this replica's"
	default:
		return ""
	}
}

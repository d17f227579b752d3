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
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
)

// Is a cluster the one that its Link describes? Three things that Links get wrong are cheap to find, and
// each of them fails in ways that are hard to trace back: two names for one API server duplicate every
// endpoint, a wrong trust domain fails mTLS, and a clock that is off fails tokens and Leases.
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
}

// readIdentity reads the identity of the cluster, and publishes what is known of it. What was read before stays while
// the API server does not respond: a Mismatch is not over because it cannot be seen.
func (r *selfReader) readIdentity(ctx context.Context) {
	err := r.requestIdentity(ctx)
	if ctx.Err() != nil {
		return
	}
	if text := ErrorText(err); text != r.identityProblem {
		r.identityProblem = text
		r.log.Info("The identity of the cluster is not known completely", "error", text)
	}
	r.registry.changeStatus(r.supervisor, func(s *Status) { s.Identity = r.identity })
}

// requestIdentity reads the identity of the cluster. What does not exist is no error. The trust domain of the local
// cluster is a flag, and is not read.
func (r *selfReader) requestIdentity(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	system, systemErr := r.core.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if isResult(systemErr) {
		r.identity.UID = bounded(string(system.UID))
	}

	var configErr error
	if namespace := r.registry.options.ControllerNamespace; !r.local && namespace != "" {
		var trustDomain string
		if trustDomain, configErr = readTrustDomain(ctx, r.core, namespace); isResult(configErr) {
			r.identity.TrustDomain = trustDomain
		}
	}

	return errors.Join(
		describeGet(systemErr, "namespaces", metav1.NamespaceSystem),
		describeGet(configErr, "configmaps", linkerd.ConfigName))
}

// isResult reports whether a get request that returned err shows what there is, or that we may not read it.
func isResult(err error) bool {
	return err == nil || apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
}

func readTrustDomain(ctx context.Context, core corev1client.CoreV1Interface, namespace string) (string, error) {
	config, err := core.ConfigMaps(namespace).Get(ctx, linkerd.ConfigName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	trustDomain, _, err := linkerd.ParseConfig(config.Data[linkerd.ConfigValuesKey])
	return bounded(trustDomain), err
}

// describeGet returns the error of a get request, nil if there is no such object.
func describeGet(err error, resource, name string) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("grant get on %s of the name %s", resource, name)
	case err == nil, apierrors.IsNotFound(err):
		return nil
	default:
		return fmt.Errorf("get %s %s: %w", resource, name, err)
	}
}

func bounded(text string) string {
	if len(text) > maxIdentity {
		return ""
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
		return skew.String() + " ahead"
	case skew < 0:
		return skew.Abs().String() + " behind"
	default:
		return ""
	}
}

package links

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
)

// inputs is everything that the Spec of one cluster name is computed from.
type inputs struct {
	name        string
	local       string // name of the local cluster
	trustDomain string // of the local cluster
	controllers string // the controller namespace; empty if labelled Secrets are not read
	hosts       Hosts

	before  cluster.Spec // as applied so far
	applied bool         // there is one

	links    []*Link                         // all that name the cluster
	labelled []*secret                       // in the controller namespace, with the cluster's label
	secret   func(api.Key) (*secret, string) // by name; or nil, and why there is none
}

// outcome is the result for one cluster name.
type outcome struct {
	// spec is nil if no Link and no labelled Secret names the cluster. Without Access no credentials are usable, and
	// the Spec that is applied already stays.
	spec      *cluster.Spec
	links     []*Link // all that name the cluster
	winner    *Link   // the Link that counts; nil if there is none
	rejection error   // why credentials were rejected
	domains   string  // the domains and where each comes from, for people
}

// resolve computes the Spec of one cluster name. A labelled Secret comes first, as it does in Linkerd; the
// Secret of the winning Link is a second access, unless it holds the same kubeconfig. Its annotation sets the trust
// domain that the labelled one leaves open.
func resolve(in inputs) outcome {
	slices.SortFunc(in.links, compareLinks)
	slices.SortFunc(in.labelled, func(a, b *secret) int { return compareAge(a.created, b.created, a.key, b.key) })
	out := outcome{links: in.links}
	if len(in.links)+len(in.labelled) == 0 || invalidName("", in.name) != "" {
		return out
	}
	if in.name == in.local {
		out.rejection = errors.New(localName(in.name))
		return out
	}

	if len(in.links) > 0 {
		out.winner = in.links[0]
	}

	spec := &cluster.Spec{Name: in.name}
	out.spec = spec
	var problems []error
	accept := func(access cluster.Access, err error) {
		if err != nil {
			problems = append(problems, err)
			return
		}
		spec.Access = append(spec.Access, access)
	}

	if len(in.labelled) > 0 {
		s := in.labelled[0]
		spec.TrustDomain, spec.ClusterDomain = s.trustDomain, s.clusterDomain
		if out.winner == nil && (s.trustDomain == "" || s.clusterDomain == "") {
			problems = append(problems, fmt.Errorf("%s lacks the annotation %s or %s, "+
				"and no Link provides the domain", s, TrustDomainAnnotation, ClusterDomainAnnotation))
		} else {
			accept(newAccess(s, in.hosts))
		}
	}

	if link := out.winner; link != nil {
		s, problem := in.secretOf(link)
		switch {
		case problem != nil:
			problems = append(problems, problem)
		case s != nil && !in.isLabelled(s):
			accept(newAccess(s, in.hosts))
		}
		if s != nil && spec.TrustDomain == "" {
			spec.TrustDomain = s.trustDomain
		}

		spec.Slices = link.slicesEnabled || link.slicesUnclear && in.before.Slices
		spec.Traffic, spec.Released = link.trafficAfter(in.before.Traffic, in.before.Released)
		out.domains = fillDomains(spec, link, in.trustDomain)
	}

	out.rejection = errors.Join(problems...)
	return out
}

// compareAge orders two objects by when they were created, the older one first, and those of one moment by name.
func compareAge(a, b time.Time, aKey, bKey api.Key) int {
	return cmp.Or(a.Compare(b), strings.Compare(aKey.String(), bKey.String()))
}

// secretOf returns the Secret that a Link names; nil without a problem if it names none, and there is a labelled one.
func (in inputs) secretOf(link *Link) (*secret, error) {
	if link.secret == "" {
		if len(in.labelled) > 0 {
			return nil, nil
		}
		if in.controllers == "" {
			return nil, fmt.Errorf("spec.clusterCredentialsSecret is empty, and labelled Secrets are not read "+
				"(-labelled-secrets): name a Secret in namespace %s", link.key.Namespace)
		}
		return nil, fmt.Errorf("spec.clusterCredentialsSecret is empty, and no Secret of type %s in namespace %s "+
			"(-controller-namespace) has the label %s=%s: name a Secret in namespace %s",
			SecretType, in.controllers, ClusterNameLabel, in.name, link.key.Namespace)
	}

	s, problem := in.secret(api.Key{Namespace: link.key.Namespace, Name: link.secret})
	if s == nil {
		return nil, errors.New(problem)
	}
	return s, nil
}

// isLabelled reports whether a Secret is the labelled one, or holds the same kubeconfig.
func (in inputs) isLabelled(s *secret) bool {
	return len(in.labelled) > 0 && s.leftOut == 0 && bytes.Equal(s.kubeconfig, in.labelled[0].kubeconfig)
}

// fillDomains sets the domains that no Secret provides, and describes where each comes from.
func fillDomains(spec *cluster.Spec, l *Link, localTrustDomain string) string {
	const annotation = "the annotation of its Secret"
	trust, dns := annotation, annotation
	if spec.TrustDomain == "" {
		spec.TrustDomain, trust = localTrustDomain, "that of the local cluster"
	}
	if spec.ClusterDomain == "" {
		spec.ClusterDomain, dns = l.clusterDomain, "spec.targetClusterDomain"
	}
	return fmt.Sprintf("trust domain %s (%s), cluster domain %s (%s)",
		spec.TrustDomain, trust, cmp.Or(spec.ClusterDomain, "unknown"), dns)
}

func newAccess(secret *secret, hosts Hosts) (cluster.Access, error) {
	if secret.leftOut > 0 {
		return cluster.Access{}, fmt.Errorf("%s: %w", secret, tooLarge(secret.leftOut))
	}
	if len(secret.kubeconfig) == 0 {
		return cluster.Access{}, fmt.Errorf("%s has no data under %q", secret, KubeconfigKey)
	}
	config, err := Credentials(secret.kubeconfig, hosts)
	if err != nil {
		return cluster.Access{}, fmt.Errorf("%s: %w", secret, err)
	}
	return cluster.Access{Source: secret.String(), Config: config}, nil
}

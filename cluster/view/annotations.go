package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// Annotations by which users ask something of us have this prefix, and those that we write for ourselves.
const prefix = "federation.fingerpost.io/"

const (
	// MembersKey is an annotation with the members of a federated Service: service@cluster, or service for
	// one of its own cluster, separated by commas. Linkerd does not know it, and so its destination
	// controller serves the slices of the Service.
	MembersKey = prefix + "members"

	// Those that the mirror writes for itself.
	linksKey   = prefix + "links"
	appliedKey = prefix + "applied"

	// OptIn is the annotation by which a Service asks for slices with endpoints of other clusters, and a Link
	// for slices in the cluster that it links.
	OptIn = prefix + "endpoint-slices"
	// Enabled is a value of OptIn.
	Enabled = "enabled"
	// disabled is the other value of OptIn, and the default.
	disabled = "disabled"
)

// Annotations under our prefix that an object of a kind may have: those of users, and those that we write.
var (
	serviceKeys = append([]string{OptIn, MembersKey, linksKey, appliedKey}, policy.ServiceKeys...)
	LinkKeys    = append([]string{OptIn}, policy.LinkKeys...)
)

// OptsIn returns whether annotations ask for slices. It is unclear if the value is none of those that there
// are: then what was in force stays.
func OptsIn(annotations map[string]string) (optIn, unclear bool) {
	switch value, found := annotations[OptIn]; {
	case !found, value == disabled:
		return false, false
	default:
		return value == Enabled, value != Enabled
	}
}

// Misread describes the annotations under our prefix that are not understood; it is empty if there are none.
// known are the keys that the object may have.
func Misread(annotations map[string]string, known []string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if name, is := strings.CutPrefix(key, prefix); is && !slices.Contains(known, key) {
			all = append(all, fmt.Sprintf("the annotation %s is not known: did you mean %s?",
				prefix+strings.Trim(quote(name), `"`), strings.Join(likeliest(known, name), " or ")))
		}
	}

	if _, unclear := OptsIn(annotations); unclear {
		all = append(all, fmt.Sprintf("the annotation %s has the value %s, so that what was in force stays: "+
			"set %s or %s", OptIn, quote(annotations[OptIn]), Enabled, disabled))
	}

	for _, p := range policy.Problems(annotations, known) {
		all = append(all, p.String())
	}
	if len(all) > maxOmissions {
		all = append(all[:maxOmissions], fmt.Sprintf("and %d more", len(all)-maxOmissions))
	}
	return strings.Join(all, "; ")
}

// StandsForOthers reports whether a Service has no endpoints of its own.
func StandsForOthers(svc *corev1.Service) bool {
	_, isMirror := svc.Labels[linkerd.RemoteDiscoveryKey]
	return isMirror || IsFederated(svc)
}

// ClustersBehind returns the clusters of the Services that one stands for, sorted: of the members of a federated
// Service, and of what a mirror leads to, through a gateway or not. own is the cluster of the Service.
func ClustersBehind(own federation.Cluster, svc *corev1.Service) (all []federation.Cluster) {
	var out omissions // a View has them
	var view federation.View
	view.Composition, view.Malformed = newComposition(own, svc, &out)

	if gateway := throughGateway(svc, &view, &out); gateway != "" {
		return []federation.Cluster{gateway}
	}
	if view.Composition != nil {
		for _, m := range view.Composition.Members {
			all = append(all, m.Cluster)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// IsFederated reports whether a Service stands for those of several clusters.
func IsFederated(svc *corev1.Service) bool {
	for _, key := range []string{linkerd.RemoteDiscoveryKey, linkerd.LocalDiscoveryAnnotation, MembersKey} {
		if _, found := svc.Annotations[key]; found {
			return true
		}
	}
	return false
}

// MisreadService describes what a Service of the local cluster asks for that is not understood, or has no
// effect; it is empty if there is nothing.
func MisreadService(svc *corev1.Service) string {
	all := Misread(svc.Annotations, serviceKeys)
	if IsFederated(svc) {
		return all
	}
	var unused []string
	for _, key := range policy.ServiceKeys {
		if _, found := svc.Annotations[key]; found {
			unused = append(unused, key)
		}
	}

	if unused == nil {
		return all
	}
	text := "the Service is not federated, so that its policy has no effect (" + strings.Join(unused, ", ") + "): "
	if _, mirror := svc.Labels[linkerd.RemoteDiscoveryKey]; mirror {
		text += "a mirror has the endpoints of one cluster only"
	} else {
		text += "set it on the federated Service in this cluster, such as " + svc.Name + "-federated"
	}

	if all == "" {
		return text
	}
	return text + "; " + all
}

// likeliest returns those of the keys that users set which begin most like a name; all of them if none does.
func likeliest(known []string, name string) (keys []string) {
	most := 0
	for _, key := range known {
		n, own := 0, strings.TrimPrefix(key, prefix)
		for n < min(len(own), len(name)) && own[n] == name[n] {
			n++
		}
		if n > most {
			most, keys = n, nil
		}
		if n == most && key != linksKey && key != appliedKey {
			keys = append(keys, key)
		}
	}

	return keys
}

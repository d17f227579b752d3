package mirror

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
)

// Names and keys of what is written. Most are Linkerd's.
const (
	mirroredLabel       = linkerd.MirroredServiceLabel   // =true, also on federated Services
	clusterLabel        = linkerd.MirrorClusterNameLabel // not on federated Services
	headlessLabel       = linkerd.HeadlessMirrorLabel
	gatewayLabel        = linkerd.MirroredGatewayLabel // on the Service over which a gateway is probed
	federatedLabel      = linkerd.FederatedLabel       // =member, on Services that join
	discoveryKey        = linkerd.RemoteDiscoveryKey
	remoteServiceLabel  = linkerd.RemoteServiceLabel
	localDiscoveryKey   = linkerd.LocalDiscoveryAnnotation
	nameAnnotation      = linkerd.RemoteNameAnnotation
	versionAnnotation   = linkerd.RemoteVersionAnnotation
	identityAnnotation  = linkerd.RemoteGatewayIdentityAnnotation
	opaqueAnnotation    = linkerd.OpaquePortsAnnotation
	controllerName      = linkerd.ServiceMirrorController
	managedByLabel      = "app.kubernetes.io/managed-by"
	productName         = "fingerpost"
	federatedSuffix     = "-federated"
	probePrefix         = "probe-"
	probePort           = "mc-probe"
	mirrorLabelPrefix   = linkerd.MirrorPrefix
	discoveryKeysPrefix = linkerd.MulticlusterPrefix
	productPrefix       = "federation.fingerpost.io/" // of annotations by which users ask something of us
	linksAnnotation     = productPrefix + "links"     // on what we write: the Links that it was written for
	appliedAnnotation   = productPrefix + "applied"   // on what we write: a hash of what was applied last
)

// mirrorName returns the name of the mirror of a Service, or of one of its hostnames.
func mirrorName(cluster string, k api.Key) api.Key {
	return api.Key{Namespace: k.Namespace, Name: k.Name + "-" + cluster}
}

// federatedName returns the name of the federated Service that a Service may join.
func federatedName(k api.Key) api.Key {
	return api.Key{Namespace: k.Namespace, Name: k.Name + federatedSuffix}
}

// probeService returns the name of the Service over which the gateway of a Link is probed.
func probeService(l *link) api.Key {
	return api.Key{Namespace: l.Link.Namespace, Name: probePrefix + l.Link.Name}
}

// isReservedKey reports whether a key names the members of a Service, or asks something of us. Such keys are
// never copied: otherwise a user of a linked cluster, who may label a Service there, could set them here.
func isReservedKey(key string) bool {
	return strings.HasPrefix(key, discoveryKeysPrefix) || strings.HasPrefix(key, productPrefix)
}

// isMirror reports whether an object is a mirror or a federated Service, written by us or by Linkerd.
func isMirror(o metav1.Object) bool { return o.GetLabels()[mirroredLabel] == "true" }

// isOurs reports whether an object may be changed: it is a mirror, or we created it for another purpose.
func isOurs(o metav1.Object) bool { return isMirror(o) || o.GetLabels()[managedByLabel] == productName }

// ownersOf returns the Links that a Service was written for, by cluster; none if we did not write it. Endpoints have
// none: those of their Service are theirs.
func ownersOf(o metav1.Object) map[string]api.Key {
	owners := map[string]api.Key{}
	for item := range strings.SplitSeq(o.GetAnnotations()[linksAnnotation], ",") {
		cluster, link, is := strings.Cut(item, "=")
		namespace, name, named := strings.Cut(link, "/")
		if is && named {
			owners[cluster] = api.Key{Namespace: namespace, Name: name}
		}
	}
	return owners
}

// setOwners annotates a Service with the Links that it is written for. A later term, which may never see
// one of these Links, knows by it that we wrote the Service.
func setOwners(svc *corev1.Service, owners map[string]api.Key) {
	var items []string
	for cluster, link := range owners {
		items = append(items, cluster+"="+link.String())
	}
	slices.Sort(items)
	if len(items) > 0 {
		svc.Annotations[linksAnnotation] = strings.Join(items, ",")
	}
}

// excluded reports whether a list of keys contains a key. foo/* contains all that begin with foo/.
func excluded(list []string, key string) bool {
	return slices.ContainsFunc(list, func(item string) bool {
		prefix, isPattern := strings.CutSuffix(item, "*")
		return item == key || isPattern && strings.HasSuffix(prefix, "/") && strings.HasPrefix(key, prefix)
	})
}

package mirror

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/records"
)

// Marks on what is written, and on what asks for it. They are Linkerd's.
const (
	mirroredLabel       = linkerd.MirroredServiceLabel   // on all Services and Endpoints that stand for others
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
	productPrefix       = "federation.fingerpost.io/" // annotations by which a Service asks something of us
	linksAnnotation     = productPrefix + "links"     // annotation on what we write: the Links that it was written for
)

// isControl reports whether a key says of what a Service consists, or asks something of us. That is for those to say who may change the
// object that bears it, and is never copied: else whoever may label a Service in a linked cluster would say it here.
func isReservedKey(key string) bool {
	return strings.HasPrefix(key, discoveryKeysPrefix) || strings.HasPrefix(key, productPrefix)
}

// isMirror reports whether an object stands for others, whoever wrote it.
func isMirror(o metav1.Object) bool { return o.GetLabels()[mirroredLabel] == "true" }

// isOurs reports whether an object may be changed: it is a mirror, or we made it for another reason.
func isOurs(o metav1.Object) bool { return isMirror(o) || o.GetLabels()[managedByLabel] == productName }

// linksOf returns the Links that a Service was written for, by the names of their clusters; none if we did not write it.
func ownersOf(svc *corev1.Service) map[string]records.Key {
	owners := map[string]records.Key{}
	if svc == nil {
		return owners
	}
	for item := range strings.SplitSeq(svc.Annotations[linksAnnotation], ",") {
		cluster, link, is := strings.Cut(item, "=")
		namespace, name, named := strings.Cut(link, "/")
		if is && named {
			owners[cluster] = records.Key{Namespace: namespace, Name: name}
		}
	}
	return owners
}

// mark notes on a Service for which Links it is written: whoever comes when one of them is gone knows that we wrote it.
func setOwners(svc *corev1.Service, owners map[string]records.Key) {
	var items []string
	for cluster, link := range owners {
		items = append(items, cluster+"="+link.String())
	}
	slices.Sort(items)
	if len(items) > 0 {
		svc.Annotations[linksAnnotation] = strings.Join(items, ",")
	}
}

// excluded reports whether a list of keys names a key. "foo/*" names all that begin with "foo/".
func excluded(list []string, key string) bool {
	for _, item := range list {
		if prefix, all := strings.CutSuffix(item, "*"); item == key || all && strings.HasSuffix(prefix, "/") && strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

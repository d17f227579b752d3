package links

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fingerpost/fingerpost/cluster/endpointslice"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/records"
)

// What `linkerd multicluster link-gen` writes.
const (
	clusterNameLabel        = linkerd.ClusterNameLabel
	trustDomainAnnotation   = linkerd.TrustDomainAnnotation
	clusterDomainAnnotation = linkerd.ClusterDomainAnnotation
	kubeconfigKey           = "kubeconfig"

	// SecretType is the type of Secrets that hold the kubeconfig of a linked cluster.
	SecretType corev1.SecretType = linkerd.RemoteKubeconfigType
)

// The same for those who write Secrets and Links, or look at them.
const (
	ClusterNameLabel        = clusterNameLabel        // of a Secret: which cluster it leads to
	TrustDomainAnnotation   = trustDomainAnnotation   // of a Secret: trust domain of the cluster's identities
	ClusterDomainAnnotation = clusterDomainAnnotation // of a Secret: domain of the cluster's DNS names
	KubeconfigKey           = kubeconfigKey           // of a Secret's data
)

// Group is the API group of Links, and versions how it is served, the newest first.
const Group = linkerd.MulticlusterGroup

var versions = linkerd.LinkVersions

func linkResource(version string) schema.GroupVersionResource {
	return linkerd.Links.WithVersion(version)
}

// A Link is what is kept of a Link object: as much as says which cluster it links, and how.
type Link struct {
	key        records.Key
	uid        string
	version    string // in which it was read
	generation int64
	created    time.Time
	conditions []metav1.Condition

	clusterName   string
	clusterDomain string
	secret        string // in the Link's namespace
	slicesEnabled bool   // what other clusters hold may be written into it
	invalid       string // why the rest says nothing

	mirroring *Mirroring
}

// keepLink reads a Link. One that cannot be read is kept as invalid: it must not hide the others.
func newLink(object any) (*Link, bool) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, false
	}
	l := &Link{
		key: records.Key{Namespace: u.GetNamespace(), Name: u.GetName()}, uid: string(u.GetUID()),
		slicesEnabled: u.GetAnnotations()[endpointslice.OptIn] == endpointslice.Enabled, version: u.GroupVersionKind().Version, generation: u.GetGeneration(), created: u.GetCreationTimestamp().Time,
	}
	var parsed struct {
		Spec struct {
			TargetClusterName        string `json:"targetClusterName"`
			TargetClusterDomain      string `json:"targetClusterDomain"`
			ClusterCredentialsSecret string `json:"clusterCredentialsSecret"`
		} `json:"spec"`
	}
	if b, err := u.MarshalJSON(); err != nil {
		l.invalid = err.Error()
	} else if err := json.Unmarshal(b, &parsed); err != nil {
		l.invalid = err.Error()
	}
	l.clusterName, l.clusterDomain, l.secret = parsed.Spec.TargetClusterName, parsed.Spec.TargetClusterDomain, parsed.Spec.ClusterCredentialsSecret
	if l.invalid == "" {
		l.invalid = invalidName("spec.targetClusterName", l.clusterName)
	}
	l.conditions = readConditions(u)
	l.mirroring = newMirroring(u, l)
	return l, true
}

// conditionsOf reads status.conditions; none if they cannot be read.
func readConditions(u *unstructured.Unstructured) []metav1.Condition {
	list, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
	if err != nil {
		return nil
	}
	var conditions []metav1.Condition
	b, err := json.Marshal(list)
	if err == nil {
		err = json.Unmarshal(b, &conditions)
	}
	if err != nil {
		return nil
	}
	return conditions
}

// invalidName returns why a name cannot name a cluster; empty if it can. Names are values of labels and stand in lists of
// service@cluster.
func invalidName(field, name string) string {
	if name == "" {
		return field + " is empty: it must name the cluster"
	}
	if problems := validation.IsValidLabelValue(name); len(problems) > 0 {
		return fmt.Sprintf("%s %q is no name for a cluster: %s", field, name, strings.Join(problems, "; "))
	}
	return ""
}

// A secret is what is kept of a Secret that holds a kubeconfig.
type secret struct {
	key           records.Key
	created       time.Time
	clusterName   string // by its label; empty for one that a Link names
	trustDomain   string
	clusterDomain string
	kubeconfig    []byte
}

func newSecret(object any) (*secret, bool) {
	s, ok := object.(*corev1.Secret)
	if !ok || s.Type != SecretType {
		return nil, false
	}
	return &secret{
		key: records.Key{Namespace: s.Namespace, Name: s.Name}, created: s.CreationTimestamp.Time,
		clusterName: s.Labels[clusterNameLabel], trustDomain: s.Annotations[trustDomainAnnotation], clusterDomain: s.Annotations[clusterDomainAnnotation],
		kubeconfig: s.Data[kubeconfigKey],
	}, true
}

func (s *secret) String() string { return "Secret " + s.key.String() }

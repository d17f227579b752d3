package links

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/cluster/view"
	"github.com/fingerpost/fingerpost/federation/policy"
)

// What `linkerd multicluster link-gen` writes on the Secret of a linked cluster.
const (
	SecretType corev1.SecretType = linkerd.RemoteKubeconfigType

	ClusterNameLabel        = linkerd.ClusterNameLabel        // the cluster that the kubeconfig reaches
	TrustDomainAnnotation   = linkerd.TrustDomainAnnotation   // of the identities in that cluster
	ClusterDomainAnnotation = linkerd.ClusterDomainAnnotation // of its DNS names
	KubeconfigKey           = "kubeconfig"                    // in the Secret's data
)

// Group is the API group of Links.
const Group = linkerd.MulticlusterGroup

var versions = linkerd.LinkVersions // the newest first

func linkResource(version string) schema.GroupVersionResource {
	return linkerd.Links.WithVersion(version)
}

// A Link is the record of a Link object: which cluster it links, and how.
type Link struct {
	key        api.Key
	uid        string
	version    string // in which it was read
	generation int64
	created    time.Time
	status     writtenStatus // as it was read

	resourceVersion string

	clusterName   string
	clusterDomain string
	secret        string        // name of a Secret in the Link's namespace
	slicesEnabled bool          // EndpointSlices may be written into the cluster
	slicesUnclear bool          // whether they may cannot be read: what was in force stays
	misread       string        // annotations that are not understood, for people; empty for none
	refusal       problem.Class // reason of Accepted if the Link names no cluster that can be linked; else empty
	refused       string        // why, for people
	kept          string        // the cluster that a refused Link links because it did so before; empty for none

	traffic  policy.Link // what can be read of what it asks for
	unread   []policy.Problem
	released string // when what was held was released last; empty for never

	mirroring *Mirroring
}

// ReleasedAtKey is the annotation that releases what is held of a cluster. Its value is the time at which it was set,
// in the form of RFC 3339.
const ReleasedAtKey = policy.Prefix + "released-at"

// SlicesKey is the annotation by which a Link lets EndpointSlices be written into its cluster, if it is SlicesEnabled.
const (
	SlicesKey     = view.OptIn
	SlicesEnabled = view.Enabled
)

// annotationKeys are the annotations under our prefix that a Link may have.
var annotationKeys = append([]string{ReleasedAtKey}, view.LinkKeys...)

// newLink reads a Link. One that names no cluster, or the local one, becomes a record that is refused, so that its
// status can report the reason.
func newLink(object any, local string) (*Link, bool) {
	whole, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, false
	}

	link := &Link{
		key:        api.Key{Namespace: whole.GetNamespace(), Name: whole.GetName()},
		uid:        string(whole.GetUID()),
		version:    whole.GroupVersionKind().Version,
		generation: whole.GetGeneration(),
		created:    whole.GetCreationTimestamp().Time,
		status:     readStatus(whole),

		resourceVersion: whole.GetResourceVersion(),

		misread: view.Misread(whole.GetAnnotations(), annotationKeys),
	}

	link.readTraffic(whole.GetAnnotations())
	link.slicesEnabled, link.slicesUnclear = view.OptsIn(whole.GetAnnotations())

	var parsed struct {
		Spec struct {
			TargetClusterName        string `json:"targetClusterName"`
			TargetClusterDomain      string `json:"targetClusterDomain"`
			ClusterCredentialsSecret string `json:"clusterCredentialsSecret"`
		} `json:"spec"`
	}

	b, err := whole.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(b, &parsed)
	}

	link.clusterName = shortened(parsed.Spec.TargetClusterName)
	link.clusterDomain = parsed.Spec.TargetClusterDomain
	link.secret = parsed.Spec.ClusterCredentialsSecret
	switch mistake := invalidName("spec.targetClusterName", link.clusterName); {
	case err != nil:
		link.refusal, link.refused = problem.Invalid, err.Error()
	case mistake != "":
		link.refusal, link.refused = problem.Invalid, mistake
	case link.clusterName == local:
		link.refusal, link.refused = problem.LocalName, localName(local)+
			": choose another spec.targetClusterName, or another -cluster-name for this process"
	}

	link.mirroring = newMirroring(whole, link)
	return link, true
}

// after returns the Link as an edit of one that it replaces. One that is refused links what it has linked before: a
// mistake in a name does not ask for a cluster to be unlinked.
func (l *Link) after(before *Link) *Link {
	if l.refusal == "" || before.refusal != "" && before.kept == "" {
		return l
	}
	next, mirroring := *l, *l.mirroring
	next.clusterName, next.clusterDomain, next.secret = before.clusterName, before.clusterDomain, before.secret
	next.kept = before.clusterName
	next.refused += "; cluster " + next.kept + " stays linked as it was"
	mirroring.Cluster, mirroring.ClusterDomain = before.mirroring.Cluster, before.mirroring.ClusterDomain
	mirroring.Problem, next.mirroring = next.refused, &mirroring
	return &next
}

// differsInStatusAlone reports whether a Link asks for what it asked for before.
func (l *Link) differsInStatusAlone(before *Link) bool {
	asked := *l
	asked.status, asked.resourceVersion = before.status, before.resourceVersion
	return reflect.DeepEqual(&asked, before)
}

// compareLinks orders Links by which of them counts if they name one cluster: the oldest that is not refused.
func compareLinks(a, b *Link) int {
	switch refused := a.refusal != ""; {
	case refused == (b.refusal != ""):
		return compareAge(a.created, b.created, a.key, b.key)
	case refused:
		return 1
	default:
		return -1
	}
}

// readTraffic reads how traffic to the cluster is to be limited. What cannot be read is part of misread.
func (l *Link) readTraffic(annotations map[string]string) {
	l.traffic, l.unread = policy.LinkOf(annotations)
	value, found := annotations[ReleasedAtKey]
	if !found {
		return
	}
	if _, err := time.Parse(time.RFC3339, value); err == nil {
		l.released = value
		return
	}

	p := policy.Problem{Key: ReleasedAtKey, Value: value, Want: "set a time, as 'fingerpost release' does"}
	l.unread = append(l.unread, p)
	if l.misread != "" {
		l.misread += "; "
	}
	l.misread += p.String()
}

// trafficAfter returns what the Link asks for. What cannot be read is as it was before.
func (l *Link) trafficAfter(before policy.Link, releasedBefore string) (asked policy.Link, released string) {
	released = l.released
	if slices.ContainsFunc(l.unread, func(p policy.Problem) bool { return p.Key == ReleasedAtKey }) {
		released = releasedBefore
	}
	return l.traffic.Keeping(before, l.unread), released
}

// readStatus reads a Link's status; a part that cannot be read is empty, and written anew.
func readStatus(u *unstructured.Unstructured) (s writtenStatus) {
	fields, _, _ := unstructured.NestedFieldNoCopy(u.Object, "status")
	status, _ := fields.(map[string]any)
	return readFields(status)
}

func readFields(status map[string]any) (s writtenStatus) {
	if text, err := json.Marshal(status["conditions"]); err == nil {
		_ = json.Unmarshal(text, &s.conditions)
	}
	s.Mirrored, s.Federated = readServices(status["mirrorServices"]), readServices(status["federatedServices"])
	return s
}

func readServices(list any) (all []ServiceStatus) {
	entries, _ := list.([]any)
	for _, e := range entries {
		entry, _ := e.(map[string]any)
		all = append(all, readServiceStatus(entry))
	}
	return all
}

// localName is why the local cluster cannot be linked.
func localName(name string) string {
	return fmt.Sprintf("%q is the name of the local cluster (-cluster-name)", name)
}

// invalidName returns why a name cannot name a cluster; empty if it can. Cluster names are label values, and
// parts of service@cluster in annotations.
func invalidName(field, name string) string {
	if name == "" {
		return field + " is empty: it must name the cluster"
	}
	if problems := validation.IsValidLabelValue(name); len(problems) > 0 {
		return fmt.Sprintf("%s %q is not a valid cluster name: %s", field, name, strings.Join(problems, "; "))
	}
	return ""
}

// shortened returns a name as it is, or a part of one that is too long for a cluster: it is shown, and a label of
// metrics, and still names none.
func shortened(name string) string { return shortenedTo(validation.LabelValueMaxLength, name) }

func shortenedTo(limit int, name string) string {
	if len(name) <= limit {
		return name
	}
	return strings.ToValidUTF8(name[:limit], "") + "…"
}

// A secret is the record of a Secret that holds a kubeconfig. Its size is bounded: users of a namespace may write
// Secrets that no Link names.
type secret struct {
	key           api.Key
	created       time.Time
	clusterName   string // from its label; empty for one that only a Link names
	trustDomain   string
	clusterDomain string
	kubeconfig    []byte
	leftOut       int // bytes of a kubeconfig that is not kept, because it has more than it may
}

func newSecret(object any) (*secret, bool) {
	whole, ok := object.(*corev1.Secret)
	if !ok || whole.Type != SecretType {
		return nil, false
	}

	record := &secret{
		key:           api.Key{Namespace: whole.Namespace, Name: whole.Name},
		created:       whole.CreationTimestamp.Time,
		clusterName:   whole.Labels[ClusterNameLabel],
		trustDomain:   shortenedTo(maxHostName, whole.Annotations[TrustDomainAnnotation]),
		clusterDomain: shortenedTo(maxHostName, whole.Annotations[ClusterDomainAnnotation]),
		kubeconfig:    whole.Data[KubeconfigKey],
	}
	if size := len(record.kubeconfig); size > maxKubeconfig {
		record.kubeconfig, record.leftOut = nil, size
	}
	return record, true
}

func (s *secret) String() string { return "Secret " + s.key.String() }

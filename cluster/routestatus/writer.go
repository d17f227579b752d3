package routestatus

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/apply/status"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cluster/ruleobject"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/facts"
	"github.com/fingerpost/fingerpost/federation/rules"
)

// kinds are those whose status is written. Package ruleset reads the same versions: then one watch serves both.
var kinds = slices.DeleteFunc(slices.Clone(ruleobject.Kinds), func(k ruleobject.Kind) bool {
	return !k.IsRoute() && k.Kind != rules.KindRateLimit && k.Kind != rules.KindEgressNetwork
})

// permission is what writing the status of a kind needs.
func permission(of ruleobject.Kind) apply.Permission {
	resource := of.Resource
	resource.Resource += "/status"
	return apply.Permission{Resource: resource, Verbs: []string{"patch"}}
}

// A Writer writes the status of routes, rate limits and EgressNetworks of the local cluster.
type Writer struct {
	levels  *rules.Levels
	patches *prometheus.CounterVec
}

// New returns a Writer, which writes in the terms of a Campaign what levels have of the cluster: Statuses alone.
func New(levels *rules.Levels) *Writer {
	return &Writer{levels, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fingerpost_status_patches_total",
		Help: "Patches of the status of routes, rate limits and EgressNetworks by this replica, by kind with its " +
			"group, and result: Written, or why not.",
	}, []string{"kind", "result"})}
}

// Collectors returns the Writer's metrics, to be registered.
func (w *Writer) Collectors() []prometheus.Collector { return []prometheus.Collector{w.patches} }

// AddTo adds the tasks of the Writer to a Campaign, one for each kind: what may not be written of one kind keeps no
// other from being written.
func (w *Writer) AddTo(campaign *apply.Campaign) {
	for _, kind := range kinds {
		campaign.Add(linkerd.PolicyLease, apply.Task{
			Name:   "statuses of " + kindText(kind.Kind),
			Wanted: func(s cluster.Spec) bool { return s.Local },
			Needs:  []apply.Permission{permission(kind)},
			Run: func(ctx context.Context, t *apply.Target) error {
				return w.newTerm(t, kind).writer.Run(ctx)
			},
		})
	}
}

// A key is an object whose status is written. Its text names it for people: two kinds are called HTTPRoute.
type key rules.Reference

func (k key) String() string { return fmt.Sprintf("%s %s/%s", kindText(k.Kind), k.Namespace, k.Name) }

func kindText(k rules.Kind) string { return k.String() + "." + k.Group() }

// A term is what writes the status of one kind in one term of the Lease. Its informer needs no watch of its own: that
// of package ruleset fills it. It is there for what others do to a status, which no level shows.
type term struct {
	kind     ruleobject.Kind
	informer *api.Informer[*record]
	wanted   *facts.Part[rules.Reference, *rules.WantedStatus]
	writer   *status.Writer[key, content]
}

// A record is what is kept of an object.
type record struct {
	version              string // of its API
	uid, resourceVersion string
	generation           int64
	shown                content
}

func newRecord(object any) (*record, bool) {
	o, is := object.(*unstructured.Unstructured)
	if !is {
		return nil, false
	}
	fields, _ := o.Object["status"].(map[string]any)
	return &record{
		version: o.GroupVersionKind().Version, uid: string(o.GetUID()), resourceVersion: o.GetResourceVersion(),
		generation: o.GetGeneration(), shown: readBounded(fields),
	}, true
}

func (w *Writer) newTerm(target *apply.Target, kind ruleobject.Kind) *term {
	term := &term{kind: kind, wanted: w.levels.Statuses.In(federation.Cluster(target.Name))}
	read := api.Newest(kind.Resource, kind.Versions, kind.String())
	term.informer = api.NewInformer(target.Conn, read, newRecord, func(k api.Key) {
		term.writer.Enqueue(key{kind.Kind, k.Namespace, k.Name})
	})
	term.informer.Optional()

	term.writer = status.NewWriter(target.Log, status.Config[key, content]{
		Manager: linkerd.PolicyController, Client: target.Dynamic, Merges: true,
		Permissions: target.Permissions, Needs: []apply.Permission{permission(kind)},
		Failures: target.Failures("statuses of " + kindText(kind.Kind)),
		Inputs:   []apply.Input{term.informer}, Of: term.ref, Keys: term.keys, Object: term.object, Read: readBounded,
		Follow: func(k key) apply.Level { return term.wanted.Watch(rules.Reference(k)) },
		Wrote: func(k key, reason string) {
			w.patches.WithLabelValues(kindText(k.Kind), cmp.Or(reason, "Written")).Inc()
		},
		Advice: "newer CRDs may have them",
		Remedy: "install one that has",
	})
	return term
}

func (t *term) ref(k key) status.Ref {
	return status.Ref{
		Resource: t.kind.Resource, Kind: t.kind.String(), Key: api.Key{Namespace: k.Namespace, Name: k.Name},
	}
}

// keys returns those of all objects.
func (t *term) keys() (all []key) {
	for _, k := range t.informer.Keys() {
		all = append(all, key{t.kind.Kind, k.Namespace, k.Name})
	}
	return all
}

// object returns an object as it was read. What it should show is known if it was computed for its generation: if one
// of both is behind, it is about to follow.
func (t *term) object(of key) (status.Object[content], bool) {
	read, found := t.informer.Get(api.Key{Namespace: of.Namespace, Name: of.Name})
	if !found {
		return status.Object[content]{}, false
	}

	return status.Object[content]{
		Version: read.version, UID: read.uid, ResourceVersion: read.resourceVersion, Shown: read.shown,
		Wanted: func() (content, bool) {
			want, found := t.wanted.Get(rules.Reference(of))
			if !found || want.Generation != read.generation {
				return content{}, false
			}
			return plan(of.Kind, read.shown, want, time.Now()), true
		},
	}, true
}

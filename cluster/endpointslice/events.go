package endpointslice

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/federation/watch"
)

const (
	maxNote  = 1024 // bytes of an Event's note, as API servers take it
	maxNamed = 3    // clusters in an Event
)

// serviceEvents records Events about Services of the local cluster: annotations that are not understood or have no
// effect, and policies that name clusters that are not linked. An Event is recorded when that begins or changes, in the
// term of a Lease, and so by one replica.
type serviceEvents struct {
	to events.EventRecorder

	mu       sync.Mutex             // guards all below
	linked   []string               // sorted; nil until it is known which clusters are linked
	naming   map[key]*serviceRecord // whose policies name clusters
	reported map[key]string         // what the last Event about clusters of a Service was
}

func newServiceEvents(to events.EventRecorder) *serviceEvents {
	return &serviceEvents{to: to, naming: map[key]*serviceRecord{}, reported: map[key]string{}}
}

// recordChange records what is new about a Service that was created, and old is nil, changed or deleted, and now is
// nil.
func (e *serviceEvents) recordChange(service key, old, now *serviceRecord) {
	if now != nil && now.misread != "" && (old == nil || old.misread != now.misread) {
		warn(e.to, now, "InvalidAnnotation", now.misread)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if now == nil || len(now.policyClusters) == 0 {
		delete(e.naming, service)
		delete(e.reported, service)
		return
	}
	e.naming[service] = now
	e.warnOfUnknown(now)
}

// followClusters follows which clusters are linked, once that is known.
func (f *federatedSlices) followClusters(ctx context.Context) {
	for {
		membership, changed := f.writer.options.Links.Membership()
		if membership.IsComplete() {
			break
		}
		if !watch.WaitClosed(ctx, changed) {
			return
		}
	}

	for {
		names, changed := f.writer.registry.Names()
		f.events.setLinked(names)
		if !watch.WaitClosed(ctx, changed) {
			return
		}
	}
}

func (e *serviceEvents) setLinked(names []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.linked = names
	for _, s := range e.naming {
		e.warnOfUnknown(s)
	}
}

// warnOfUnknown records which clusters of a policy are not linked, if that was not reported before. It needs e.mu.
func (e *serviceEvents) warnOfUnknown(svc *serviceRecord) {
	if e.linked == nil {
		return
	}
	var unknown []string
	for _, name := range svc.policyClusters {
		if _, linked := slices.BinarySearch(e.linked, name); !linked {
			unknown = append(unknown, name)
		}
	}

	if unknown == nil {
		delete(e.reported, svc.key)
		return
	}
	text := "its policy names clusters that are not linked, which count for nothing: " +
		strings.Join(unknown[:min(len(unknown), maxNamed)], ", ")
	if more := len(unknown) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}

	if e.reported[svc.key] != text {
		e.reported[svc.key] = text
		warn(e.to, svc, "PolicyUnknownCluster", text)
	}
}

// warn records an Event about a Service.
func warn(to events.EventRecorder, s *serviceRecord, reason, text string) {
	service := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: s.uid},
	}
	note := federation.PrintableWithin(text, maxNote)
	to.Eventf(service, nil, corev1.EventTypeWarning, reason, "WriteSlices", "%s", note)
}

package mirror

import (
	"context"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fingerpost/fingerpost/cluster/records"
	"github.com/fingerpost/fingerpost/federation"
)

func remoteRef(home string, k records.Key) federation.Ref {
	return federation.Ref{Cluster: federation.Cluster(home), Service: federation.Service{Namespace: k.Namespace, Name: k.Name}}
}

func (t *term) readinessOf(home string, k records.Key) readiness {
	t.mu.Lock()
	a := t.remoteEndpoints[remoteRef(home, k)]
	t.mu.Unlock()
	if a == nil {
		return readiness{}
	}
	now, _ := a.readiness.Load()
	return now
}

// named returns the Service of a cluster that has an endpoint of a hostname, the first by name.
func (t *term) serviceWithHostname(home, namespace, hostname string) (first string, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range t.hostnames[remoteRef(home, records.Key{Namespace: namespace, Name: hostname})] {
		if first == "" || name < first {
			first = name
		}
	}
	return first, first != ""
}

// index keeps hosts true when other endpoints answer for a Service. It needs t.mu.
func (t *term) indexHostnames(r federation.Ref, old, next readiness) {
	at := func(hostname string) federation.Ref {
		return federation.Ref{Cluster: r.Cluster, Service: federation.Service{Namespace: r.Namespace, Name: hostname}}
	}
	for hostname := range old.hostnames {
		delete(t.hostnames[at(hostname)], r.Name)
		if len(t.hostnames[at(hostname)]) == 0 {
			delete(t.hostnames, at(hostname))
		}
	}
	for hostname := range next.hostnames {
		if t.hostnames[at(hostname)] == nil {
			t.hostnames[at(hostname)] = map[string]bool{}
		}
		t.hostnames[at(hostname)][r.Name] = true
	}
}

// unfollow needs t.mu.
func (t *term) unwatchEndpoints(r federation.Ref) {
	a := t.remoteEndpoints[r]
	a.cancel()
	now, _ := a.readiness.Load()
	t.indexHostnames(r, now, readiness{})
	delete(t.remoteEndpoints, r)
}

// attendTo follows who answers for the remote Services of which k is the mirror, where that matters.
func (t *term) watchEndpoints(w *inputs, k records.Key) {
	for _, l := range w.links {
		base, suffixed := strings.CutSuffix(k.Name, "-"+l.Cluster)
		if l.Cluster == "" || !suffixed {
			continue
		}
		svc, known := w.remote(l.Cluster, records.Key{Namespace: k.Namespace, Name: base})
		if known == unknown {
			continue
		}
		r := remoteRef(l.Cluster, records.Key{Namespace: k.Namespace, Name: base})
		matters := known == present && l.skipReason == "" && l.Selector.Matches(labels.Set(svc.Labels)) && !l.RemoteDiscoverySelector.Matches(labels.Set(svc.Labels))
		t.mu.Lock()
		a, follows := t.remoteEndpoints[r]
		switch {
		case matters && !follows:
			a = &endpointWatch{}
			var ctx context.Context
			ctx, a.cancel = context.WithCancel(t.ctx)
			t.remoteEndpoints[r] = a
			snapshots := t.store.Watch(r)
			snapshot, _ := snapshots.Load()
			a.readiness.Store(newReadiness(snapshot))
			t.indexHostnames(r, readiness{}, newReadiness(snapshot))
			t.mu.Unlock()
			if !t.spawn(func() { t.followEndpoints(ctx, r, a, snapshots, k) }) {
				snapshots.Close()
			}
			continue
		case !matters && follows:
			t.unwatchEndpoints(r)
		}
		t.mu.Unlock()
	}
}

// followAnswers looks at a mirror again when other endpoints answer for its Service.
func (t *term) followEndpoints(ctx context.Context, r federation.Ref, a *endpointWatch, snapshots *federation.Watch, mirror records.Key) {
	defer snapshots.Close()
	for {
		snapshot, changed := snapshots.Load()
		old, _ := a.readiness.Load()
		if next := newReadiness(snapshot); old.known != next.known || old.ready != next.ready || !maps.Equal(old.hostnames, next.hostnames) {
			t.mu.Lock()
			if t.remoteEndpoints[r] != a {
				t.mu.Unlock()
				return // it is followed no more
			}
			a.readiness.Store(next)
			t.indexHostnames(r, old, next)
			t.mu.Unlock()
			t.enqueue(mirror)
			if t.options.Headless {
				for hostname := range next.hostnames {
					t.enqueue(records.Key{Namespace: mirror.Namespace, Name: hostname + "-" + string(r.Cluster)})
				}
				for hostname := range old.hostnames {
					t.enqueue(records.Key{Namespace: mirror.Namespace, Name: hostname + "-" + string(r.Cluster)})
				}
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// answersOf reads who answers from a Snapshot. As long as the Service itself is not in it, nothing is known.
func newReadiness(s *federation.Snapshot) readiness {
	a := readiness{known: s.View != nil && len(s.Unknown()) == 0, hostnames: map[string]bool{}}
	for _, m := range s.Members {
		if m.View == nil {
			continue
		}
		for _, slice := range m.View.Slices {
			for _, e := range slice.Endpoints {
				a.ready = a.ready || e.Ready
				if len(validation.IsDNS1123Label(e.Hostname)) == 0 {
					a.hostnames[e.Hostname] = a.hostnames[e.Hostname] || e.Ready
				}
			}
		}
	}
	return a
}

// children returns the mirrors of the endpoints of a headless one, those that are there and those that should be.
func (t *term) endpointMirrors(k records.Key) (keys []records.Key) {
	now, _ := t.linkSet.Load()
	for _, l := range now.links {
		if base, suffixed := strings.CutSuffix(k.Name, "-"+l.Cluster); suffixed && l.Cluster != "" {
			for hostname := range t.readinessOf(l.Cluster, records.Key{Namespace: k.Namespace, Name: base}).hostnames {
				keys = append(keys, records.Key{Namespace: k.Namespace, Name: hostname + "-" + l.Cluster})
			}
		}
	}
	for _, o := range t.services.Keys() {
		if svc, found := t.services.Get(o); found && o.Namespace == k.Namespace && svc.Labels[headlessLabel] == k.Name {
			keys = append(keys, o)
		}
	}
	return keys
}

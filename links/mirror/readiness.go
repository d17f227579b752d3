package mirror

import (
	"context"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation"
)

func remoteRef(cluster string, k api.Key) federation.Ref {
	return federation.Ref{
		Cluster: federation.Cluster(cluster),
		Service: federation.Service{Namespace: k.Namespace, Name: k.Name},
	}
}

// readinessOf returns what is known of the endpoints of a remote Service; nothing unless they are watched.
func (t *term) readinessOf(cluster string, k api.Key) readiness {
	t.mu.Lock()
	w := t.remoteEndpoints[remoteRef(cluster, k)]
	t.mu.Unlock()
	if w == nil {
		return readiness{}
	}
	now, _ := w.readiness.Load()
	return now
}

// serviceWithHostname returns the Service of a cluster that has an endpoint with a hostname, the first by
// name.
func (t *term) serviceWithHostname(cluster, namespace, hostname string) (first string, found bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range t.hostnames[remoteRef(cluster, api.Key{Namespace: namespace, Name: hostname})] {
		if first == "" || name < first {
			first = name
		}
	}
	return first, first != ""
}

// indexHostnames updates hostnames when the readiness of a Service changes. The caller holds mu.
func (t *term) indexHostnames(r federation.Ref, old, next readiness) {
	indexKey := func(hostname string) federation.Ref {
		return remoteRef(string(r.Cluster), api.Key{Namespace: r.Namespace, Name: hostname})
	}
	for hostname := range old.hostnames {
		k := indexKey(hostname)
		delete(t.hostnames[k], r.Name)
		if len(t.hostnames[k]) == 0 {
			delete(t.hostnames, k)
		}
	}
	for hostname := range next.hostnames {
		k := indexKey(hostname)
		if t.hostnames[k] == nil {
			t.hostnames[k] = map[string]bool{}
		}
		t.hostnames[k][r.Name] = true
	}
}

// unwatchEndpoints ends the watch of a Service's endpoints. The caller holds mu.
func (t *term) unwatchEndpoints(r federation.Ref) {
	w := t.remoteEndpoints[r]
	w.cancel()
	now, _ := w.readiness.Load()
	t.indexHostnames(r, now, readiness{})
	delete(t.remoteEndpoints, r)
}

// watchEndpoints begins or ends to watch the endpoints of the remote Services whose mirror is k: they are
// needed for mirrors through a gateway only.
func (t *term) watchEndpoints(in *inputs, k api.Key) {
	for _, l := range in.links {
		base, suffixed := strings.CutSuffix(k.Name, "-"+l.Cluster)
		if l.Cluster == "" || !suffixed {
			continue
		}
		name := api.Key{Namespace: k.Namespace, Name: base}
		svc, exists := in.remote(l.Cluster, name)
		if exists == unknown {
			continue
		}
		needed := exists == present && l.skipReason == "" && mirrorsThroughGateway(l, svc)
		t.watchEndpointsIf(needed, remoteRef(l.Cluster, name), k)
	}
}

func mirrorsThroughGateway(l *link, svc *remoteService) bool {
	set := labels.Set(svc.Labels)
	return l.Selector.Matches(set) && !l.RemoteDiscoverySelector.Matches(set)
}

func (t *term) watchEndpointsIf(needed bool, r federation.Ref, mirror api.Key) {
	t.mu.Lock()
	_, watched := t.remoteEndpoints[r]
	if watched == needed {
		t.mu.Unlock()
		return
	}
	if watched {
		t.unwatchEndpoints(r)
		t.mu.Unlock()
		return
	}
	w := &endpointWatch{}
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(t.ctx)
	snapshots := t.store.Watch(r)
	snapshot, _ := snapshots.Load()
	first := newReadiness(snapshot)
	w.readiness.Store(first)
	t.remoteEndpoints[r] = w
	t.indexHostnames(r, readiness{}, first)
	t.mu.Unlock()
	if !t.spawn(func() { t.followEndpoints(ctx, r, w, snapshots, mirror) }) {
		snapshots.Close()
	}
}

// followEndpoints enqueues a mirror, and the mirrors of its endpoints, when the readiness of its remote
// Service changes.
func (t *term) followEndpoints(
	ctx context.Context, r federation.Ref, w *endpointWatch, snapshots *federation.Watch, mirror api.Key,
) {
	defer snapshots.Close()
	for {
		snapshot, changed := snapshots.Load()
		old, _ := w.readiness.Load()
		if next := newReadiness(snapshot); !old.equal(next) {
			t.mu.Lock()
			if t.remoteEndpoints[r] != w {
				t.mu.Unlock()
				return // the watch was ended
			}
			w.readiness.Store(next)
			t.indexHostnames(r, old, next)
			t.mu.Unlock()
			t.enqueue(mirror)
			if t.options.Headless {
				t.enqueueHostnames(r, next)
				t.enqueueHostnames(r, old)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (t *term) enqueueHostnames(r federation.Ref, of readiness) {
	for hostname := range of.hostnames {
		t.enqueue(mirrorName(string(r.Cluster), api.Key{Namespace: r.Namespace, Name: hostname}))
	}
}

// newReadiness summarizes a Snapshot. Nothing is known as long as the Service or one of its members is
// unknown.
func newReadiness(s *federation.Snapshot) readiness {
	r := readiness{known: s.View != nil && len(s.Unknown()) == 0, hostnames: map[string]bool{}}
	for _, m := range s.Members {
		if m.View == nil {
			continue
		}
		for _, slice := range m.View.Slices {
			for _, e := range slice.Endpoints {
				r.endpoints, r.ready = true, r.ready || e.Ready
				if len(validation.IsDNS1123Label(e.Hostname)) == 0 {
					r.hostnames[e.Hostname] = r.hostnames[e.Hostname] || e.Ready
				}
			}
		}
	}
	return r
}

func (r readiness) equal(o readiness) bool {
	return r.known == o.known && r.endpoints == o.endpoints && r.ready == o.ready && maps.Equal(r.hostnames, o.hostnames)
}

// endpointMirrors returns the names of the mirrors of a headless mirror's endpoints: those that exist, and
// those that should.
func (t *term) endpointMirrors(k api.Key) (keys []api.Key) {
	now, _ := t.linkSet.Load()
	for _, l := range now.links {
		base, suffixed := strings.CutSuffix(k.Name, "-"+l.Cluster)
		if !suffixed || l.Cluster == "" {
			continue
		}
		name := api.Key{Namespace: k.Namespace, Name: base}
		for hostname := range t.readinessOf(l.Cluster, name).hostnames {
			keys = append(keys, mirrorName(l.Cluster, api.Key{Namespace: k.Namespace, Name: hostname}))
		}
	}
	for _, o := range t.services.Keys() {
		svc, found := t.services.Get(o)
		if found && o.Namespace == k.Namespace && svc.Labels[headlessLabel] == k.Name {
			keys = append(keys, o)
		}
	}
	return keys
}

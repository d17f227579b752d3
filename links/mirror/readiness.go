package mirror

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/federation"
)

// remoteEndpoints is what is known of the endpoints of remote Services, as far as mirrors depend on it. The Loop
// follows the Snapshot of each of them, and enqueues its key when that changes; the readiness is computed when
// the key comes up.
//
// mu is held while a Snapshot is read, so that an older one never replaces a newer one.
type remoteEndpoints struct {
	loop *apply.Loop[queueKey]

	mu sync.Mutex
	of map[string]api.ByNamespace[readiness] // by cluster; of the Services that are followed
}

// readinessOf returns what is known of the endpoints of a remote Service; nothing unless they are followed.
func (e *remoteEndpoints) readinessOf(cluster string, k api.Key) readiness {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.of[cluster].Get(k)
}

// servicesWithHostname returns the Services of a cluster that are followed and have an endpoint with a hostname,
// sorted. It walks over those of the namespace: only headless mirrors need it.
func (e *remoteEndpoints) servicesWithHostname(cluster, namespace, hostname string) (names []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, r := range e.of[cluster][namespace] {
		if _, found := r.hostnames[hostname]; found {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// followIf begins or ends to follow the endpoints of a remote Service.
func (e *remoteEndpoints) followIf(needed bool, key queueKey) {
	e.mu.Lock()
	defer e.mu.Unlock()

	_, followed := e.of[key.cluster][key.Namespace][key.Name]
	switch {
	case followed == needed:
	case needed:
		e.loop.Follow(key, key.ref())
		if e.of == nil {
			e.of = map[string]api.ByNamespace[readiness]{}
		}
		if e.of[key.cluster] == nil {
			e.of[key.cluster] = api.ByNamespace[readiness]{}
		}
		e.of[key.cluster].Put(key.Key, e.readSnapshot(key))
	default:
		e.loop.Unfollow(key)
		e.of[key.cluster].Remove(key.Key)
	}
}

// unfollowUnlinked ends to follow the Services of clusters that are not linked.
func (e *remoteEndpoints) unfollowUnlinked(linked func(cluster string) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for cluster, followed := range e.of {
		if !linked(cluster) {
			for k := range followed.All() {
				e.loop.Unfollow(queueKey{cluster, k})
			}
			delete(e.of, cluster)
		}
	}
}

// update returns what is known of the endpoints of a remote Service now, and what was known before. Both are
// nothing if they are not followed.
func (e *remoteEndpoints) update(k queueKey) (old, now readiness) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old, followed := e.of[k.cluster][k.Namespace][k.Name]
	if !followed {
		return readiness{}, readiness{}
	}
	now = e.readSnapshot(k)
	e.of[k.cluster].Put(k.Key, now)
	return old, now
}

// readSnapshot returns the readiness of a Service that is followed; nothing at the end of the term. The caller
// holds mu.
func (e *remoteEndpoints) readSnapshot(k queueKey) readiness {
	if s := e.loop.Snapshot(k); s != nil {
		return newReadiness(s)
	}
	return readiness{}
}

// followEndpoints begins or ends to follow the endpoints of the remote Services whose mirror is k: they are
// needed for mirrors through a gateway only.
func (t *term) followEndpoints(now *linkSet, k api.Key) {
	for l, base := range now.suffixed(k.Name) {
		name := api.Key{Namespace: k.Namespace, Name: base}
		svc, exists := t.readRemote(l.Cluster, name)
		if exists == unknown {
			continue
		}
		needed := exists == present && l.skipReason == "" && mirrorsThroughGateway(l, svc)
		t.remoteEndpoints.followIf(needed, queueKey{l.Cluster, name})
	}
}

func mirrorsThroughGateway(l *link, svc *remoteService) bool {
	set := labels.Set(svc.Labels)
	return l.Selector.Matches(set) && !l.RemoteDiscoverySelector.Matches(set)
}

// reconcileEndpoints enqueues what a remote Service bears on, if the readiness of its endpoints has changed. Its
// mirror, if that is headless, enqueues those of its endpoints.
func (t *term) reconcileEndpoints(k queueKey) {
	old, now := t.remoteEndpoints.update(k)
	if !old.equal(now) {
		t.enqueueRemote(k.cluster, k.Key)
	}
}

// newReadiness summarizes a Snapshot. Nothing is known as long as the Service or one of its members is
// unknown.
func newReadiness(s *federation.Snapshot) readiness {
	readiness := readiness{known: s.View != nil && len(s.Unknown()) == 0, hostnames: map[string]bool{}}
	for _, m := range s.Members {
		if m.View == nil {
			continue
		}

		readiness.given = true
		for _, slice := range m.View.Slices {
			for _, e := range slice.Endpoints {
				readiness.endpoints, readiness.ready = true, readiness.ready || e.Ready
				if name := e.Hostname(); len(validation.IsDNS1123Label(name)) == 0 {
					readiness.hostnames[name] = readiness.hostnames[name] || e.Ready
				}
			}
		}
	}

	return readiness
}

func (r readiness) equal(o readiness) bool {
	return r.known == o.known && r.given == o.given && r.endpoints == o.endpoints && r.ready == o.ready &&
		maps.Equal(r.hostnames, o.hostnames)
}

// endpointMirrors returns the names of the mirrors of a headless mirror's endpoints: those that exist, those that
// should, and those of which the status of the Link has something.
func (t *term) endpointMirrors(k api.Key) (keys []api.Key) {
	now, _ := t.linkSet.Load()
	for l, base := range now.suffixed(k.Name) {
		name := api.Key{Namespace: k.Namespace, Name: base}
		for hostname := range t.remoteEndpoints.readinessOf(l.Cluster, name).hostnames {
			keys = append(keys, mirrorName(l.Cluster, api.Key{Namespace: k.Namespace, Name: hostname}))
		}
		keys = append(keys, t.results.byHeadless.dependents(name)...)
	}
	return append(keys, t.byParent.dependents(k)...)
}

// headlessMirrors returns the names of the headless mirrors that list a mirror of an endpoint, if k is the name of one.
func (t *term) headlessMirrors(k api.Key) (keys []api.Key) {
	if !t.options.Headless {
		return nil
	}
	now, _ := t.linkSet.Load()
	for l, hostname := range now.suffixed(k.Name) {
		for _, name := range t.remoteEndpoints.servicesWithHostname(l.Cluster, k.Namespace, hostname) {
			keys = append(keys, mirrorName(l.Cluster, api.Key{Namespace: k.Namespace, Name: name}))
		}
	}
	return keys
}

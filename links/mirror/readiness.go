package mirror

import (
	"maps"
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

	mu        sync.Mutex
	of        map[queueKey]readiness       // of the Services that are followed
	hostnames map[queueKey]map[string]bool // names of Services; the key has a hostname as name
}

// readinessOf returns what is known of the endpoints of a remote Service; nothing unless they are followed.
func (e *remoteEndpoints) readinessOf(cluster string, k api.Key) readiness {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.of[queueKey{cluster, k}]
}

// serviceWithHostname returns the Service of a cluster that has an endpoint with a hostname, the first by
// name.
func (e *remoteEndpoints) serviceWithHostname(cluster, namespace, hostname string) (first string, found bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name := range e.hostnames[queueKey{cluster, api.Key{Namespace: namespace, Name: hostname}}] {
		if first == "" || name < first {
			first = name
		}
	}
	return first, first != ""
}

// followIf begins or ends to follow the endpoints of a remote Service.
func (e *remoteEndpoints) followIf(needed bool, k queueKey) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, followed := e.of[k]
	switch {
	case followed == needed:
	case needed:
		e.loop.Follow(k, k.ref())
		e.setReadiness(k, e.readSnapshot(k))
	default:
		e.unfollow(k)
	}
}

// unfollowAll ends to follow the Services that are not wanted.
func (e *remoteEndpoints) unfollowAll(unwanted func(queueKey) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for k := range e.of {
		if unwanted(k) {
			e.unfollow(k)
		}
	}
}

// update returns what is known of the endpoints of a remote Service now, and what was known before. Both are
// nothing if they are not followed.
func (e *remoteEndpoints) update(k queueKey) (old, now readiness) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old, followed := e.of[k]
	if !followed {
		return readiness{}, readiness{}
	}
	now = e.readSnapshot(k)
	if !now.equal(old) {
		e.setReadiness(k, now)
	}
	return old, now
}

// The caller of the following holds mu.

func (e *remoteEndpoints) unfollow(k queueKey) {
	e.loop.Unfollow(k)
	e.setReadiness(k, readiness{})
	delete(e.of, k)
}

// readSnapshot returns the readiness of a Service that is followed; nothing at the end of the term.
func (e *remoteEndpoints) readSnapshot(k queueKey) readiness {
	if s := e.loop.Snapshot(k); s != nil {
		return newReadiness(s)
	}
	return readiness{}
}

func (e *remoteEndpoints) setReadiness(k queueKey, now readiness) {
	if e.of == nil {
		e.of, e.hostnames = map[queueKey]readiness{}, map[queueKey]map[string]bool{}
	}
	at := func(hostname string) queueKey {
		return queueKey{k.cluster, api.Key{Namespace: k.Namespace, Name: hostname}}
	}
	for hostname := range e.of[k].hostnames {
		removeFrom(e.hostnames, at(hostname), k.Name)
	}
	e.of[k] = now
	for hostname := range now.hostnames {
		addTo(e.hostnames, at(hostname), k.Name)
	}
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

// reconcileEndpoints enqueues what a remote Service bears on, and the mirrors of its hostnames that have changed, if
// the readiness of its endpoints has changed, or if it is not given to clients any more.
func (t *term) reconcileEndpoints(k queueKey) {
	old, now := t.remoteEndpoints.update(k)
	if old.equal(now) {
		return
	}
	t.enqueueRemote(k.cluster, k.Key)
	if !t.options.Headless {
		return
	}
	enqueueChanged := func(of, other readiness) {
		for hostname, ready := range of.hostnames {
			if was, had := other.hostnames[hostname]; !had || was != ready || of.known != other.known {
				t.enqueue(mirrorName(k.cluster, api.Key{Namespace: k.Namespace, Name: hostname}))
			}
		}
	}
	enqueueChanged(now, old)
	enqueueChanged(old, now)
}

// newReadiness summarizes a Snapshot. Nothing is known as long as the Service or one of its members is
// unknown.
func newReadiness(s *federation.Snapshot) readiness {
	r := readiness{known: s.View != nil && len(s.Unknown()) == 0, hostnames: map[string]bool{}}
	for _, m := range s.Members {
		if m.View == nil {
			continue
		}
		r.given = true
		for _, slice := range m.View.Slices {
			for _, e := range slice.Endpoints {
				r.endpoints, r.ready = true, r.ready || e.Ready
				if name := e.Hostname(); len(validation.IsDNS1123Label(name)) == 0 {
					r.hostnames[name] = r.hostnames[name] || e.Ready
				}
			}
		}
	}
	return r
}

func (r readiness) equal(o readiness) bool {
	return r.known == o.known && r.given == o.given && r.endpoints == o.endpoints && r.ready == o.ready &&
		maps.Equal(r.hostnames, o.hostnames)
}

// endpointMirrors returns the names of the mirrors of a headless mirror's endpoints: those that exist, and
// those that should.
func (t *term) endpointMirrors(k api.Key) (keys []api.Key) {
	now, _ := t.linkSet.Load()
	for l, base := range now.suffixed(k.Name) {
		name := api.Key{Namespace: k.Namespace, Name: base}
		for hostname := range t.remoteEndpoints.readinessOf(l.Cluster, name).hostnames {
			keys = append(keys, mirrorName(l.Cluster, api.Key{Namespace: k.Namespace, Name: hostname}))
		}
	}
	return append(keys, t.index.ofParent(k)...)
}

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

func ref(home string, k records.Key) federation.Ref {
	return federation.Ref{Cluster: federation.Cluster(home), Service: federation.Service{Namespace: k.Namespace, Name: k.Name}}
}

func (t *term) answers(home string, k records.Key) answers {
	t.mu.Lock()
	a := t.who[ref(home, k)]
	t.mu.Unlock()
	if a == nil {
		return answers{}
	}
	now, _ := a.now.Load()
	return now
}

// named returns the Service of a cluster that has an endpoint of a hostname, the first by name.
func (t *term) named(home, namespace, hostname string) (first string, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range t.hosts[ref(home, records.Key{Namespace: namespace, Name: hostname})] {
		if first == "" || name < first {
			first = name
		}
	}
	return first, first != ""
}

// index keeps hosts true when other endpoints answer for a Service. It needs t.mu.
func (t *term) index(r federation.Ref, old, next answers) {
	at := func(hostname string) federation.Ref {
		return federation.Ref{Cluster: r.Cluster, Service: federation.Service{Namespace: r.Namespace, Name: hostname}}
	}
	for hostname := range old.hosts {
		delete(t.hosts[at(hostname)], r.Name)
		if len(t.hosts[at(hostname)]) == 0 {
			delete(t.hosts, at(hostname))
		}
	}
	for hostname := range next.hosts {
		if t.hosts[at(hostname)] == nil {
			t.hosts[at(hostname)] = map[string]bool{}
		}
		t.hosts[at(hostname)][r.Name] = true
	}
}

// unfollow needs t.mu.
func (t *term) unfollow(r federation.Ref) {
	a := t.who[r]
	a.cancel()
	now, _ := a.now.Load()
	t.index(r, now, answers{})
	delete(t.who, r)
}

// attendTo follows who answers for the remote Services of which k is the mirror, where that matters.
func (t *term) attendTo(w *world, k records.Key) {
	for _, l := range w.links {
		base, suffixed := strings.CutSuffix(k.Name, "-"+l.Cluster)
		if l.Cluster == "" || !suffixed {
			continue
		}
		svc, known := w.remote(l.Cluster, records.Key{Namespace: k.Namespace, Name: base})
		if known == unknown {
			continue
		}
		r := ref(l.Cluster, records.Key{Namespace: k.Namespace, Name: base})
		matters := known == present && l.left == "" && l.ByGateway.Matches(labels.Set(svc.Labels)) && !l.Directly.Matches(labels.Set(svc.Labels))
		t.mu.Lock()
		a, follows := t.who[r]
		switch {
		case matters && !follows:
			a = &attendees{}
			var ctx context.Context
			ctx, a.cancel = context.WithCancel(t.ctx)
			t.who[r] = a
			snapshots := t.store.Watch(r)
			snapshot, _ := snapshots.Load()
			a.now.Store(answersOf(snapshot))
			t.index(r, answers{}, answersOf(snapshot))
			t.mu.Unlock()
			if !t.start(func() { t.followAnswers(ctx, r, a, snapshots, k) }) {
				snapshots.Close()
			}
			continue
		case !matters && follows:
			t.unfollow(r)
		}
		t.mu.Unlock()
	}
}

// followAnswers looks at a mirror again when other endpoints answer for its Service.
func (t *term) followAnswers(ctx context.Context, r federation.Ref, a *attendees, snapshots *federation.Watch, mirror records.Key) {
	defer snapshots.Close()
	for {
		snapshot, changed := snapshots.Load()
		old, _ := a.now.Load()
		if next := answersOf(snapshot); old.known != next.known || old.ready != next.ready || !maps.Equal(old.hosts, next.hosts) {
			t.mu.Lock()
			if t.who[r] != a {
				t.mu.Unlock()
				return // it is followed no more
			}
			a.now.Store(next)
			t.index(r, old, next)
			t.mu.Unlock()
			t.enqueue(mirror)
			if t.options.Headless {
				for hostname := range next.hosts {
					t.enqueue(records.Key{Namespace: mirror.Namespace, Name: hostname + "-" + string(r.Cluster)})
				}
				for hostname := range old.hosts {
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
func answersOf(s *federation.Snapshot) answers {
	a := answers{known: s.View != nil && len(s.Unknown()) == 0, hosts: map[string]bool{}}
	for _, m := range s.Members {
		if m.View == nil {
			continue
		}
		for _, slice := range m.View.Slices {
			for _, e := range slice.Endpoints {
				a.ready = a.ready || e.Ready
				if len(validation.IsDNS1123Label(e.Hostname)) == 0 {
					a.hosts[e.Hostname] = a.hosts[e.Hostname] || e.Ready
				}
			}
		}
	}
	return a
}

// children returns the mirrors of the endpoints of a headless one, those that are there and those that should be.
func (t *term) children(k records.Key) (keys []records.Key) {
	now, _ := t.linked.Load()
	for _, l := range now.links {
		if base, suffixed := strings.CutSuffix(k.Name, "-"+l.Cluster); suffixed && l.Cluster != "" {
			for hostname := range t.answers(l.Cluster, records.Key{Namespace: k.Namespace, Name: base}).hosts {
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

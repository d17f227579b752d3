package mirror

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/links"
)

// BenchmarkPlan plans each of 1,000 mirrors of 200 linked clusters, as when its key comes up and nothing has changed.
func BenchmarkPlan(b *testing.B) {
	const clusters, services = 200, 5
	t := newTerm(&Mirror{log: logr.Discard(), links: &links.Reconciler{}}, nil, nil, nil)
	var all []*link
	var here []any
	var keys []api.Key
	for i := range clusters {
		name := fmt.Sprint("east-", i)
		all = append(all, linkFor(name, 1))
		all[i].Created = all[i].Created.Add(time.Duration(i) * time.Hour)
		r := &remoteCluster{term: t, name: name}
		r.Store = api.NewStore(newRemoteService, func(api.Key) {})
		var there []any
		for j := range services {
			svc := service(fmt.Sprint("web-", j), direct)
			there = append(there, svc.DeepCopy())
			mirror := scene{
				links:  all[i : i+1],
				remote: map[string][]*corev1.Service{name: {svc}},
			}.plan(svc.Name + "-" + name).service
			keys = append(keys, api.Key{Namespace: mirror.Namespace, Name: mirror.Name})
			here = append(here, mirror)
		}
		r.Replace(there)
		t.remotes[name] = r
	}
	t.linkSet.Store(&linkSet{links: all, complete: true})
	t.services.Replace(here)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		k := keys[i%len(keys)]
		now, _ := t.linkSet.Load()
		if p := readInputs(t, now, &t.options, k).Plan(); p.service == nil {
			b.Fatalf("nothing is planned for %s", k)
		}
	}
}

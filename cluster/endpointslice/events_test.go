package endpointslice

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/events"
)

// An Event about clusters that a policy names is recorded when it is known which are linked, when the policy or what is
// linked changes, and not for anything else.
func TestUnknownClusters(t *testing.T) {
	recorder := events.NewFakeRecorder(10)
	e := newServiceEvents(recorder)
	record := func(name string, clusters ...string) *serviceRecord {
		return &serviceRecord{key: key{Namespace: "shop", Name: name}, policyClusters: clusters}
	}
	var last *serviceRecord
	change := func(now *serviceRecord) {
		e.recordChange(key{Namespace: "shop", Name: "all"}, last, now)
		last = now
	}
	const text = "Warning PolicyUnknownCluster its policy names clusters that are not linked, which count for nothing: "
	var many []string
	for i := range 20 {
		many = append(many, fmt.Sprintf("%02d%s", i, strings.Repeat("x", 251)))
	}
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"before links are listed", func() { change(record("all", "east", "north")) }, nil},
		{"once they are", func() { e.setLinked([]string{"east", "local"}) }, []string{text + "north"}},
		{"the same", func() { e.setLinked([]string{"east", "local", "south"}) }, nil},
		{"another change of the Service", func() { change(record("all", "east", "north")) }, nil},
		{"it is unlinked", func() { e.setLinked([]string{"local"}) }, []string{text + "east, north"}},
		{"all are linked", func() { e.setLinked([]string{"east", "local", "north"}) }, nil},
		{"and unlinked again", func() { e.setLinked([]string{"local", "north"}) }, []string{text + "east"}},
		{"corrected", func() { change(record("all", "north")) }, nil},
		{
			"many", func() { change(record("all", many...)) },
			[]string{text + strings.Join(many[:3], ", ") + " and 17 more"},
		},
		{"no policy", func() { change(record("all")) }, nil},
		{"deleted", func() { change(nil) }, nil},
		{"forgotten", func() { e.setLinked(nil) }, nil},
		{
			"misread", func() { change(&serviceRecord{misread: strings.Repeat("y", 2000)}) },
			[]string{"Warning InvalidAnnotation " + strings.Repeat("y", maxNote-3) + "..."},
		},
	} {
		step.do()
		var got []string
		for len(recorder.Events) > 0 {
			got = append(got, <-recorder.Events)
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("%s: %s", step.name, diff)
		}
	}
	if len(e.naming)+len(e.reported) > 0 {
		t.Errorf("kept: %v %v", e.naming, e.reported)
	}
}

package mirror_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fingerpost/fingerpost/links/mirror"
)

// written returns how many Services and Endpoints were created, changed and deleted here, or were to be.
func (f *fleet) written() (n int) {
	for _, resource := range []string{"services", "endpoints"} {
		for _, verb := range []string{"create", "patch", "update", "delete"} {
			n += f.home.Requests(verb, resource)
		}
	}
	return n
}

// A linked cluster that changes what it exports as fast as it can has 50 writes here in 20 s, and what it wants in the
// end is reached. Its Link reports that it is paced, and the Services of another cluster do not wait for its own.
func TestPace(t *testing.T) {
	const services = 500
	label := func(f *fleet, i int, marks string) {
		f.network.Server("east").ApplyYAML(fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: s%d, `+
			`namespace: shop, labels: {%s}}, spec: {ports: [{name: http, port: 80, protocol: TCP}]}}`, i, marks))
	}
	for name, c := range map[string]struct {
		marks   string // of what is mirrored
		toggled int    // Services
		changes int    // in 20 s
	}{
		"mirrors of 500 Services through the gateway": {exported, services, 2000},
		"federated Services":                          {joins, services, 1000},
		"one Service":                                 {exported, 1, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, mirror.Options{MaxServices: 1000}, func(f *fleet) {
				for i := range services {
					label(f, i, c.marks)
				}
				f.run()
				f.pass(time.Second)
				if got := len(strings.Fields(f.mirrors())); got != services {
					t.Fatalf("%d of %d Services exist here after 4 s", got, services)
				}
				f.mirroring("east", "True Mirroring")
				before := f.written()
				for i := range c.changes {
					marks := c.marks
					if i/c.toggled%2 == 0 {
						marks = "app: web"
					}
					label(f, i%c.toggled, marks)
					f.pass(20 * time.Second / time.Duration(c.changes))
				}
				if n := f.written() - before; n > 50 {
					t.Errorf("%d writes in 20 s", n)
				} else {
					t.Logf("%d writes", n)
				}
				f.mirroring("east", "False Paced: the cluster has had more Services created and deleted here")
				f.apply("west", "other", direct, 80)
				f.pass(3 * time.Second)
				f.mirroring("west", "True Mirroring")
				if !strings.Contains(f.mirrors(), "other-west") {
					t.Error("another cluster's Service waits")
				}
				for i := range services { // what is wanted in the end
					marks := "app: web"
					if i < 10 {
						marks = c.marks
					}
					label(f, i, marks)
				}
				f.pass(services * 4 * time.Second) // at 18 deletions a minute
				if got := len(strings.Fields(f.mirrors())); got != 11 {
					t.Errorf("%d Services exist in the end", got)
				}
				f.pass(2 * time.Minute)
				f.mirroring("east", "True Mirroring")
			})
		})
	}
}

// A Service whose labels and endpoints change as fast as they can is written about each two seconds, and as it is in
// the end. Another change of it is written at once after a while.
func TestPaceOfOneName(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		f.run()
		f.apply("east", "web", exported, 80)
		f.pass(3 * time.Second)
		before := f.written()
		for i := range 1000 {
			f.apply("east", "web", exported+fmt.Sprintf(", change: n%d", i), 80+i%2)
			f.pass(20 * time.Millisecond)
		}
		if n := f.written() - before; n > 50 {
			t.Errorf("%d writes in 20 s", n)
		}
		f.pass(5 * time.Second)
		f.wants("web-east:81")
		if got := f.home.Get("services", "shop", "web-east").GetLabels()["change"]; got != "n999" {
			t.Errorf("the last change is %s", got)
		}
		f.pass(time.Minute)
		f.apply("east", "web", exported, 90)
		f.pass(500 * time.Millisecond)
		f.wants("web-east:90")
	})
}

// What is deleted with its Link is deleted at once, and so is what a thousand Services are mirrored as.
func TestUnlinkingIsNotPaced(t *testing.T) {
	inFleet(t, mirror.Options{MaxServices: 1000}, func(f *fleet) {
		const services = 300
		for i := range services {
			f.network.Server("east").ApplyYAML(fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: s%d, `+
				`namespace: shop, labels: {%s}}, spec: {ports: [{name: http, port: 80, protocol: TCP}]}}`, i, direct))
		}
		f.run()
		f.pass(time.Second)
		if got := len(strings.Fields(f.mirrors())); got != services {
			t.Fatalf("%d of %d Services exist here", got, services)
		}
		f.home.Delete("Link", "mc", "east")
		f.pass(10 * time.Second)
		f.wants("")
	})
}

// A mirror is deleted once, however often its name is looked at before the watch has it gone, and counts once for its
// cluster. One of the same name that comes after it is another one.
func TestPaceCountsDeletionsOnce(t *testing.T) {
	inFleet(t, mirror.Options{}, func(f *fleet) {
		f.run()
		f.apply("east", "web", exported, 80)
		f.pass(3 * time.Second)

		f.home.SilenceWatches("services", true)
		for i := range 20 {
			f.apply("east", "web", fmt.Sprintf("change: n%d", i), 80)
			f.pass(time.Second)
		}
		if n := f.home.Requests("delete", "services"); n != 1 {
			t.Errorf("%d Services were deleted", n)
		}
		f.mirroring("east", "True Mirroring")

		f.home.SilenceWatches("services", false)
		f.home.Expire()
		f.pass(10 * time.Second)
		f.apply("east", "web", exported, 80)
		f.pass(3 * time.Second)
		f.wants("web-east:80")
		f.apply("east", "web", "app: web", 80)
		f.pass(3 * time.Second)
		f.wants("")
	})
}

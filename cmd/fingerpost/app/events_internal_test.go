package app

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
)

// Of one reason about one object there is an Event in ten minutes; of another one, or about another object, at once.
func TestOneEventInTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := events.NewFakeRecorder(100)
		r, err := limited(fake, logr.Discard(), nil)
		if err != nil {
			t.Fatal(err)
		}
		record := func(name, reason string) {
			service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
			r.Eventf(service, nil, corev1.EventTypeWarning, reason, "Test", "it is so")
		}
		wants := func(when string, want int) {
			t.Helper()
			if got := len(fake.Events); got != want {
				t.Errorf("%s: %d Events, want %d", when, got, want)
			}
		}

		for range 3 {
			record("web", "A")
			record("web", "B")
			record("api", "A")
		}
		wants("at once", 3)
		timer := time.NewTimer(eventInterval - time.Second)
		<-timer.C
		record("web", "A")
		wants("just before", 3)
		timer.Reset(time.Second)
		<-timer.C
		record("web", "A")
		record("web", "A")
		wants("ten minutes later", 4)
	})
}

package app

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes/scheme"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/reference"

	"github.com/fingerpost/fingerpost/cluster/api"
)

const (
	// An Event of an object and reason is followed by another one after eventPause. For up to twelve minutes
	// client-go would make a series of both and patch the first, which needs a right of its own.
	eventPause = 15 * time.Minute

	maxRecentEvents = 10_000 // objects and reasons; beyond that the oldest is forgotten
)

// recorder sends Events of all parts of the process to the local cluster, one of an object and reason in eventPause.
// What happens in between is in the log and in the history.
type recorder struct {
	events.EventRecorder
	log         logr.Logger
	broadcaster events.EventBroadcaster

	mu     sync.Mutex
	recent *cache.LRUExpireCache // of eventKey
}

// An eventKey is what an Event is about, and why.
type eventKey struct {
	object corev1.ObjectReference
	reason string
}

func newRecorder(log logr.Logger, localConn *api.Connection) (*recorder, error) {
	client, err := eventsclient.NewForConfigAndClient(localConn.Config, localConn.HTTPClient)
	if err != nil {
		return nil, err
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client})
	return &recorder{
		EventRecorder: broadcaster.NewRecorder(scheme.Scheme, "fingerpost"), log: log.WithName("events"),
		broadcaster: broadcaster, recent: cache.NewLRUExpireCache(maxRecentEvents),
	}, nil
}

// Eventf records an Event, unless there was one of the object and reason a short time ago.
func (r *recorder) Eventf(object, related runtime.Object, kind, reason, action, note string, args ...any) {
	r.record(nil, object, related, kind, reason, action, note, args...)
}

// record records an Event as Eventf does, and within a limit unless that is nil. It reports whether it has.
func (r *recorder) record(
	limit *rate.Limiter, object, related runtime.Object, kind, reason, action, note string, args ...any,
) bool {
	of, err := reference.GetReference(scheme.Scheme, object)
	if err != nil {
		r.log.Error(err, "An object has no Event: it cannot be referred to", "reason", reason)
		return false
	}

	key := eventKey{*of, reason}
	key.object.ResourceVersion = ""
	if !r.isDue(key, limit) {
		return false
	}
	r.EventRecorder.Eventf(of, related, kind, reason, action, note, args...)
	return true
}

// isDue reports whether there was no Event of the key for eventPause, and the limit permits one. Then it takes it that
// there is one now.
func (r *recorder) isDue(key eventKey, limit *rate.Limiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, isRecent := r.recent.Get(key); isRecent || limit != nil && !limit.Allow() {
		return false
	}
	r.recent.Add(key, nil, eventPause)
	return true
}

// start sends Events until stop is called, which is when every Part that sends any has ended.
func (r *recorder) start(ctx context.Context) (stop func(), err error) {
	ctx, cancel := context.WithCancel(logr.NewContext(context.WithoutCancel(ctx), r.log))
	_, err = r.broadcaster.StartLogging(r.log.V(1))
	if err == nil {
		err = r.broadcaster.StartRecordingToSinkWithContext(ctx)
	}

	stop = func() {
		r.broadcaster.Shutdown() // ends what StartLogging has started, too
		cancel()
	}

	if err != nil {
		stop()
		return nil, fmt.Errorf("send Events: %w", err)
	}
	return stop, nil
}

package app

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/tools/events"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// An Event about an object stands for all of its reason in the next eventInterval: what goes to and fro is in
// conditions and in what has changed, and not in an Event each time.
const (
	eventInterval = 10 * time.Minute
	maxReasons    = 10_000 // of all objects that are remembered; beyond it the oldest are not
)

// recorder sends Events of all parts of the process to the local cluster.
type recorder struct {
	events.EventRecorder
	log         logr.Logger
	broadcaster events.EventBroadcaster

	mu   sync.Mutex // guards sent
	sent *simplelru.LRU[eventReason, time.Time]
}

// An eventReason is what Events have in common that are one.
type eventReason struct{ kind, namespace, name, reason string }

func newRecorder(log logr.Logger, localConn *api.Connection) (*recorder, error) {
	client, err := eventsclient.NewForConfigAndClient(localConn.Config, localConn.HTTPClient)
	if err != nil {
		return nil, err
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client})
	return limited(broadcaster.NewRecorder(scheme.Scheme, "fingerpost"), log.WithName("events"), broadcaster)
}

func limited(to events.EventRecorder, log logr.Logger, broadcaster events.EventBroadcaster) (*recorder, error) {
	sent, err := simplelru.NewLRU[eventReason, time.Time](maxReasons, nil)
	return &recorder{EventRecorder: to, log: log, broadcaster: broadcaster, sent: sent}, err
}

// Eventf records an Event, unless one of its reason about the object was recorded just before.
func (r *recorder) Eventf(
	regarding, related runtime.Object, eventtype, reason, action, note string, args ...any,
) {
	if r.isDue(regarding, reason) {
		r.EventRecorder.Eventf(regarding, related, eventtype, reason, action, note, args...)
	}
}

func (r *recorder) isDue(regarding runtime.Object, reason string) bool {
	object, err := meta.Accessor(regarding)
	if err != nil {
		return true
	}
	kind := regarding.GetObjectKind().GroupVersionKind().Kind
	key := eventReason{kind, object.GetNamespace(), object.GetName(), reason}
	now := time.Now()

	r.mu.Lock()
	defer r.mu.Unlock()
	if last, found := r.sent.Get(key); found && now.Sub(last) < eventInterval {
		return false
	}
	r.sent.Add(key, now)
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

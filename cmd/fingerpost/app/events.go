package app

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes/scheme"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/tools/events"

	"github.com/fingerpost/fingerpost/cluster/api"
)

// recorder sends Events of all parts of the process to the local cluster.
type recorder struct {
	events.EventRecorder
	log         logr.Logger
	broadcaster events.EventBroadcaster
}

func newRecorder(log logr.Logger, localConn *api.Connection) (*recorder, error) {
	client, err := eventsclient.NewForConfigAndClient(localConn.Config, localConn.HTTPClient)
	if err != nil {
		return nil, err
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client})
	return &recorder{broadcaster.NewRecorder(scheme.Scheme, "fingerpost"), log.WithName("events"), broadcaster}, nil
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

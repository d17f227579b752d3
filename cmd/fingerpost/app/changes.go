package app

import (
	"context"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/changes"
	"github.com/fingerpost/fingerpost/cluster/problem"
)

// uidTimeout is how long an Event waits for the UID of its Service.
const uidTimeout = 2 * time.Second

// addChanges adds what follows what changes.
func (a *App) addChanges(log logr.Logger, options Options, localConn *api.Connection) error {
	services, err := corev1client.NewForConfigAndClient(localConn.Config, localConn.HTTPClient)
	if err != nil {
		return err
	}

	follower := changes.NewFollower(a.Changes, changes.Sources{
		Replica: options.Replica, Local: options.ClusterName,
		Statuses: a.Registry.Statuses, Store: a.Store,
		Kinds: func(name string) []cluster.KindStatus {
			kinds, _ := a.Registry.Inspect(name)
			return kinds
		},
		Links: func() (all []problem.Problem) {
			for _, link := range a.Links.Links() {
				all = append(all, link.Problems()...)
			}
			return all
		},
		Complete: func() bool {
			membership, _ := a.Links.Membership()
			return membership.IsComplete()
		},
		Report: func(ctx context.Context, change changes.Change) {
			a.recordMember(ctx, log, services, change)
		},
	})

	a.Add(Part{Name: "changes", Run: follower.Run})
	return nil
}

// recordMember records an Event on a Service of the local cluster, of which a member came or went. kubectl finds the
// Events of an object by its UID, which is read for it.
func (a *App) recordMember(
	ctx context.Context, log logr.Logger, services corev1client.ServicesGetter, change changes.Change,
) {
	namespace, name, _ := strings.Cut(change.Service, "/")
	ctx, cancel := context.WithTimeout(ctx, uidTimeout)
	defer cancel()
	service, err := services.Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil { // it may have been deleted
		log.V(1).Info("A Service cannot be read, so its Event has no UID", "service", change.Service, "error", err)
		service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	service.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	reason := "Member" + string(change.What)
	a.events.Eventf(service, nil, corev1.EventTypeNormal, reason, change.Cluster, "%s", change.Text)
}

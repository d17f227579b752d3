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
	"github.com/fingerpost/fingerpost/federation"
)

// uidTimeout is how long an Event waits for the UID of its Service.
const uidTimeout = 2 * time.Second

const maxNote = 1024 // bytes of an Event's note, as API servers take it

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
		Report: func(ctx context.Context, service string, what changes.What, text string) {
			a.recordMembers(ctx, log, services, service, what, text)
		},
	})

	a.Add(Part{Name: "changes", Run: follower.Run})
	return nil
}

// recordMembers records an Event on a Service of the local cluster, of which members came or went. kubectl finds the
// Events of an object by its UID, which is read for it.
func (a *App) recordMembers(
	ctx context.Context, log logr.Logger, services corev1client.ServicesGetter,
	of string, what changes.What, text string,
) {
	namespace, name, _ := strings.Cut(of, "/")
	ctx, cancel := context.WithTimeout(ctx, uidTimeout)
	defer cancel()
	service, err := services.Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil { // it may have been deleted
		log.V(1).Info("A Service cannot be read, so its Event has no UID", "service", of, "error", err)
		service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}

	service.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	note := federation.PrintableWithin(text, maxNote)
	a.events.Eventf(service, nil, corev1.EventTypeNormal, "Member"+string(what), "FollowMembers", "%s", note)
}

package endpointslice

import (
	"context"
	"errors"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fingerpost/fingerpost/cluster/apply"
	"github.com/fingerpost/fingerpost/cluster/apply/object"
	"github.com/fingerpost/fingerpost/cluster/view"
)

// deleteOwn deletes all slices that this installation wrote into a cluster.
func (w *Writer) deleteOwn(term context.Context, target *apply.Target) error {
	own := labels.Set{
		discoveryv1.LabelManagedBy: view.ManagedBy, installationLabel: target.Installation(),
	}
	client := target.Client.DiscoveryV1()
	list, err := client.EndpointSlices(metav1.NamespaceAll).List(term, metav1.ListOptions{LabelSelector: own.String()})
	if err != nil {
		return err
	}

	var failed []error
	for i := range list.Items {
		if term.Err() != nil {
			return term.Err()
		}
		es := &list.Items[i]
		if err := object.Delete(term, client.EndpointSlices(es.Namespace), es); err != nil {
			failed = append(failed, err)
			continue
		}
		w.count(w.metrics.writes, target.Name, view.ManagedBy, "delete")
	}

	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	target.Log.Info("Deleted all slices written into the cluster: none are wanted any more", "slices", len(list.Items))
	return nil
}

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WaitEndpoints waits until the EndpointSlices of a Service have exactly n
// ready addresses, and returns the slices. It gives up after a minute, or when
// ctx ends, and then returns what it saw, and which components have ended.
func (c *Cluster) WaitEndpoints(ctx context.Context, namespace, service string,
	n int,
) ([]discoveryv1.EndpointSlice, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	var found []discoveryv1.EndpointSlice
	err := until(ctx, func(ctx context.Context) error {
		list, err := c.client().typed.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=" + service,
		})
		if err != nil {
			return err
		}
		found = list.Items
		ready, other := addresses(found)
		if len(ready) != n {
			return fmt.Errorf("%d EndpointSlices with %d ready addresses [%s] and %d others [%s]",
				len(found), len(ready), strings.Join(ready, " "), len(other), strings.Join(other, " "))
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("wait for %d ready addresses of Service %s/%s of cluster %q: %w", n, namespace,
			service, c.name, err)
		return nil, errors.Join(err, c.ended())
	}
	return found, nil
}

// addresses returns the distinct addresses, sorted: those that are ready, and
// those that are not.
func addresses(list []discoveryv1.EndpointSlice) (ready, other []string) {
	for _, slice := range list {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				ready = append(ready, endpoint.Addresses...)
			} else {
				other = append(other, endpoint.Addresses...)
			}
		}
	}
	slices.Sort(ready)
	slices.Sort(other)
	return slices.Compact(ready), slices.Compact(other)
}

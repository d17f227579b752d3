package check

import (
	"cmp"
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
)

// wayChecks check that clients reach the gRPC server of each replica: a replica that does not answer them is ready all
// the same, and answers on its debug port. Each way is a check of its own.
func (e *environment) wayChecks(known *knownReplicas) (checks []check) {
	authority := known.someAuthority()
	for _, way := range known.ways {
		ask := func(ctx context.Context) error {
			err := way.Ask(ctx, authority)
			if reason, is := errors.AsType[cli.NotTried](err); is {
				return skipped{string(reason)}
			}
			return err
		}
		answers := answerProxies.decided(way.Name+" answers proxies", ask)
		answers.takes = cli.AnswerTimeout
		checks = append(checks, answers)
	}

	for _, replica := range known.opened {
		pod, number, err := replica.GRPCPort()
		if pod == nil || err != nil {
			continue // what is wrong with its port is the error of the way to it
		}
		leads := func(ctx context.Context) error { return e.checkServiceOf(ctx, pod, number) }
		checks = append(checks,
			answerProxies.retried("a Service leads to "+replica.Name, leads))
	}
	return checks
}

// someAuthority returns the authority of a Service that every cluster has.
func (k *knownReplicas) someAuthority() string {
	domain := ""
	for _, r := range k.local() {
		domain = cmp.Or(domain, r.Page.ClusterDomain)
	}
	return "kubernetes.default.svc." + cmp.Or(domain, "cluster.local") + ":443"
}

// checkServiceOf reports a Pod that is an endpoint of no Service: forwarded ports lead to it, and clients do not.
func (e *environment) checkServiceOf(ctx context.Context, pod *corev1.Pod, number uint16) error {
	list, err := e.client.DiscoveryV1().EndpointSlices(pod.Namespace).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return skipped{"you may not list EndpointSlices in namespace " + pod.Namespace}
	case err != nil:
		return err
	}

	isPort := func(p discoveryv1.EndpointPort) bool { return p.Port != nil && *p.Port == int32(number) }
	isPod := func(e discoveryv1.Endpoint) bool { return slices.Contains(e.Addresses, pod.Status.PodIP) }
	for _, s := range list.Items {
		if slices.ContainsFunc(s.Ports, isPort) && slices.ContainsFunc(s.Endpoints, isPod) {
			return nil
		}
	}
	return warningf("no Service in namespace %s has port %d of this Pod as an endpoint, so that proxies do not find "+
		"it: compare the selector and the targetPort of the Service with the Pod", pod.Namespace, number)
}

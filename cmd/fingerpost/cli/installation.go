package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// maxDeployments bounds how many Deployments with the labels of Fingerpost are looked at.
const maxDeployments = 20

// An installation is what the Deployment of Fingerpost in a cluster passes to `fingerpost serve`. What it passes not
// is empty.
type installation struct {
	deployment                         string // namespace/name
	linkNamespace, controllerNamespace string
	trustDomain, clusterDomain         string
}

// findInstallation returns the installation in a namespace of a cluster, or in any; nil if there is none.
func findInstallation(ctx context.Context, client kubernetes.Interface, namespace string) (*installation, error) {
	for _, selector := range podSelectors {
		list, err := client.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{
			LabelSelector: selector, Limit: maxDeployments,
		})
		if err != nil {
			return nil, fmt.Errorf("list Deployments: %w", err)
		}

		var found *installation
		for i := range list.Items {
			one, err := newInstallation(&list.Items[i])
			switch {
			case err != nil:
				return nil, err
			case one == nil:
				continue
			case found != nil && one.linkNamespace != found.linkNamespace:
				return nil, fmt.Errorf("two Deployments, %s and %s, read Links in different namespaces",
					found.deployment, one.deployment)
			}
			found = one
		}

		if found != nil {
			return found, nil
		}
	}
	return nil, nil
}

// ControllerNamespace returns the namespace of the mesh's control plane, as the installation has it that is in a
// namespace of a cluster, or in any; linkerd if that cannot be found out.
func ControllerNamespace(ctx context.Context, client kubernetes.Interface, namespace string) string {
	installed, _ := findInstallation(ctx, client, namespace) // not everybody may list Deployments
	if installed == nil || installed.controllerNamespace == "" {
		return linkerdPreset
	}
	return installed.controllerNamespace
}

// newInstallation reads the flags of a Deployment; nil if it does not run Fingerpost.
func newInstallation(deployment *appsv1.Deployment) (*installation, error) {
	name := deployment.Namespace + "/" + deployment.Name

	for i := range deployment.Spec.Template.Spec.Containers {
		args := argumentsOf(&deployment.Spec.Template.Spec.Containers[i])
		if !serves(args) {
			continue
		}

		one := &installation{deployment: name}
		one.linkNamespace, _ = flagIn(args, "link-namespace")
		one.controllerNamespace, _ = flagIn(args, "controller-namespace")
		one.trustDomain, _ = flagIn(args, "identity-trust-domain")
		one.clusterDomain, _ = flagIn(args, "cluster-domain")

		for _, namespace := range []string{one.linkNamespace, one.controllerNamespace} {
			if namespace != "" && len(validation.ValidateNamespaceName(namespace, false)) > 0 {
				return nil, fmt.Errorf("an argument of Deployment %s has %q, which names no namespace", name, namespace)
			}
		}
		return one, nil
	}
	return nil, nil
}

// argumentsOf returns the whole command line of a container.
func argumentsOf(container *corev1.Container) []string {
	return append(slices.Clone(container.Command), container.Args...)
}

// serves reports whether a command line is that of a server.
func serves(args []string) bool {
	return slices.Contains(args, "serve") || slices.Contains(args, "destination")
}

// flagIn returns the last value of a flag in arguments.
func flagIn(args []string, flag string) (value string, set bool) {
	for i, arg := range args {
		name, given, inOne := strings.Cut(arg, "=")
		if name != "-"+flag && name != "--"+flag {
			continue
		}
		if !inOne && i+1 < len(args) {
			given = args[i+1]
		}
		value, set = given, true
	}
	return value, set
}

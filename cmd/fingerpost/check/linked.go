package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/links"
)

// minExpiry is how long credentials should still be valid.
const minExpiry = time.Hour

// A linkedCluster is one that Links or labelled Secrets name, and a client with their credentials.
type linkedCluster struct {
	name       string
	links      []unstructured.Unstructured
	unread     []string        // Links that Fingerpost does not read
	secrets    []corev1.Secret // in the order in which they are tried
	secretErrs []error         // of Secrets that cannot be read
	client     kubernetes.Interface
	config     *rest.Config
}

// linkedClusters are linked clusters by name.
type linkedClusters map[string]*linkedCluster

// get returns a cluster, and adds it if it is new.
func (l linkedClusters) get(name string) *linkedCluster {
	if l[name] == nil {
		l[name] = &linkedCluster{name: name}
	}
	return l[name]
}

// listLinkedClusters returns the linked clusters, sorted by name, and an error if it cannot read all of them.
// That your permissions do not suffice is a warning if replicas respond, which have permissions of their own.
func (e *environment) listLinkedClusters(
	ctx context.Context, config *rest.Config, client kubernetes.Interface, linksServed bool, known *knownReplicas,
) ([]*linkedCluster, error) {
	all := linkedClusters{}
	soften := func(err error) error {
		if apierrors.IsForbidden(err) && len(known.pages) > 0 {
			return warning{error: err}
		}
		return err
	}
	labelled := metav1.ListOptions{LabelSelector: links.ClusterNameLabel}
	secrets, err := client.CoreV1().Secrets(e.controllerNamespace).List(ctx, labelled)
	forbidden := apierrors.IsForbidden(err)
	errs := []error{soften(err)}
	if err == nil {
		for _, secret := range secrets.Items {
			if secret.Type == links.SecretType {
				l := all.get(secret.Labels[links.ClusterNameLabel])
				l.secrets = append(l.secrets, secret)
			}
		}
	}
	if linksServed {
		errs = append(errs, soften(all.addLinks(ctx, config, client, known)))
	}
	var sorted []*linkedCluster
	for _, name := range slices.Sorted(maps.Keys(all)) {
		l := all[name]
		if forbidden {
			l.secretErrs = append(l.secretErrs,
				warningf("the labelled Secrets in namespace %s cannot be read with your permissions",
					e.controllerNamespace))
		}
		sorted = append(sorted, l)
	}
	return sorted, joinWarnings(errs...)
}

// addLinks adds the clusters of Links, and the Secrets that Links name.
func (l linkedClusters) addLinks(
	ctx context.Context, config *rest.Config, client kubernetes.Interface, known *knownReplicas,
) error {
	groups, err := client.Discovery().ServerGroups()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == links.Group })
	if i < 0 {
		return nil
	}
	untyped, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	version := groups.Groups[i].PreferredVersion.Version
	resource := schema.GroupVersionResource{Group: links.Group, Version: version, Resource: "links"}
	list, err := untyped.Resource(resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	_ = known.refresh(ctx) // to see which Links they read by now; replicas that do not respond were reported
	for _, link := range list.Items {
		c := l.get(specField(link, "targetClusterName"))
		if !known.readsLink(link.GetNamespace(), link.GetName()) {
			c.unread = append(c.unread, link.GetNamespace()+"/"+link.GetName())
			continue
		}
		c.links = append(c.links, link)
		if name := specField(link, "clusterCredentialsSecret"); name != "" {
			c.addSecret(ctx, client, link.GetNamespace(), name)
		}
	}
	return nil
}

// addSecret adds a Secret that a Link names, unless its kubeconfig is there already.
func (l *linkedCluster) addSecret(ctx context.Context, client kubernetes.Interface, namespace, name string) {
	secret, err := client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		l.secretErrs = append(
			l.secretErrs,
			fmt.Errorf("there is no Secret %s/%s, which a Link names", namespace, name),
		)
		return
	case apierrors.IsForbidden(err):
		l.secretErrs = append(l.secretErrs,
			warningf("Secret %s/%s, which a Link names, cannot be read with your permissions", namespace, name))
		return
	case err != nil:
		l.secretErrs = append(
			l.secretErrs,
			fmt.Errorf("read Secret %s/%s, which a Link names: %w", namespace, name, err),
		)
		return
	}
	known := slices.ContainsFunc(l.secrets, func(other corev1.Secret) bool {
		return string(other.Data[links.KubeconfigKey]) == string(secret.Data[links.KubeconfigKey])
	})
	if !known {
		l.secrets = append(l.secrets, *secret)
	}
}

// specField returns a text of a Link's spec; empty if there is none.
func specField(link unstructured.Unstructured, field string) string {
	text, _, _ := unstructured.NestedString(link.Object, "spec", field)
	return text
}

// checkLinked checks a linked cluster with the credentials of its Links.
func (e *environment) checkLinked(ctx context.Context, r *runner, l *linkedCluster, known *knownReplicas) {
	r.beginCategory("fingerpost-link-" + l.name)
	for _, name := range l.unread {
		r.check(ctx, check{
			description: "Fingerpost reads Link " + name, anchor: "fingerpost-knows-what-is-linked",
			run: func(context.Context) error {
				return warningf("Link %s is not read: it is not in the namespace that -link-namespace names",
					name)
			},
		})
	}
	if len(known.pages) > 0 {
		r.check(ctx, check{
			description: "Fingerpost knows " + l.name, anchor: "fingerpost-knows-what-is-linked", retry: true,
			run: func(ctx context.Context) error {
				if err := known.refresh(ctx); err != nil || len(known.clusters(hasName(l.name))) > 0 {
					return err
				}
				return errors.New("no replica has this cluster: its Links are outside of -link-namespace, " +
					"or its Secret is rejected, which the log explains")
			},
		})
	}
	if len(l.links) == 0 && len(l.secrets) == 0 {
		return // Fingerpost does not read any of them
	}
	r.check(ctx, check{
		description: "one Link names " + l.name, anchor: "one-link-for-a-cluster",
		run: func(context.Context) error { return l.checkOneLink() },
	})
	inContact := known.inContact(l.name)
	r.check(ctx, check{
		description: "its credentials can be used", anchor: "credentials-can-be-used",
		run: func(context.Context) error { return l.newClient(r.timeout, inContact) },
	})
	if l.client != nil {
		accepted := r.check(ctx, check{
			description: "its API server accepts them", anchor: "credentials-are-accepted",
			run: func(ctx context.Context) error {
				err := ping(ctx, l.client)
				if err != nil && !apierrors.IsUnauthorized(err) && inContact {
					return warningf("it cannot be reached from here, but Fingerpost is in contact: %w", err)
				}
				return err
			},
		})
		if accepted && ping(ctx, l.client) == nil {
			e.checkRemote(ctx, r, l, known)
		}
	}
	for _, link := range l.links {
		checkGateway(ctx, r, link)
	}
}

func (l *linkedCluster) checkOneLink() error {
	if len(l.links) <= 1 {
		return nil
	}
	var names []string
	for _, link := range l.links {
		names = append(names, link.GetNamespace()+"/"+link.GetName())
	}
	return fmt.Errorf("the Links %s all name it: the oldest counts, delete the others",
		strings.Join(names, ", "))
}

// newClient makes a client from the first Secret that can be used, and returns what is wrong with any. An
// address that Fingerpost rejects unless a flag allows it is a warning if a replica is in contact.
func (l *linkedCluster) newClient(timeout time.Duration, inContact bool) error {
	errs := slices.Clone(l.secretErrs)
	if len(l.secrets) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("there is no Secret with a kubeconfig for it"))
	}
	for _, secret := range l.secrets {
		name := "Secret " + secret.Namespace + "/" + secret.Name
		config, err := readCredentials(secret, inContact)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		if config == nil || l.client != nil {
			continue
		}
		config.Timeout, config.QPS = timeout, -1
		if l.client, err = kubernetes.NewForConfig(config); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		l.config = config
	}
	return joinWarnings(errs...)
}

// readCredentials returns the credentials in a Secret, nil if they cannot be used, and what is wrong with
// them.
func readCredentials(secret corev1.Secret, inContact bool) (*rest.Config, error) {
	kubeconfig := secret.Data[links.KubeconfigKey]
	config, err := links.Credentials(kubeconfig, links.Hosts{})
	if err != nil && inContact {
		allowed, allowedErr := links.Credentials(kubeconfig, cli.AnyHost)
		if allowedErr == nil {
			config, err = allowed, warningf("Fingerpost is in contact, so -allow-kubeconfig-hosts may allow "+
				"it: %w", err)
		}
	}
	if config == nil {
		return nil, err
	}
	return config, joinWarnings(err, checkExpiry(config, time.Now()))
}

// checkExpiry reports credentials that have expired or soon will. Not all credentials have an end that can be
// read.
func checkExpiry(config *rest.Config, now time.Time) error {
	end := api.Expiry(config)
	switch left := end.Sub(now); {
	case end.IsZero():
	case left <= 0:
		return fmt.Errorf("the token or certificate has expired %s ago: 'fingerpost link rotate' makes new "+
			"ones", debug.Age(end, now))
	case left < minExpiry:
		return warningf("the token or certificate expires in %s: 'fingerpost link rotate' makes new ones",
			left.Round(time.Second))
	}
	return nil
}

// checkRemote checks what a linked cluster's API server answers.
func (e *environment) checkRemote(ctx context.Context, r *runner, l *linkedCluster, known *knownReplicas) {
	r.check(ctx, check{
		description: "its clock agrees with this one", anchor: "clocks-agree",
		run: func(ctx context.Context) error { return checkClock(ctx, l.config) },
	})
	r.check(ctx, check{
		description: "its credentials have permission to read", anchor: "credentials-have-permission",
		// Each response has its own timeout.
		run: func(context.Context) error { return l.checkPermissions(ctx, r.timeout) },
	})
	r.check(ctx, check{
		description: "its trust domain is the one that clients get", anchor: "trust-domains-agree",
		run: func(ctx context.Context) error { return e.checkTrustDomain(ctx, l, known) },
	})
	e.checkLeases(ctx, r, l.name, l.client, known, hasName(l.name))
}

func (l *linkedCluster) checkPermissions(ctx context.Context, timeout time.Duration) error {
	var missing []string
	required := false
	for _, p := range readPermissions {
		for _, verb := range []string{"list", "watch"} {
			once, cancel := context.WithTimeout(ctx, timeout)
			status, err := reviewAccess(once, l.client, p, verb)
			cancel()
			if err != nil {
				return fmt.Errorf("review whether they may %s %s: %w", verb, p, err)
			}
			if !status.Allowed {
				missing = append(missing, verb+" "+p.String())
				required = required || p.required
			}
		}
	}
	switch {
	case len(missing) == 0:
		return nil
	case required:
		return fmt.Errorf("they may not %s: without it Fingerpost gets nothing new from the cluster",
			strings.Join(missing, ", "))
	default:
		return warningf("they may not %s: what depends on it is left out", strings.Join(missing, ", "))
	}
}

// checkTrustDomain compares the trust domain of a cluster's mesh with the one in the identities that clients
// get.
func (e *environment) checkTrustDomain(ctx context.Context, l *linkedCluster, known *knownReplicas) error {
	theirs, _, err := cli.MeshDomains(ctx, l.client, e.controllerNamespace)
	switch {
	case apierrors.IsNotFound(err):
		return errSkipped // there is nothing to compare with
	case apierrors.IsForbidden(err):
		return warningf("it cannot be read: grant get on configmaps of the name linkerd-config")
	case err != nil:
		return err
	}
	served := l.secrets[0].Annotations[links.TrustDomainAnnotation]
	if reported := known.clusters(hasName(l.name)); len(reported) > 0 {
		served = reported[0].Page.TrustDomain
	}
	if served != "" && theirs != served {
		return fmt.Errorf(
			"identities there end in %s, and clients get %s, so that mTLS fails: "+
				"set the annotation %s of the labelled Secret",
			theirs, served, links.TrustDomainAnnotation,
		)
	}
	return nil
}

// checkGateway connects to the addresses of a Link's gateway.
func checkGateway(ctx context.Context, r *runner, link unstructured.Unstructured) {
	addresses := specField(link, "gatewayAddress")
	if addresses == "" {
		return
	}
	port := cmp.Or(specField(link, "gatewayPort"), "4143")
	dial := func(ctx context.Context) error {
		var errs []error
		for address := range strings.SplitSeq(addresses, ",") {
			dialer := net.Dialer{Timeout: 3 * time.Second}
			conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(strings.TrimSpace(address), port))
			if err != nil {
				errs = append(errs, err)
				continue
			}
			conn.Close()
		}
		if len(errs) > 0 {
			return warningf("of Link %s/%s: %w", link.GetNamespace(), link.GetName(), errors.Join(errs...))
		}
		return nil
	}
	r.check(ctx, check{
		description: "its gateway can be reached from here", anchor: "a-gateway-can-be-reached", run: dial,
	})
}

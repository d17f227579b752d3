package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster"
	clusterslices "github.com/fingerpost/fingerpost/cluster/slices"
	"github.com/fingerpost/fingerpost/links"
)

const (
	maxSkew    = 10 * time.Second // between clocks, before it is told
	minExpiry  = time.Hour        // that credentials should still be valid
	newestLink = "v1alpha3"
)

// leases are held by whoever writes in a cluster.
var leases = []string{clusterslices.ExternalLease, clusterslices.FederatedLease}

// A right is what Fingerpost needs in a cluster.
type right struct {
	group, resource string
	required        bool // nothing is said of the cluster without it
}

var readRights = []right{
	{"", "services", true},
	{"", "pods", true},
	{"discovery.k8s.io", "endpointslices", true},
	{"apps", "replicasets", false},
	{"batch", "jobs", false},
	{"policy.linkerd.io", "servers", false},
	{"workload.linkerd.io", "externalworkloads", false},
}

var installRights = []struct{ group, resource string }{
	{"", "namespaces"},
	{"", "serviceaccounts"},
	{"", "services"},
	{"", "configmaps"},
	{"apps", "deployments"},
	{"rbac.authorization.k8s.io", "clusterroles"},
	{"rbac.authorization.k8s.io", "clusterrolebindings"},
	{"apiextensions.k8s.io", "customresourcedefinitions"},
}

// A site is what is checked: the cluster of the kubeconfig and all that is linked there.
type site struct {
	reach
	controllerNamespace string
}

// A linked cluster is what its Links and Secrets say, and how to ask it with their credentials.
type linkedCluster struct {
	name    string
	links   []unstructured.Unstructured
	secrets []corev1.Secret // in the order in which they are used
	wanted  []string        // Secrets that Links name and that are not there
	client  kubernetes.Interface
	config  *rest.Config
}

func (s *site) check(ctx context.Context, c *checker, pre bool) {
	c.begin("fingerpost-kubernetes")
	var config *rest.Config
	var client kubernetes.Interface
	reachable := c.check(ctx, check{"the API server answers", "the-api-server-answers", false, func(ctx context.Context) (err error) {
		if config, err = s.config(); err != nil {
			return err
		}
		config.Timeout = c.timeout
		if client, err = kubernetes.NewForConfig(config); err != nil {
			return err
		}
		return alive(ctx, client)
	}})
	if !reachable {
		return
	}
	c.check(ctx, check{"its clock agrees with this one", "clocks-agree", false, func(ctx context.Context) error { return clock(ctx, config) }})
	served := c.check(ctx, check{"Links are served at version " + newestLink, "links-are-served", false, func(context.Context) error { return linksServed(client) }})
	if pre {
		c.begin("fingerpost-install")
		for _, r := range installRights {
			c.check(ctx, check{"you may create " + (schema.GroupResource{Group: r.group, Resource: r.resource}).String(), "you-may-install", false, func(ctx context.Context) error {
				return may(ctx, client, r.group, r.resource, "create")
			}})
		}
		return
	}
	replica, page, done := s.checkReplicas(ctx, c)
	defer done()
	if page != nil {
		checkClusters(ctx, c, replica, page)
		checkServices(ctx, c, replica)
	}
	all, err := s.linked(ctx, config, client, served)
	if err != nil {
		c.begin("fingerpost-links")
		c.check(ctx, check{"Links and their Secrets can be read", "links-can-be-read", false, func(context.Context) error { return err }})
	}
	c.begin("fingerpost-leases")
	s.checkLeases(ctx, c, "this cluster", client, knownCluster(page, localCluster(page)))
	for _, l := range all {
		s.checkLinked(ctx, c, l, page)
	}
}

// alive asks for the version, which needs credentials but no right.
func alive(ctx context.Context, client kubernetes.Interface) error {
	return client.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error()
}

// clock compares the API server's clock with ours, which is only as good as the answer was quick.
func clock(ctx context.Context, config *rest.Config) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("version").String(), nil)
	if err != nil {
		return err
	}
	asked := time.Now()
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	response.Body.Close()
	answered := time.Now()
	theirs, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return errSkipped
	}
	var skew time.Duration
	switch latest := theirs.Add(time.Second); { // it tells whole seconds
	case theirs.After(answered):
		skew = theirs.Sub(answered)
	case latest.Before(asked):
		skew = latest.Sub(asked)
	}
	if skew.Abs() > maxSkew {
		return warn("it is %s away from this one: tokens and leases are judged by clocks, set both by NTP", skew.Round(time.Second))
	}
	return nil
}

func linksServed(client kubernetes.Interface) error {
	groups, err := client.Discovery().ServerGroups()
	if err != nil {
		return err
	}
	for _, g := range groups.Groups {
		if g.Name != links.Group {
			continue
		}
		var versions []string
		for _, v := range g.Versions {
			if v.Version == newestLink {
				return nil
			}
			versions = append(versions, v.Version)
		}
		return warn("they are served at %s only: apply links/crd/links.yaml, or a newer linkerd-multicluster chart", strings.Join(versions, ", "))
	}
	return warn("there is no CRD of Links: clusters can be linked by labelled Secrets only; apply links/crd/links.yaml")
}

// may reports whether who asks may do it in all namespaces.
func may(ctx context.Context, client kubernetes.Interface, group, resource, verb string) error {
	status, err := cluster.Review(ctx, client, authorizationv1.ResourceAttributes{Group: group, Resource: resource, Verb: verb})
	if err != nil {
		return err
	}
	if !status.Allowed {
		return fmt.Errorf("%s %s is not allowed %s", verb, schema.GroupResource{Group: group, Resource: resource}, status.Reason)
	}
	return nil
}

// checkReplicas returns one replica, what it knows of clusters, which is nil if it does not answer, and how to let go of all.
func (s *site) checkReplicas(ctx context.Context, c *checker) (from replica, page *clustersPage, done func()) {
	c.begin("fingerpost-replicas")
	var all []replica
	done = func() {}
	found := c.check(ctx, check{"replicas are ready", "replicas-are-ready", true, func(context.Context) error {
		opened, end, err := s.open(ctx, 0)
		if err != nil {
			return err
		}
		for _, r := range opened {
			if r.err != nil {
				end()
				return r.err
			}
		}
		all, done = opened, end
		return nil
	}})
	if !found {
		return replica{}, nil, done
	}
	page = &clustersPage{}
	for i := range all {
		answers := c.check(ctx, check{all[i].Name + " answers", "replicas-are-ready", true, func(ctx context.Context) error {
			return fetch(ctx, all[i], "/debug/clusters", page)
		}})
		if !answers {
			return replica{}, nil, done
		}
	}
	for i := range all[1:] {
		c.check(ctx, check{all[i+1].Name + " says the same as " + all[0].Name, "replicas-say-the-same", true, func(ctx context.Context) error {
			differences, err := compare(ctx, [2]replica{all[0], all[i+1]}, 2*time.Second)
			if err != nil || len(differences) == 0 {
				return err
			}
			d := differences[0]
			return warn("they differ in %d places, such as %s %s: %s; see 'fingerpost diff'", len(differences), d.Cluster, d.Service, d.What)
		}})
	}
	return all[0], page, done
}

// checkClusters looks at the clusters through the eyes of a replica.
func checkClusters(ctx context.Context, c *checker, from replica, page *clustersPage) {
	c.begin("fingerpost-clusters")
	for _, listed := range page.Clusters { // as they were: the page is read again
		name := listed.Name
		ask := func(ctx context.Context) (clusterPage, error) {
			if err := fetch(ctx, from, "/debug/clusters", page); err != nil {
				return clusterPage{}, err
			}
			for _, now := range page.Clusters {
				if now.Name == name {
					return now, nil
				}
			}
			return clusterPage{}, errSkipped // it was unlinked
		}
		c.check(ctx, check{name + " is in contact", "a-cluster-is-in-contact", true, func(ctx context.Context) error {
			now, err := ask(ctx)
			if err != nil || now.State == string(cluster.Live) {
				return err
			}
			err = fmt.Errorf("it is %s, last contact %s: %s", now.State, ago(now.LastContact, time.Now()), cmp.Or(now.Contact, now.Credentials, "it was not heard yet"))
			if now.State == string(cluster.Suspect) {
				return warning{err}
			}
			return err
		}})
		c.check(ctx, check{"the newest credentials of " + name + " are in use", "credentials-are-in-use", true, func(ctx context.Context) error {
			now, err := ask(ctx)
			if err != nil || now.Credentials == "" {
				return err
			}
			return fmt.Errorf("%s; in use: %s", now.Credentials, cmp.Or(now.Source, "none"))
		}})
		c.check(ctx, check{"everything in " + name + " may be read", "everything-may-be-read", true, func(ctx context.Context) error {
			now, err := ask(ctx)
			if err != nil {
				return err
			}
			var refused []string
			required := false
			for _, k := range now.Kinds {
				if k.Refused == "" || strings.Contains(k.Refused, "NotFound") { // no CRD, so there is none of it
					continue
				}
				refused = append(refused, k.Resource+" ("+k.Refused+")")
				required = required || slices.ContainsFunc(readRights, func(r right) bool {
					return r.required && k.Resource == (schema.GroupResource{Group: r.group, Resource: r.resource}).String()
				})
			}
			switch {
			case len(refused) == 0:
				return nil
			case required:
				return fmt.Errorf("grant get, list and watch on %s", strings.Join(refused, ", "))
			default:
				return warn("what depends on it is left out: grant get, list and watch on %s", strings.Join(refused, ", "))
			}
		}})
	}
	for _, known := range page.Clusters {
		c.check(ctx, check{"nothing keeps Fingerpost from writing in " + known.Name, "nothing-keeps-from-writing", false, func(context.Context) error {
			switch {
			case known.Writing == "" || known.Writing == string(cluster.ReadOnly):
				return errSkipped // there is nothing to write, or no right to
			case known.WritingNote != "":
				return warn("%s", known.WritingNote)
			}
			return nil
		}})
	}
	for _, l := range page.Links {
		c.check(ctx, check{"Link " + l.Namespace + "/" + l.Name + " is accepted", "a-link-is-accepted", false, func(context.Context) error {
			for _, condition := range l.Conditions {
				if condition.Type == links.Accepted && condition.Status == metav1.ConditionFalse {
					return fmt.Errorf("%s: %s", condition.Reason, condition.Message)
				}
			}
			return nil
		}})
	}
}

func checkServices(ctx context.Context, c *checker, from replica) {
	c.begin("fingerpost-services")
	c.check(ctx, check{"no mirrored or federated Service is half-made", "no-service-is-half-made", true, func(ctx context.Context) error {
		var page malformedPage
		if err := fetch(ctx, from, "/debug/malformed", &page); err != nil {
			return err
		}
		var errs []error
		for _, name := range slices.Sorted(maps.Keys(page)) {
			errs = append(errs, fmt.Errorf("%s: %s", name, page[name]))
		}
		return errors.Join(errs...)
	}})
}

// linked returns the clusters that are linked, sorted by name.
func (s *site) linked(ctx context.Context, config *rest.Config, client kubernetes.Interface, served bool) ([]*linkedCluster, error) {
	all := map[string]*linkedCluster{}
	of := func(name string) *linkedCluster {
		if all[name] == nil {
			all[name] = &linkedCluster{name: name}
		}
		return all[name]
	}
	secrets, err := client.CoreV1().Secrets(s.controllerNamespace).List(ctx, metav1.ListOptions{LabelSelector: links.ClusterNameLabel})
	if err != nil {
		return nil, err
	}
	for _, secret := range secrets.Items {
		if secret.Type == links.SecretType {
			l := of(secret.Labels[links.ClusterNameLabel])
			l.secrets = append(l.secrets, secret)
		}
	}
	if served {
		if err := s.readLinks(ctx, config, client, of); err != nil {
			return nil, err
		}
	}
	var sorted []*linkedCluster
	for _, name := range slices.Sorted(maps.Keys(all)) {
		sorted = append(sorted, all[name])
	}
	return sorted, nil
}

func (s *site) readLinks(ctx context.Context, config *rest.Config, client kubernetes.Interface, of func(string) *linkedCluster) error {
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
	resource := schema.GroupVersionResource{Group: links.Group, Version: groups.Groups[i].PreferredVersion.Version, Resource: "links"}
	list, err := untyped.Resource(resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, link := range list.Items {
		l := of(spec(link, "targetClusterName"))
		l.links = append(l.links, link)
		name := spec(link, "clusterCredentialsSecret")
		if name == "" {
			continue
		}
		secret, err := client.CoreV1().Secrets(link.GetNamespace()).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			l.wanted = append(l.wanted, link.GetNamespace()+"/"+name)
		case err != nil:
			return err
		case !slices.ContainsFunc(l.secrets, func(o corev1.Secret) bool {
			return string(o.Data[links.KubeconfigKey]) == string(secret.Data[links.KubeconfigKey])
		}):
			l.secrets = append(l.secrets, *secret)
		}
	}
	return nil
}

// spec returns a text of a Link's spec; empty if it is none.
func spec(link unstructured.Unstructured, field string) string {
	text, _, _ := unstructured.NestedString(link.Object, "spec", field)
	return text
}

// checkLinked looks at a linked cluster with the credentials of its Links.
func (s *site) checkLinked(ctx context.Context, c *checker, l *linkedCluster, page *clustersPage) {
	c.begin("fingerpost-link-" + l.name)
	c.check(ctx, check{"one Link says how to reach " + l.name, "one-link-for-a-cluster", false, func(context.Context) error {
		if len(l.links) > 1 {
			var names []string
			for _, link := range l.links {
				names = append(names, link.GetNamespace()+"/"+link.GetName())
			}
			return fmt.Errorf("the Links %s all name it: the oldest counts, the others must go", strings.Join(names, ", "))
		}
		return nil
	}})
	c.check(ctx, check{"its credentials can be used", "credentials-can-be-used", false, func(context.Context) error { return l.open(c.timeout) }})
	known := knownCluster(page, l.name)
	if l.client != nil {
		answers := c.check(ctx, check{"its API server takes them", "credentials-are-taken", false, func(ctx context.Context) error {
			err := alive(ctx, l.client)
			if err != nil && !apierrors.IsUnauthorized(err) && known != nil && known.State == string(cluster.Live) {
				return warn("it cannot be asked from here, but from where Fingerpost runs: %w", err)
			}
			return err
		}})
		if answers && alive(ctx, l.client) == nil {
			s.checkRemote(ctx, c, l, known)
		}
	}
	for _, link := range l.links {
		s.checkGateway(ctx, c, link)
	}
}

func knownCluster(page *clustersPage, name string) *clusterPage {
	if page == nil {
		return nil
	}
	for i := range page.Clusters {
		if page.Clusters[i].Name == name {
			return &page.Clusters[i]
		}
	}
	return nil
}

// localCluster returns the name of the cluster that a replica runs in.
func localCluster(page *clustersPage) string {
	if page != nil {
		for _, c := range page.Clusters {
			if c.Local {
				return c.Name
			}
		}
	}
	return ""
}

// open makes a client from the Secret that is used first, and returns what is wrong with any.
func (l *linkedCluster) open(timeout time.Duration) error {
	var errs []error
	for _, name := range l.wanted {
		errs = append(errs, fmt.Errorf("there is no Secret %s, which a Link names", name))
	}
	if len(l.secrets) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("there is no Secret with a kubeconfig for it"))
	}
	for _, secret := range l.secrets {
		name := "Secret " + secret.Namespace + "/" + secret.Name
		config, err := links.Credentials(secret.Data[links.KubeconfigKey], links.Hosts{})
		if err == nil {
			err = expiry(config, time.Now())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		if config != nil && l.client == nil {
			config.Timeout, config.QPS = timeout, -1
			if l.client, err = kubernetes.NewForConfig(config); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
			l.config = config
		}
	}
	for _, err := range errs {
		if _, is := errors.AsType[warning](err); !is {
			return errors.New(strings.ReplaceAll(errors.Join(errs...).Error(), "\n", "; ")) // no longer a warning
		}
	}
	return errors.Join(errs...)
}

// expiry judges when credentials end, if they tell.
func expiry(config *rest.Config, now time.Time) error {
	end := cluster.Expiry(config)
	switch left := end.Sub(now); {
	case end.IsZero():
	case left <= 0:
		return fmt.Errorf("the token or certificate has expired %s ago: 'fingerpost link rotate' makes new ones", age(end, now))
	case left < minExpiry:
		return warn("the token or certificate expires in %s: 'fingerpost link rotate' makes new ones", left.Round(time.Second))
	}
	return nil
}

// checkRemote asks a linked cluster's API server.
func (s *site) checkRemote(ctx context.Context, c *checker, l *linkedCluster, known *clusterPage) {
	c.check(ctx, check{"its clock agrees with this one", "clocks-agree", false, func(ctx context.Context) error { return clock(ctx, l.config) }})
	c.check(ctx, check{"its credentials have the rights to read", "credentials-have-rights", false, func(ctx context.Context) error {
		var lacks []string
		required := false
		for _, r := range readRights {
			for _, verb := range []string{"list", "watch"} {
				if may(ctx, l.client, r.group, r.resource, verb) != nil {
					lacks = append(lacks, verb+" "+(schema.GroupResource{Group: r.group, Resource: r.resource}).String())
					required = required || r.required
				}
			}
		}
		switch {
		case len(lacks) == 0:
			return nil
		case required:
			return fmt.Errorf("they may not %s: nothing new is heard of the cluster without", strings.Join(lacks, ", "))
		default:
			return warn("they may not %s: what depends on it is left out", strings.Join(lacks, ", "))
		}
	}})
	c.check(ctx, check{"its trust domain is the one that is told to clients", "trust-domains-agree", false, func(ctx context.Context) error {
		return s.trustDomain(ctx, l, known)
	}})
	s.checkLeases(ctx, c, l.name, l.client, known)
}

// trustDomain compares what a cluster's mesh calls itself with what is told of it.
func (s *site) trustDomain(ctx context.Context, l *linkedCluster, known *clusterPage) error {
	theirs, _, err := meshDomains(ctx, l.client, s.controllerNamespace)
	switch {
	case apierrors.IsNotFound(err):
		return errSkipped // there is nothing to compare with
	case apierrors.IsForbidden(err):
		return warn("it cannot be told: grant get on configmaps of the name linkerd-config")
	case err != nil:
		return err
	}
	told := l.secrets[0].Annotations[links.TrustDomainAnnotation]
	if known != nil {
		told = known.TrustDomain
	}
	if told != "" && theirs != told {
		return fmt.Errorf("identities there end in %s, and clients are told %s, so that mTLS fails: set the annotation %s of the labelled Secret", theirs, told, links.TrustDomainAnnotation)
	}
	return nil
}

// meshDomains returns the trust domain and the cluster domain of a cluster's mesh, as Linkerd was installed with them.
func meshDomains(ctx context.Context, client kubernetes.Interface, namespace string) (trust, dns string, err error) {
	config, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, "linkerd-config", metav1.GetOptions{})
	if err != nil {
		return "", "", err
	}
	var values struct {
		IdentityTrustDomain string `json:"identityTrustDomain"`
		ClusterDomain       string `json:"clusterDomain"`
	}
	if err := yaml.Unmarshal([]byte(config.Data["values"]), &values); err != nil {
		return "", "", fmt.Errorf("ConfigMap %s/linkerd-config: %w", namespace, err)
	}
	dns = cmp.Or(values.ClusterDomain, "cluster.local")
	return cmp.Or(values.IdentityTrustDomain, dns), dns, nil
}

// checkLeases looks who may write in a cluster. known is what a replica knows of it, nil for nothing.
func (s *site) checkLeases(ctx context.Context, c *checker, where string, client kubernetes.Interface, known *clusterPage) {
	needed := known == nil || known.Writing == string(cluster.Standby) || known.Writing == string(cluster.Holding)
	for _, name := range leases {
		c.check(ctx, check{"somebody holds the Lease " + name + " in " + where, "somebody-holds-the-lease", true, func(ctx context.Context) error {
			lease, err := client.CoordinationV1().Leases(s.controllerNamespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
				return err
			}
			return held(lease, err, needed, time.Now())
		}})
	}
}

// held judges a Lease, or why it was not found. One that nobody holds matters if something is to be written.
func held(lease *coordinationv1.Lease, missing error, needed bool, now time.Time) error {
	switch {
	case missing != nil && !needed:
		return errSkipped
	case apierrors.IsNotFound(missing):
		return warn("there is no such Lease: nobody writes EndpointSlices there")
	case missing != nil:
		return warn("it may not be read from here: %w", missing)
	}
	spec := lease.Spec
	if spec.HolderIdentity == nil || *spec.HolderIdentity == "" {
		if !needed {
			return errSkipped // it was given up in good order
		}
		return warn("nobody holds it: nobody writes EndpointSlices there")
	}
	if spec.RenewTime == nil || spec.LeaseDurationSeconds == nil {
		return warn("%s holds it and does not say for how long", *spec.HolderIdentity)
	}
	if past := now.Sub(spec.RenewTime.Add(time.Duration(*spec.LeaseDurationSeconds) * time.Second)); past > maxSkew {
		return warn("%s held it, until %s ago, and nobody has taken over: nobody writes EndpointSlices there", *spec.HolderIdentity, past.Round(time.Second))
	}
	return nil
}

// checkGateway connects to the addresses of a Link's gateway.
func (s *site) checkGateway(ctx context.Context, c *checker, link unstructured.Unstructured) {
	addresses := spec(link, "gatewayAddress")
	if addresses == "" {
		return
	}
	port := cmp.Or(spec(link, "gatewayPort"), "4143")
	c.check(ctx, check{"its gateway can be reached from here", "a-gateway-can-be-reached", false, func(ctx context.Context) error {
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
			return warn("of Link %s/%s: %w", link.GetNamespace(), link.GetName(), errors.Join(errs...))
		}
		return nil
	}})
}

package check

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

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/endpointslice"
	"github.com/fingerpost/fingerpost/cluster/linkerd"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/links"
)

const (
	maxSkew   = 10 * time.Second // between clocks, before it is told
	minExpiry = time.Hour        // that credentials should still be valid
)

// leases are held by whoever writes in a cluster.
var writerLeases = []string{endpointslice.ExternalLease, endpointslice.FederatedLease}

// A right is what Fingerpost needs in a cluster.
type permission struct {
	group, resource string
	required        bool // nothing is said of the cluster, or installed, without it
}

func (r permission) String() string {
	return schema.GroupResource{Group: r.group, Resource: r.resource}.String()
}

var readPermissions = []permission{
	{"", "services", true},
	{"", "pods", true},
	{"discovery.k8s.io", "endpointslices", true},
	{"apps", "replicasets", false},
	{"batch", "jobs", false},
	{linkerd.Servers.Group, linkerd.Servers.Resource, false},
	{linkerd.ExternalWorkloads.Group, linkerd.ExternalWorkloads.Resource, false},
}

// installRights are to create what the chart makes, always or where its values say so.
var installPermissions = []permission{
	{"", "serviceaccounts", true},
	{"", "services", true},
	{"apps", "deployments", true},
	{"policy", "poddisruptionbudgets", true},
	{"rbac.authorization.k8s.io", "roles", true},
	{"rbac.authorization.k8s.io", "rolebindings", true},
	{"rbac.authorization.k8s.io", "clusterroles", true},
	{"rbac.authorization.k8s.io", "clusterrolebindings", true},
	{"", "namespaces", false},
	{"", "configmaps", false},
	{"apiextensions.k8s.io", "customresourcedefinitions", false},
}

// A site is what is checked: the cluster of the kubeconfig and all that is linked there.
type environment struct {
	cli.ReplicaFlags
	controllerNamespace string
}

// A linked cluster is what its Links and Secrets say, and how to ask it with their credentials.
type linkedCluster struct {
	name    string
	links   []unstructured.Unstructured
	unread  []string        // Links that Fingerpost does not read
	secrets []corev1.Secret // in the order in which they are used
	missing []error         // why there are no others
	client  kubernetes.Interface
	config  *rest.Config
}

func (s *environment) run(ctx context.Context, c *runner, pre bool) {
	c.beginCategory("fingerpost-kubernetes")
	var config *rest.Config
	var client kubernetes.Interface
	reachable := c.check(ctx, check{"the API server answers", "the-api-server-answers", false, func(ctx context.Context) (err error) {
		if config, err = s.RESTConfig(); err != nil {
			return err
		}
		config.Timeout = c.timeout
		if client, err = kubernetes.NewForConfig(config); err != nil {
			return err
		}
		return ping(ctx, client)
	}})
	if !reachable {
		return
	}
	c.check(ctx, check{"its clock agrees with this one", "clocks-agree", false, func(ctx context.Context) error { return checkClock(ctx, config) }})
	served := c.check(ctx, check{"Links are served at version " + cli.LinkVersion, "links-are-served", false, func(context.Context) error { return checkLinkVersion(client) }})
	if pre {
		c.beginCategory("fingerpost-install")
		for _, r := range installPermissions {
			c.check(ctx, check{"you may create " + r.String(), "you-may-install", false, func(ctx context.Context) error {
				status, err := reviewAccess(ctx, client, r, "create")
				switch {
				case err != nil || status.Allowed:
					return err
				case r.required:
					return fmt.Errorf("create %s is not allowed %s", r, status.Reason)
				default:
					return warningf("create %s is not allowed, which not every installation needs %s", r, status.Reason)
				}
			}})
		}
		return
	}
	known, done := s.checkReplicas(ctx, c)
	defer done()
	if len(known.pages) > 0 {
		checkClusters(ctx, c, known)
		checkServices(ctx, c, known)
	}
	c.beginCategory("fingerpost-links")
	var all []*linkedCluster
	c.check(ctx, check{"Links and their Secrets can be read", "links-can-be-read", false, func(context.Context) (err error) { // each answer has its own timeout
		all, err = s.listLinkedClusters(ctx, config, client, served, known)
		return err
	}})
	c.beginCategory("fingerpost-leases")
	s.checkLeases(ctx, c, "this cluster", client, known, func(c debug.Cluster) bool { return c.Local })
	for _, l := range all {
		s.checkLinked(ctx, c, l, known)
	}
}

// alive asks for the version, which needs credentials but no right.
func ping(ctx context.Context, client kubernetes.Interface) error {
	return client.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error()
}

// clock compares the API server's clock with ours, which is only as good as the answer was quick.
func checkClock(ctx context.Context, config *rest.Config) error {
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
		return warningf("it is %s away from this one: tokens and leases are judged by clocks, set both by NTP", skew.Round(time.Second))
	}
	return nil
}

func checkLinkVersion(client kubernetes.Interface) error {
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
			if v.Version == cli.LinkVersion {
				return nil
			}
			versions = append(versions, v.Version)
		}
		return warningf("they are served at %s only: apply links/crd/links.yaml, or a newer linkerd-multicluster chart", strings.Join(versions, ", "))
	}
	return warningf("there is no CRD of Links: clusters can be linked by labelled Secrets only; apply links/crd/links.yaml")
}

// accessReview asks whether who asks may do something in all namespaces.
func reviewAccess(ctx context.Context, client kubernetes.Interface, r permission, verb string) (authorizationv1.SubjectAccessReviewStatus, error) {
	return cluster.Review(ctx, client, authorizationv1.ResourceAttributes{Group: r.group, Resource: r.resource, Verb: verb})
}

// replicas are those that answer, and what they know of clusters.
type knownReplicas struct {
	all   []cli.Replica
	pages []cli.Response[debug.ClustersPage] // empty if none answers
}

// ask asks all of them again. What was said before stays if none answers.
func (r *knownReplicas) refresh(ctx context.Context) error {
	said, err := cli.FetchAll[debug.ClustersPage](ctx, r.all, "/debug/clusters")
	if len(said) > 0 {
		r.pages = said
	}
	return err
}

// of returns what each of them says of clusters.
func (r *knownReplicas) clusters(which func(debug.Cluster) bool) (said []cli.Response[debug.Cluster]) {
	for _, a := range r.pages {
		for _, c := range a.Page.Clusters {
			if which(c) {
				said = append(said, cli.Response[debug.Cluster]{Replica: a.Replica, Page: c})
			}
		}
	}
	return said
}

func hasName(name string) func(debug.Cluster) bool {
	return func(c debug.Cluster) bool { return c.Name == name }
}

// live reports whether one of them is in contact with a cluster.
func (r *knownReplicas) inContact(name string) bool {
	return slices.ContainsFunc(r.clusters(hasName(name)), func(a cli.Response[debug.Cluster]) bool { return a.Page.State == cluster.Live })
}

// reads reports whether one of them reads a Link; they do if none answers.
func (r *knownReplicas) readsLink(namespace, name string) bool {
	return len(r.pages) == 0 || slices.ContainsFunc(r.pages, func(a cli.Response[debug.ClustersPage]) bool {
		return slices.ContainsFunc(a.Page.Links, func(l links.LinkStatus) bool { return l.Namespace == namespace && l.Name == name })
	})
}

// in says which replica is meant, where there are several.
func (r *knownReplicas) suffix(name string) string {
	if len(r.all) < 2 {
		return ""
	}
	return " in " + name
}

// checkReplicas returns the replicas, and how to let go of them.
func (s *environment) checkReplicas(ctx context.Context, c *runner) (known *knownReplicas, done func()) {
	c.beginCategory("fingerpost-replicas")
	known, done = &knownReplicas{}, func() {}
	var all []cli.Replica
	c.check(ctx, check{"replicas are ready", "replicas-are-ready", true, func(context.Context) error {
		opened, end, err := s.Open(ctx)
		if err != nil {
			return err
		}
		for _, r := range opened {
			if r.Err != nil {
				end()
				return r.Err
			}
		}
		all, done = opened, end
		return nil
	}})
	for _, r := range all {
		var page debug.ClustersPage
		answers := c.check(ctx, check{r.Name + " answers", "replicas-are-ready", true, func(ctx context.Context) error {
			return cli.FetchPage(ctx, r, "/debug/clusters", &page)
		}})
		if answers {
			known.all, known.pages = append(known.all, r), append(known.pages, cli.Response[debug.ClustersPage]{Replica: r.Name, Page: page})
		}
	}
	for i := range known.all {
		if i == 0 {
			continue
		}
		first, other := known.all[0], known.all[i]
		c.check(ctx, check{other.Name + " says the same as " + first.Name, "replicas-say-the-same", true, func(context.Context) error {
			const settle = 2 * time.Second
			ctx, cancel := context.WithTimeout(ctx, c.timeout+settle) // the wait is ours
			defer cancel()
			differences, err := cli.Compare(ctx, [2]cli.Replica{first, other}, settle)
			if err != nil || len(differences) == 0 {
				return err
			}
			d := differences[0]
			return warningf("they differ in %d places, such as %s %s: %s; see 'fingerpost diff'", len(differences), d.Cluster, d.Service, d.What)
		}})
	}
	return known, done
}

// states of contact, the best first.
var states = []cluster.State{cluster.Live, cluster.Suspect, cluster.Connecting, cluster.Stale}

// checkClusters looks at the clusters through the eyes of the replicas.
func checkClusters(ctx context.Context, c *runner, known *knownReplicas) {
	c.beginCategory("fingerpost-clusters")
	names := map[string]bool{}
	for _, a := range known.clusters(func(debug.Cluster) bool { return true }) {
		names[a.Page.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		ask := func(ctx context.Context) ([]cli.Response[debug.Cluster], error) {
			if err := known.refresh(ctx); err != nil {
				return nil, err
			}
			said := known.clusters(hasName(name))
			if len(said) == 0 {
				return nil, errSkipped // it was unlinked
			}
			return said, nil
		}
		c.check(ctx, check{name + " is in contact", "a-cluster-is-in-contact", true, func(ctx context.Context) error {
			said, err := ask(ctx)
			if err != nil {
				return err
			}
			rank := func(a cli.Response[debug.Cluster]) int { return slices.Index(states, a.Page.State) }
			worst := slices.MaxFunc(said, func(a, b cli.Response[debug.Cluster]) int { return cmp.Compare(rank(a), rank(b)) })
			now := worst.Page
			if now.State == cluster.Live {
				return nil
			}
			err = fmt.Errorf("it is %s%s, last contact %s: %s", now.State, known.suffix(worst.Replica), debug.Ago(now.LastContact, time.Now()), cmp.Or(now.Contact, now.Credentials, "it was not heard yet"))
			if now.State == cluster.Suspect {
				return warning{error: err}
			}
			return err
		}})
		c.check(ctx, check{"the newest credentials of " + name + " are in use", "credentials-are-in-use", true, func(ctx context.Context) error {
			said, err := ask(ctx)
			for _, a := range said {
				if a.Page.Credentials != "" {
					return fmt.Errorf("%s; in use%s: %s", a.Page.Credentials, known.suffix(a.Replica), cmp.Or(a.Page.Source, "none"))
				}
			}
			return err
		}})
		c.check(ctx, check{"everything in " + name + " may be read", "everything-may-be-read", true, func(ctx context.Context) error {
			said, err := ask(ctx)
			if err != nil {
				return err
			}
			return checkPermissions(said)
		}})
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		c.check(ctx, check{"nothing keeps Fingerpost from writing in " + name, "nothing-keeps-from-writing", false, func(context.Context) error {
			err := errSkipped // there is nothing to write, or no right to
			for _, a := range known.clusters(hasName(name)) {
				switch {
				case a.Page.Writing.State == cluster.NotWriting || a.Page.Writing.State == cluster.ReadOnly:
				case a.Page.Writing.Problem != "":
					return warningf("%s%s", a.Page.Writing.Problem, known.suffix(a.Replica))
				default:
					err = nil
				}
			}
			return err
		}})
	}
	conditions := map[string]error{}
	for _, a := range known.pages {
		for _, l := range a.Page.Links {
			name := l.Namespace + "/" + l.Name
			conditions[name] = cmp.Or(conditions[name], checkAccepted(l))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(conditions)) {
		c.check(ctx, check{"Link " + name + " is accepted", "a-link-is-accepted", false, func(context.Context) error { return conditions[name] }})
	}
}

// refused returns what replicas may not read of a cluster.
func checkPermissions(said []cli.Response[debug.Cluster]) error {
	var all []string
	required := false
	for _, a := range said {
		for _, k := range a.Page.Kinds {
			text := k.Kind + " (" + string(k.Refused) + ")"
			if k.Refused == "" || k.Refused == metav1.StatusReasonNotFound || slices.Contains(all, text) { // no CRD, so there is none of it
				continue
			}
			all = append(all, text)
			required = required || slices.ContainsFunc(readPermissions, func(r permission) bool { return r.required && k.Kind == r.String() })
		}
	}
	switch {
	case len(all) == 0:
		return nil
	case required:
		return fmt.Errorf("grant get, list and watch on %s", strings.Join(all, ", "))
	default:
		return permanentWarningf("what depends on it is left out: grant get, list and watch on %s", strings.Join(all, ", "))
	}
}

func checkAccepted(l links.LinkStatus) error {
	for _, condition := range l.Conditions {
		if condition.Type == links.Accepted && condition.Status == metav1.ConditionFalse {
			return fmt.Errorf("%s: %s", condition.Reason, condition.Message)
		}
	}
	return nil
}

func checkServices(ctx context.Context, c *runner, known *knownReplicas) {
	c.beginCategory("fingerpost-services")
	c.check(ctx, check{"no mirrored or federated Service is half-made", "no-service-is-half-made", true, func(ctx context.Context) error {
		said, err := cli.FetchAll[debug.MalformedPage](ctx, known.all, "/debug/malformed")
		if err != nil {
			return err
		}
		all := debug.MalformedPage{}
		for _, a := range said {
			maps.Copy(all, a.Page)
		}
		var errs []error
		for _, name := range slices.Sorted(maps.Keys(all)) {
			errs = append(errs, fmt.Errorf("%s: %s", name, all[name]))
		}
		return errors.Join(errs...)
	}})
}

// linked returns the clusters that are linked, sorted by name, and what keeps from reading all of them.
func (s *environment) listLinkedClusters(ctx context.Context, config *rest.Config, client kubernetes.Interface, served bool, known *knownReplicas) ([]*linkedCluster, error) {
	all := map[string]*linkedCluster{}
	of := func(name string) *linkedCluster {
		if all[name] == nil {
			all[name] = &linkedCluster{name: name}
		}
		return all[name]
	}
	refusal := func(err error) error { // it hides nothing of what replicas read with rights of their own
		if apierrors.IsForbidden(err) && len(known.pages) > 0 {
			return warning{error: err}
		}
		return err
	}
	secrets, err := client.CoreV1().Secrets(s.controllerNamespace).List(ctx, metav1.ListOptions{LabelSelector: links.ClusterNameLabel})
	forbidden := apierrors.IsForbidden(err)
	errs := []error{refusal(err)}
	if err == nil {
		for _, secret := range secrets.Items {
			if secret.Type == links.SecretType {
				l := of(secret.Labels[links.ClusterNameLabel])
				l.secrets = append(l.secrets, secret)
			}
		}
	}
	if served {
		errs = append(errs, refusal(s.readLinks(ctx, config, client, of, known)))
	}
	var sorted []*linkedCluster
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if forbidden {
			all[name].missing = append(all[name].missing, warningf("the labelled Secrets in namespace %s cannot be read with your rights", s.controllerNamespace))
		}
		sorted = append(sorted, all[name])
	}
	return sorted, joinWarnings(errs...)
}

// worst joins errors; the result is a warning if all of them are.
func joinWarnings(errs ...error) error {
	joined := errors.Join(errs...)
	for _, err := range errs {
		if _, is := errors.AsType[warning](err); err != nil && !is {
			return errors.New(joined.Error())
		}
	}
	return joined
}

func (s *environment) readLinks(ctx context.Context, config *rest.Config, client kubernetes.Interface, of func(string) *linkedCluster, known *knownReplicas) error {
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
	_ = known.refresh(ctx) // which of them they read by now; who does not answer was told
	for _, link := range list.Items {
		l := of(specField(link, "targetClusterName"))
		if !known.readsLink(link.GetNamespace(), link.GetName()) {
			l.unread = append(l.unread, link.GetNamespace()+"/"+link.GetName())
			continue
		}
		l.links = append(l.links, link)
		name := specField(link, "clusterCredentialsSecret")
		if name == "" {
			continue
		}
		secret, err := client.CoreV1().Secrets(link.GetNamespace()).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			l.missing = append(l.missing, fmt.Errorf("there is no Secret %s/%s, which a Link names", link.GetNamespace(), name))
		case apierrors.IsForbidden(err):
			l.missing = append(l.missing, warningf("Secret %s/%s, which a Link names, cannot be read with your rights", link.GetNamespace(), name))
		case err != nil:
			l.missing = append(l.missing, fmt.Errorf("read Secret %s/%s, which a Link names: %w", link.GetNamespace(), name, err))
		case !slices.ContainsFunc(l.secrets, func(o corev1.Secret) bool {
			return string(o.Data[links.KubeconfigKey]) == string(secret.Data[links.KubeconfigKey])
		}):
			l.secrets = append(l.secrets, *secret)
		}
	}
	return nil
}

// spec returns a text of a Link's spec; empty if it is none.
func specField(link unstructured.Unstructured, field string) string {
	text, _, _ := unstructured.NestedString(link.Object, "spec", field)
	return text
}

// checkLinked looks at a linked cluster with the credentials of its Links.
func (s *environment) checkLinked(ctx context.Context, c *runner, l *linkedCluster, known *knownReplicas) {
	c.beginCategory("fingerpost-link-" + l.name)
	for _, name := range l.unread {
		c.check(ctx, check{"Fingerpost reads Link " + name, "fingerpost-knows-what-is-linked", false, func(context.Context) error {
			return warningf("Link %s is not read: it is not in the namespace that -link-namespace names", name)
		}})
	}
	if len(known.pages) > 0 {
		c.check(ctx, check{"Fingerpost knows " + l.name, "fingerpost-knows-what-is-linked", true, func(ctx context.Context) error {
			if err := known.refresh(ctx); err != nil || len(known.clusters(hasName(l.name))) > 0 {
				return err
			}
			return errors.New("no replica has this cluster: its Links are outside of -link-namespace, or its Secret is refused, of which the log tells")
		}})
	}
	if len(l.links) == 0 && len(l.secrets) == 0 {
		return // nothing of it is read
	}
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
	live := known.inContact(l.name)
	c.check(ctx, check{"its credentials can be used", "credentials-can-be-used", false, func(context.Context) error { return l.connect(c.timeout, live) }})
	if l.client != nil {
		answers := c.check(ctx, check{"its API server takes them", "credentials-are-taken", false, func(ctx context.Context) error {
			err := ping(ctx, l.client)
			if err != nil && !apierrors.IsUnauthorized(err) && live {
				return warningf("it cannot be asked from here, but from where Fingerpost runs: %w", err)
			}
			return err
		}})
		if answers && ping(ctx, l.client) == nil {
			s.checkRemote(ctx, c, l, known)
		}
	}
	for _, link := range l.links {
		s.checkGateway(ctx, c, link)
	}
}

// open makes a client from the Secret that is used first, and returns what is wrong with any. An address that is refused unless it is
// allowed is right where a replica is in contact.
func (l *linkedCluster) connect(timeout time.Duration, live bool) error {
	errs := slices.Clone(l.missing)
	if len(l.secrets) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("there is no Secret with a kubeconfig for it"))
	}
	for _, secret := range l.secrets {
		name := "Secret " + secret.Namespace + "/" + secret.Name
		config, err := links.Credentials(secret.Data[links.KubeconfigKey], links.Hosts{})
		if err != nil && live {
			if allowed, other := links.Credentials(secret.Data[links.KubeconfigKey], cli.AnyHost); other == nil {
				config, err = allowed, warningf("Fingerpost is in contact, so that -allow-kubeconfig-hosts may allow it: %w", err)
			}
		}
		if config != nil {
			err = joinWarnings(err, checkExpiry(config, time.Now()))
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		errs = append(errs, err)
		if config != nil && l.client == nil {
			config.Timeout, config.QPS = timeout, -1
			if l.client, err = kubernetes.NewForConfig(config); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
			l.config = config
		}
	}
	return joinWarnings(errs...)
}

// expiry judges when credentials end, if they tell.
func checkExpiry(config *rest.Config, now time.Time) error {
	end := cluster.Expiry(config)
	switch left := end.Sub(now); {
	case end.IsZero():
	case left <= 0:
		return fmt.Errorf("the token or certificate has expired %s ago: 'fingerpost link rotate' makes new ones", debug.Age(end, now))
	case left < minExpiry:
		return warningf("the token or certificate expires in %s: 'fingerpost link rotate' makes new ones", left.Round(time.Second))
	}
	return nil
}

// checkRemote asks a linked cluster's API server.
func (s *environment) checkRemote(ctx context.Context, c *runner, l *linkedCluster, known *knownReplicas) {
	c.check(ctx, check{"its clock agrees with this one", "clocks-agree", false, func(ctx context.Context) error { return checkClock(ctx, l.config) }})
	c.check(ctx, check{"its credentials have the rights to read", "credentials-have-rights", false, func(context.Context) error {
		var lacks []string
		required := false
		for _, r := range readPermissions {
			for _, verb := range []string{"list", "watch"} {
				once, cancel := context.WithTimeout(ctx, c.timeout) // for an answer, and there are many
				status, err := reviewAccess(once, l.client, r, verb)
				cancel()
				if err != nil {
					return fmt.Errorf("whether they may %s %s: %w", verb, r, err)
				}
				if !status.Allowed {
					lacks = append(lacks, verb+" "+r.String())
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
			return warningf("they may not %s: what depends on it is left out", strings.Join(lacks, ", "))
		}
	}})
	c.check(ctx, check{"its trust domain is the one that is told to clients", "trust-domains-agree", false, func(ctx context.Context) error {
		return s.checkTrustDomain(ctx, l, known)
	}})
	s.checkLeases(ctx, c, l.name, l.client, known, hasName(l.name))
}

// trustDomain compares what a cluster's mesh calls itself with what is told of it.
func (s *environment) checkTrustDomain(ctx context.Context, l *linkedCluster, known *knownReplicas) error {
	theirs, _, err := cli.MeshDomains(ctx, l.client, s.controllerNamespace)
	switch {
	case apierrors.IsNotFound(err):
		return errSkipped // there is nothing to compare with
	case apierrors.IsForbidden(err):
		return warningf("it cannot be told: grant get on configmaps of the name linkerd-config")
	case err != nil:
		return err
	}
	told := l.secrets[0].Annotations[links.TrustDomainAnnotation]
	if said := known.clusters(hasName(l.name)); len(said) > 0 {
		told = said[0].Page.TrustDomain
	}
	if told != "" && theirs != told {
		return fmt.Errorf("identities there end in %s, and clients are told %s, so that mTLS fails: set the annotation %s of the labelled Secret", theirs, told, links.TrustDomainAnnotation)
	}
	return nil
}

// checkLeases looks who may write in a cluster. A Lease is needed if a replica holds it or waits for it, or if nobody can tell.
func (s *environment) checkLeases(ctx context.Context, c *runner, where string, client kubernetes.Interface, known *knownReplicas, which func(debug.Cluster) bool) {
	for _, name := range writerLeases {
		c.check(ctx, check{"somebody holds the Lease " + name + " in " + where, "somebody-holds-the-lease", true, func(ctx context.Context) error {
			needed := len(known.pages) == 0 || slices.ContainsFunc(known.clusters(which), func(a cli.Response[debug.Cluster]) bool {
				return slices.Contains(strings.Split(a.Page.Writing.Wanted, ","), name)
			})
			lease, err := client.CoordinationV1().Leases(s.controllerNamespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
				return err
			}
			return checkHolder(lease, err, needed, time.Now())
		}})
	}
}

// held judges a Lease, or why it was not found. One that nobody holds matters if something is to be written.
func checkHolder(lease *coordinationv1.Lease, missing error, needed bool, now time.Time) error {
	switch {
	case missing != nil && !needed:
		return errSkipped
	case apierrors.IsNotFound(missing):
		return warningf("there is no such Lease: nobody writes EndpointSlices there")
	case missing != nil:
		return permanentWarningf("it may not be read from here: %w", missing)
	}
	spec := lease.Spec
	if spec.HolderIdentity == nil || *spec.HolderIdentity == "" {
		if !needed {
			return errSkipped // it was given up in good order
		}
		return warningf("nobody holds it: nobody writes EndpointSlices there")
	}
	if spec.RenewTime == nil || spec.LeaseDurationSeconds == nil {
		return warningf("%s holds it and does not say for how long", *spec.HolderIdentity)
	}
	if past := now.Sub(spec.RenewTime.Add(time.Duration(*spec.LeaseDurationSeconds) * time.Second)); past > maxSkew {
		return warningf("%s held it, until %s ago, and nobody has taken over: nobody writes EndpointSlices there", *spec.HolderIdentity, past.Round(time.Second))
	}
	return nil
}

// checkGateway connects to the addresses of a Link's gateway.
func (s *environment) checkGateway(ctx context.Context, c *runner, link unstructured.Unstructured) {
	addresses := specField(link, "gatewayAddress")
	if addresses == "" {
		return
	}
	port := cmp.Or(specField(link, "gatewayPort"), "4143")
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
			return warningf("of Link %s/%s: %w", link.GetNamespace(), link.GetName(), errors.Join(errs...))
		}
		return nil
	}})
}

package links

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation/watch"
)

// A secretNamespace is one whose Secrets are watched.
type secretNamespace struct {
	*api.Informer[*secret]
	cancel context.CancelFunc // nil for the controller namespace, which is an input of the Loop
}

// ready reports whether the Secrets were listed, or the listing was refused.
func (n *secretNamespace) ready() bool { return n.HasSynced() || watch.IsClosed(n.Refused()) }

// waitComplete waits until all labelled Secrets are known, as they are where none are read. It returns false if ctx
// ends first.
func (n *secretNamespace) waitComplete(ctx context.Context) bool {
	return n == nil || n.WaitComplete(ctx)
}

// labelled returns the Secrets with the label of a cluster; none if labelled ones are not read.
func (n *secretNamespace) labelled(cluster string) (all []*secret) {
	if n == nil || cluster == "" {
		return nil
	}
	for _, k := range n.Keys() {
		if s, found := n.Get(k); found && s.clusterName == cluster {
			all = append(all, s)
		}
	}
	return all
}

// secretNamed returns a Secret; or nil, and why there is none.
func (n *secretNamespace) secretNamed(k api.Key) (s *secret, why string) {
	if s, found := n.Get(k); found {
		return s, ""
	}
	if refused := n.Health().Refused; refused != "" {
		return nil, fmt.Sprintf("Secrets in namespace %s cannot be read (%s): "+
			"grant get, list and watch on them", k.Namespace, refused)
	}
	return nil, fmt.Sprintf("there is no Secret %s of type %s, which spec.clusterCredentialsSecret names",
		k, SecretType)
}

// watchNamespaces watches the Secrets of every namespace with a Link, and labelled ones, and stops watching others. The
// caller holds mu.
func (r *Reconciler) watchNamespaces() {
	needed := map[string]bool{}
	if r.controllers != nil {
		needed[r.options.ControllerNamespace] = true
	}
	for k := range r.seenLinks {
		needed[k.Namespace] = true
	}
	WatchNeeded(r.namespaces, needed, r.watchSecrets, func(n *secretNamespace) { n.cancel() })
}

// WatchNeeded stops the watches of namespaces that are not needed, and starts those that are lacking.
func WatchNeeded[W any](
	watches map[string]W, needed map[string]bool, start func(namespace string) W, stop func(W),
) {
	for namespace, w := range watches {
		if !needed[namespace] {
			stop(w)
			delete(watches, namespace)
		}
	}
	for namespace := range needed {
		if _, runs := watches[namespace]; !runs {
			watches[namespace] = start(namespace)
		}
	}
}

func (r *Reconciler) newSecretNamespace(name string) *secretNamespace {
	kind := api.Typed(corev1.SchemeGroupVersion, "secrets", "Secret", &corev1.Secret{})
	kind.Namespace = name
	kind.Fields = fields.OneTermEqualSelector("type", string(SecretType)).String()
	return &secretNamespace{Informer: api.NewInformer(r.conn, kind, newSecret, r.secretChanged)}
}

func (r *Reconciler) watchSecrets(name string) *secretNamespace {
	namespace := r.newSecretNamespace(name)
	var ctx context.Context
	ctx, namespace.cancel = context.WithCancel(r.ctx)
	r.wg.Go(func() { namespace.Run(ctx) })

	r.wg.Go(func() {
		isConcerned := func(l *Link) bool { return l.key.Namespace == name }
		select {
		case <-namespace.Synced():
		case <-namespace.Refused():
			r.enqueue(r.namesOf(isConcerned)...)
		case <-ctx.Done():
		}
		if watch.WaitClosed(ctx, namespace.Synced()) { // now it is known which Secrets do not exist
			r.enqueue(r.namesOf(isConcerned)...)
		}
	})

	return namespace
}

func (r *Reconciler) secretChanged(key api.Key) {
	names := r.namesOf(func(l *Link) bool { return l.key.Namespace == key.Namespace && l.secret == key.Name })
	if key.Namespace == r.options.ControllerNamespace {
		names = append(names, r.labelChanged(key)...)
		r.publishMembership()
	}
	r.enqueue(names...)
}

// labelChanged takes over which cluster a Secret has in its label, and returns those that it has and had there.
func (r *Reconciler) labelChanged(key api.Key) []string {
	s, found := r.controllers.Get(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	names := []string{r.labelled[key]}
	delete(r.labelled, key)
	if found && s.clusterName != "" {
		r.labelled[key] = s.clusterName
		names = append(names, s.clusterName)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

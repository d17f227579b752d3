package apply

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/internal/logs"
)

// Several installations may write into one cluster: one that runs there, and others that link it. Each of them knows
// other clusters, so neither can write for the other, and what both know must be written by one of them only.
//
// An installation is the UID of the namespace of its control plane, which no other has, whatever names its clusters
// have. In each cluster that it writes into it has one Lease, named after it. While a replica holds that, the Lease
// lists the source clusters whose endpoints the installation can write: it is a claim. A source belongs to the oldest
// claim that lists it. Claims are compared as they are observed, our own as well, so that all installations come to the
// same result, and none acts on a Lease that the others cannot see yet.
//
// Who can create a Lease in a namespace can make a claim there, and an old one wins. So a Lease is read only in the
// namespaces that an admin has named: that of the control plane, and -installation-namespaces. It is a claim for as
// long as it is renewed, and for a minute after that at most, whatever duration it names. Of each a bounded record is
// kept, and only the oldest count if there are many (maxClaims).
//
// When the owner of a source changes, because an older installation links it, or the owner unlinks it or is gone, the
// next one takes the slices of that source over as they are. For the time that a watch takes both may write; each of
// their requests names the version that it was planned from, so the later one is refused and planned again.
//
// It costs nothing but that the watch of our own Lease is one of all labelled Leases of its namespace, and one more
// watch for each namespace that is named besides.

const (
	// InstallationLabel is a label on what is written, and on Leases: the installation.
	InstallationLabel = "federation.fingerpost.io/installation"
	// sourcesAnnotation is an annotation of a Lease: the source clusters, separated by commas.
	sourcesAnnotation = "federation.fingerpost.io/source-clusters"
	// clusterAnnotation is an annotation of a Lease, for people: the cluster that the installation runs in.
	clusterAnnotation = "federation.fingerpost.io/installed-in"

	maxSources       = 1000 // of one Lease that count
	maxClaims        = 100  // in one cluster that count
	maxRenewal       = lease.MaxDuration
	installationPoll = 5 * time.Second
)

// claimMarks are the labels and annotations of a Lease that a claim is made of.
var claimMarks = []string{InstallationLabel, sourcesAnnotation, clusterAnnotation}

// OwnLease stands for the Lease of this installation, see [Campaign.Add].
const OwnLease = ""

// LeaseName returns the name of the Lease of an installation.
func LeaseName(installation string) string { return "fingerpost-" + installation }

var namespaceResource = schema.GroupResource{Resource: "namespaces"}

// readInstallation reads which installation this is, in the local cluster, until that succeeds or ctx ends.
func (c *Campaign) readInstallation(ctx context.Context, target *Target) {
	for ctx.Err() == nil {
		next := c.requestInstallation(ctx, target)
		switch now, _ := c.installation.Load(); {
		case now.id != "":
			return
		case ctx.Err() != nil, next == now:
		case next.id != "":
			target.Log.Info("This installation writes under Leases of its own", "installation", next.id)
			c.installation.Store(next)
			return
		default:
			logs.Warn(target.Log, "Nothing is written into any cluster until the UID of the control plane's namespace "+
				"is known",
				"namespace", c.options.Namespace, "error", next.problem)
			c.installation.Store(next)
		}

		target.pause(ctx, installationPoll)
	}
}

func (c *Campaign) requestInstallation(ctx context.Context, t *Target) installation {
	namespace, err := t.Client.CoreV1().Namespaces().Get(ctx, c.options.Namespace, metav1.GetOptions{})
	switch {
	case err == nil:
		return installation{id: string(namespace.UID)}
	case apierrors.IsForbidden(err):
		needed := Permission{Resource: namespaceResource, Namespace: c.options.Namespace, Verbs: []string{"get"}}
		err = &MissingPermissions{[]Permission{needed}}
	case apierrors.IsNotFound(err):
		err = errNoNamespace(c.options.Namespace)
	}
	return installation{problem: cluster.ErrorText(err)}
}

// errNoNamespace is why no Lease can be created in a cluster: it has no such namespace.
type errNoNamespace string

func (e errNoNamespace) Error() string {
	return fmt.Sprintf("there is no namespace %[1]s in this cluster for Leases, so that nothing is written: create "+
		"it, or have -controller-namespace name another", string(e))
}

// An installation is which one this is; empty until that is known, for a problem that is empty until it was tried.
type installation struct{ id, problem string }

// nameOwnLease names the Lease after this installation, once that is known; it returns false if ctx ends before.
// Until then it reports why it is not.
func (k *candidacy) nameOwnLease(ctx context.Context, spec *watch.Value[cluster.Spec]) bool {
	k.config.Name = LeaseName("unknown")
	for {
		now, changed := k.campaign.installation.Load()
		if now.id != "" {
			k.dropReport()
			k.config.Name, k.config.Labels = LeaseName(now.id), map[string]string{InstallationLabel: now.id}
			k.config.Annotations = k.campaign.annotations
			return true
		}

		s, _ := spec.Load()
		switch isWanted := len(k.wanted(s)) > 0; {
		case isWanted && now.problem != "":
			k.report(leaseState{state: cluster.ReadOnly, problem: now.problem})
		case isWanted:
			k.reportReviewing()
		}
		if !watch.WaitClosed(ctx, changed) {
			return false
		}
	}
}

// Installation returns which installation this is. It is known to tasks of OwnLease.
func (t *Target) Installation() string {
	now, _ := t.campaign.installation.Load()
	return now.id
}

// DisplayName returns a name of this installation for people, which no other has: its cluster, its namespace and the
// beginning of its UID. It is empty until that is known.
func (c *Campaign) DisplayName() string {
	now, _ := c.installation.Load()
	if now.id == "" {
		return ""
	}
	return c.options.Local + "/" + c.options.Namespace + "/" + now.id[:min(len(now.id), 8)]
}

// annotations returns those of our Leases: a level, which changes with the clusters that are linked.
func (c *Campaign) annotations() (map[string]string, <-chan struct{}) {
	names, changed := c.registry.Names()
	return map[string]string{
		sourcesAnnotation: strings.Join(names[:min(len(names), maxSources)], ","),
		clusterAnnotation: c.options.Local,
	}, changed
}

// Owners reports which installation writes the endpoints of a source cluster, in one cluster. It is known in the
// terms of OwnLease.
type Owners struct {
	log     logr.Logger
	changed watch.Value[struct{}]

	mu      sync.Mutex
	leases  map[api.Key]claim
	owners  map[string]string // by source; of the claims that have not expired; replaced whole
	held    map[string]string // installations that have a claim which has not expired, for people; replaced whole
	ignored int               // claims beyond maxClaims
	expiry  *time.Timer       // of the next claim that expires; nil before the first
}

// claim is the content of the Lease of one installation.
type claim struct {
	installation string
	text         string // which installation that is, for people
	created      time.Time
	version      string
	sources      []string
	until        time.Time // when it expires, unless it is renewed; zero if it is not held
}

// claims returns the Leases of a namespace that may be claims.
func claims(namespace string) api.Kind {
	kind := lease.Leases
	kind.Namespace, kind.Labels = namespace, InstallationLabel
	return kind
}

// followClaims watches the Leases of the further namespaces that were named until ctx ends. It returns once each was
// listed, or refused.
func (t *Target) followClaims(ctx context.Context, wg *sync.WaitGroup) {
	for _, namespace := range t.campaign.options.Installations {
		if namespace == t.campaign.options.Namespace {
			continue
		}
		var informer *api.Informer[*lease.Record]
		informer = api.NewInformer(t.Conn, claims(namespace), lease.Reduce(claimMarks...), func(k api.Key) {
			r, _ := informer.Get(k)
			t.Owners.recordLease(k, r)
		})
		wg.Go(func() { informer.Run(logr.NewContext(ctx, t.Log.V(1))) })

		select {
		case <-informer.Synced():
		case <-informer.Refused():
			logs.Warn(t.Log, "Installations with a control plane in another namespace are not seen, so that both may "+
				"write for the same clusters: grant list and watch on leases.coordination.k8s.io there",
				"namespace", namespace)
		case <-ctx.Done():
			return
		}
	}
}

func newClaim(key api.Key, of *lease.Record) (claim, bool) {
	if of == nil {
		return claim{}, false
	}
	id := of.Marks[InstallationLabel]
	if id == "" || key.Name != LeaseName(id) || len(validation.IsValidLabelValue(id)) > 0 {
		return claim{}, false
	}

	claim := claim{
		installation: id,
		created:      of.Created,
		version:      of.Version,
		text:         "the installation of Lease " + key.String(),
	}
	if in := of.Marks[clusterAnnotation]; in != "" && len(validation.IsValidLabelValue(in)) == 0 {
		claim.text += ", which runs in cluster " + in
	}

	if sources := of.Marks[sourcesAnnotation]; sources != "" {
		claim.sources = strings.SplitN(sources, ",", maxSources+1)
		claim.sources = claim.sources[:min(len(claim.sources), maxSources)]
	}
	if of.Holder != "" && of.Duration > 0 {
		claim.until = time.Now().Add(min(of.Duration, maxRenewal)) // the observer's clock
	}
	return claim, true
}

// recordLease records the state of a Lease. The same state again is no renewal. Renewals change no owner: when the
// claim would have expired, update finds that it does so later.
func (o *Owners) recordLease(key api.Key, of *lease.Record) {
	now, found := newClaim(key, of)
	o.mu.Lock()
	defer o.mu.Unlock()

	old := o.leases[key]
	switch {
	case !found:
		delete(o.leases, key)
	case old.version == now.version:
		return
	case o.leases == nil:
		o.leases = map[api.Key]claim{key: now}
	default:
		o.leases[key] = now
	}

	wasHeld, isLonger := old.until.After(time.Now()), !now.until.Before(old.until)
	if isRenewal := wasHeld && isLonger && slices.Equal(old.sources, now.sources); !isRenewal {
		o.update()
	}
}

// update computes owners, and does so again when the next claim expires. It needs mu.
func (o *Owners) update() {
	if o.expiry != nil {
		o.expiry.Stop()
	}
	now := time.Now()
	all := heldClaims(maps.Values(o.leases), now)
	o.bound(&all)

	held := map[string]string{}
	var next time.Time
	for _, c := range all {
		held[c.installation] = c.text
		if next.IsZero() || c.until.Before(next) {
			next = c.until
		}
	}

	if !next.IsZero() {
		o.expiry = time.AfterFunc(next.Sub(now), o.expire)
	}

	owners := ownersOf(all)
	if !maps.Equal(owners, o.owners) || !maps.Equal(held, o.held) {
		o.owners, o.held = owners, held
		o.changed.Store(struct{}{})
	}
}

// bound leaves out the claims that are too many, and reports that. It needs mu.
func (o *Owners) bound(all *[]claim) {
	ignored := max(0, len(*all)-maxClaims)
	if ignored > 0 && o.ignored == 0 {
		logs.Warn(o.log, "There are more Leases of installations than count, of which the oldest do: delete those "+
			"that no installation has any more", "count", maxClaims, "more", ignored)
	}
	o.ignored = ignored
	*all = (*all)[:len(*all)-ignored]
}

func (o *Owners) expire() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.update()
}

// forgetLeases ends what update began: nothing is left that expires.
func (o *Owners) forgetLeases() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.leases)
	o.update()
}

// Changed returns a channel that closes when the result of Load may change.
func (o *Owners) Changed() <-chan struct{} {
	_, changed := o.changed.Load()
	return changed
}

// Load returns which installation writes the endpoints of each source cluster that has one, and which installations
// have a Lease that is seen to be held, with a text for people; neither map changes afterwards. While ours is not held,
// as where the watch is behind, no source is ours: that a source has no owner does not mean that it was unlinked.
func (o *Owners) Load() (owners, held map[string]string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.owners, o.held
}

// heldClaims returns the claims that have not expired, the oldest first.
func heldClaims(all iter.Seq[claim], now time.Time) (held []claim) {
	for c := range all {
		if c.until.After(now) {
			held = append(held, c)
		}
	}
	slices.SortFunc(held, func(a, b claim) int {
		return cmp.Or(a.created.Compare(b.created), strings.Compare(a.installation, b.installation))
	})
	return held
}

// ownersOf returns, by source, the installation of the first claim to it.
func ownersOf(held []claim) map[string]string {
	owners := map[string]string{}
	for _, c := range held {
		for _, source := range c.sources {
			if _, taken := owners[source]; !taken {
				owners[source] = c.installation
			}
		}
	}
	return owners
}

package apply

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cluster/api"
)

const (
	// A missing permission is reviewed again after firstPermissionRetry, as it may be missing while RBAC is replaced,
	// and then ever more rarely, up to PermissionRetry. What is granted is accepted for firstPermissionRetry by
	// [Permissions.Review].
	firstPermissionRetry = 10 * time.Second

	// PermissionRetry is how long a write without permission need not be tried again: twice as long passes at most, so
	// that what is granted shows within a minute.
	PermissionRetry = 25 * time.Second
)

// A Permission is what RBAC must grant us.
type Permission struct {
	Resource  schema.GroupResource // its name may have a subresource, as in links/status
	Namespace string               // empty: all
	Name      string               // of one object; empty: of all
	Verbs     []string
}

func (p Permission) String() string {
	where := "in all namespaces"
	if p.Namespace != "" {
		where = "in namespace " + p.Namespace
	}
	return fmt.Sprintf("%s on %s %s", strings.Join(p.Verbs, ", "), p.Resource, where)
}

// MissingPermissions is the error that a cluster does not permit us to write.
type MissingPermissions struct{ All []Permission }

func (e *MissingPermissions) Error() string {
	var all []string
	for _, p := range e.All {
		all = append(all, p.String())
	}
	return "permissions are missing: grant " + strings.Join(all, ", and ")
}

// IsMissingPermissions reports whether an error is, or wraps, a [MissingPermissions].
func IsMissingPermissions(err error) bool {
	_, is := errors.AsType[*MissingPermissions](err)
	return is
}

// Permissions are what the credentials of one client may do, as the API server reports it: one right for each verb,
// resource and namespace. A write without permission is not tried, so that it does not fill the audit log, and a right
// is reviewed once for all who need it.
//
// The life of the answer for one right:
//
//	not known --review--> granted --a response is Forbidden, or a Review after 10 s--> reviewed again
//	              |
//	              '-----> missing --after 10 s, 20 s, 40 s, a minute, a minute, ...--> reviewed again
//
// Of several that are missing one is reviewed again, and the others once that is granted: so who may not write at all
// asks one question a minute.
//
// It may be used by several goroutines. While a right is reviewed others that need it wait for the answer, or for the
// end of their contexts; no lock is held meanwhile. It costs some 200 bytes for each right that was asked for. nil
// Permissions grant everything.
type Permissions struct {
	log    logr.Logger
	client kubernetes.Interface

	mu      sync.Mutex // a leaf
	known   map[right]*answer
	refused time.Time // when ReviewRefused accepted nothing
}

// A right is a permission for one verb.
type right struct {
	resource              schema.GroupResource
	namespace, name, verb string
}

// An answer is what the last review of a right has resulted in.
type answer struct {
	turn    chan struct{} // taken while the review is sent; it guards the rest
	granted bool
	at      time.Time     // zero: never
	pause   time.Duration // until it is reviewed again, if it is missing
}

// NewPermissions returns those of the credentials of a client, of which nothing is known yet.
func NewPermissions(log logr.Logger, client kubernetes.Interface) *Permissions {
	return &Permissions{log: log, client: client, known: map[right]*answer{}}
}

// Require returns nil if all permissions are granted, or were when they were reviewed last; [MissingPermissions] if
// some are not; or why the review failed. An API server that answers no reviews counts as one that grants: the write
// itself shows it.
func (p *Permissions) Require(ctx context.Context, needed ...Permission) error {
	err := p.check(ctx, math.MaxInt64, needed)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil
	}
	return err
}

// Review is a Require that accepts no grant older than 10 s, and for which an API server has to answer reviews.
func (p *Permissions) Review(ctx context.Context, needed ...Permission) error {
	return p.check(ctx, firstPermissionRetry, needed)
}

// ReviewRefused is a Review after a Forbidden response. It accepts no grant at all, if it is the first within 10 s:
// many requests may be refused at once.
func (p *Permissions) ReviewRefused(ctx context.Context, needed ...Permission) error {
	if p == nil {
		return nil
	}
	accepted := firstPermissionRetry
	p.mu.Lock()
	if time.Since(p.refused) >= accepted {
		p.refused, accepted = time.Now(), 0
	}
	p.mu.Unlock()
	return p.check(ctx, accepted, needed)
}

// Do sends a request that needs a permission, or returns [MissingPermissions]. If the response is Forbidden all the
// same, the permission is reviewed before the next one.
func (p *Permissions) Do(ctx context.Context, needed Permission, request func() error) error {
	if err := p.Require(ctx, needed); err != nil {
		return err
	}
	err := request()
	if apierrors.IsForbidden(err) && p != nil {
		p.forget(needed)
	}
	return err
}

func (p *Permissions) forget(granted Permission) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range granted.rights() {
		delete(p.known, r)
	}
}

// forgetAll forgets every answer: the client has other credentials.
func (p *Permissions) forgetAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.known)
}

func (p Permission) rights() (all []right) {
	for _, verb := range p.Verbs {
		all = append(all, right{p.Resource, p.Namespace, p.Name, verb})
	}
	return all
}

// check reviews what is not known, or not any more: grants are accepted for a time.
func (p *Permissions) check(ctx context.Context, accepted time.Duration, needed []Permission) error {
	if p == nil {
		return nil
	}

	var rights []right
	for _, permission := range needed {
		rights = append(rights, permission.rights()...)
	}
	denied, lacking := map[right]bool{}, false
	missing, others := p.split(rights)

	for i, r := range slices.Concat(missing, others) {
		granted, err := p.ask(ctx, r, accepted, lacking)
		if err != nil {
			return fmt.Errorf("review permissions: %w", err)
		}
		if !granted {
			denied[r] = true
			lacking = lacking || i < len(missing)
		}
	}
	if len(denied) == 0 {
		return nil
	}

	var all []Permission
	for _, permission := range needed {
		permission.Verbs = slices.DeleteFunc(slices.Clone(permission.Verbs), func(verb string) bool {
			return !denied[right{permission.Resource, permission.Namespace, permission.Name, verb}]
		})
		if len(permission.Verbs) > 0 {
			all = append(all, permission)
		}
	}
	return &MissingPermissions{all}
}

// split returns the rights that were missing, and the others.
func (p *Permissions) split(rights []right) (missing, others []right) {
	for _, each := range rights {
		answer := p.answerOf(each)
		select {
		case answer.turn <- struct{}{}:
			if !answer.at.IsZero() && !answer.granted {
				missing = append(missing, each)
			} else {
				others = append(others, each)
			}
			<-answer.turn
		default: // it is reviewed now
			others = append(others, each)
		}
	}
	return missing, others
}

func (p *Permissions) answerOf(r right) *answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known[r] == nil {
		p.known[r] = &answer{turn: make(chan struct{}, 1)}
	}
	return p.known[r]
}

// ask returns whether a right is granted. If another one is still lacking, what is known of this one is good enough.
func (p *Permissions) ask(
	ctx context.Context, of right, accepted time.Duration, lacking bool,
) (granted bool, err error) {
	answer := p.answerOf(of)
	select {
	case answer.turn <- struct{}{}:
		defer func() { <-answer.turn }()
	case <-ctx.Done():
		return false, ctx.Err()
	}

	if !answer.at.IsZero() && (lacking || answer.counts(accepted)) {
		return answer.granted, nil
	}

	resource, subresource, _ := strings.Cut(of.resource.Resource, "/")
	status, err := api.ReviewAccess(ctx, p.client, authorizationv1.ResourceAttributes{
		Group: of.resource.Group, Resource: resource, Subresource: subresource,
		Namespace: of.namespace, Name: of.name, Verb: of.verb,
	})
	if err != nil {
		return false, err
	}

	if !status.Allowed && (answer.granted || answer.at.IsZero()) {
		p.log.Info("A permission is missing",
			"verb", of.verb, "resource", of.resource.String(), "namespace", of.namespace)
	}
	answer.granted, answer.at = status.Allowed, time.Now()
	answer.pause = min(max(2*answer.pause, firstPermissionRetry), PermissionRetry)
	if answer.granted {
		answer.pause = 0
	}
	return answer.granted, nil
}

// counts reports whether an answer is accepted.
func (a *answer) counts(accepted time.Duration) bool {
	if !a.granted {
		accepted = a.pause
	}
	return time.Since(a.at) < accepted
}

// appendProblem adds a problem to those that are known, once.
func appendProblem(all, one string) string {
	switch {
	case one == "" || strings.Contains(all, one):
		return all
	case all == "":
		return one
	default:
		return all + "; " + one
	}
}

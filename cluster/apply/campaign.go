package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/transport"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/lease"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/internal/logs"
)

// nothingRetry is until a task that had nothing to write is asked again.
const nothingRetry = time.Minute

// ErrNothingToWrite is returned by [Task.Review] if a cluster has nothing to write about, such as a kind that it
// does not serve. Then the Lease is left to other candidates.
var ErrNothingToWrite = errors.New("there is nothing to write")

// A Task is what one writer does in the terms of a Lease.
type Task struct {
	Name string // for logs and reports, such as "slices of federated Services"

	// Wanted reports whether the task is to run in a cluster; nil: in each.
	Wanted func(cluster.Spec) bool

	// Needs are the permissions without which the task cannot run.
	Needs []Permission

	// Review returns nil if a task with these permissions can run: [ErrNothingToWrite] if it cannot, or why that is
	// not known. nil: it always can.
	Review func(ctx context.Context, t *Target) error

	// Run writes until the term ends, and returns nil then. If it returns before, with or without an error, it is
	// reviewed and run again after a pause.
	Run func(term context.Context, t *Target) error

	// Clean deletes what was written, once the task is not wanted any more or the cluster was unlinked. nil:
	// nothing is deleted.
	Clean func(term context.Context, t *Target) error
}

// Options are those of a Campaign.
type Options struct {
	Namespace string // of the control plane, in every cluster: the Leases are there
	// Installations are further namespaces in which Leases of other installations count, see Owners.
	Installations []string
	Local         string // name of the cluster that we run in
	Replica       string // distinguishes this replica from others
	Timing        lease.Timing
	Stop          <-chan struct{} // closed when the process is to end; nil: never
}

// A Campaign campaigns for Leases in every engaged cluster, and runs the tasks that share a Lease in its terms.
//
// In one cluster and for one Lease:
//
//	           nothing wanted                       no task can run, or
//	  .------------------------------.            the term has ended
//	  |                              |      .--------------------------------.
//	  v                              |      v                                |
//	NotWriting --a task is wanted--> Reviewing --a task can run--> Standby --Lease--> Holding: each task by itself
//	                                 |                                                review --> Run --> pause --.
//	                                 '--none can: ReadOnly, until permissions           ^                        |
//	                                    were granted (asked ever more rarely)           '------------------------'
//
// So a task that lacks a permission stops no other, and no replica holds a Lease that it can do nothing with. A
// cluster that is not written into any more is cleaned: the Lease is taken once more, if it stays free for as long
// as it would last, and each task deletes what it wrote.
//
// A free Lease that installations share is left to the one in the cluster itself for a moment, being nearest.
type Campaign struct {
	log      logr.Logger
	registry *cluster.Registry
	options  Options
	leases   []string          // in the order in which they were added
	tasks    map[string][]Task // by Lease

	installation watch.Value[installation]
}

// NewCampaign returns a Campaign without tasks. Its Engage is to be given to the registry.
func NewCampaign(log logr.Logger, registry *cluster.Registry, options Options) *Campaign {
	return &Campaign{log: log, registry: registry, options: options, tasks: map[string][]Task{}}
}

// Add adds a task that runs in the terms of a Lease, or of [OwnLease], before Engage is called.
func (c *Campaign) Add(leaseName string, task Task) {
	if c.tasks[leaseName] == nil {
		c.leases = append(c.leases, leaseName)
	}
	c.tasks[leaseName] = append(c.tasks[leaseName], task)
}

// Engage campaigns in one cluster until ctx ends. It is a [cluster.EngageFunc].
func (c *Campaign) Engage(ctx context.Context, spec *watch.Value[cluster.Spec], conn *api.Connection) {
	now, _ := spec.Load()
	target, err := c.newTarget(now, conn)
	if err != nil {
		c.log.Error(err, "Nothing is written into the cluster", "cluster", now.Name)
		return
	}

	var wg sync.WaitGroup
	defer wg.Wait()
	if target.Local && c.tasks[OwnLease] != nil {
		wg.Go(func() { c.readInstallation(ctx, target) })
	}
	for _, name := range c.leases {
		wg.Go(func() { c.campaign(ctx, target, name, spec) })
	}
	wg.Go(func() { target.reportFailures(ctx) })
}

func (c *Campaign) campaign(ctx context.Context, t *Target, name string, spec *watch.Value[cluster.Spec]) {
	k := &candidacy{Target: t, tasks: c.tasks[name], problems: map[string]error{}, config: lease.Config{
		Namespace: c.options.Namespace, Name: name, Identity: t.identity, Timing: c.options.Timing,
	}}
	if name != OwnLease || k.nameOwnLease(ctx, spec) {
		k.run(ctx, spec)
	}
}

// A Target is a cluster that is written into, over one connection.
type Target struct {
	Name    string
	Local   bool // it is the cluster that we run in
	Conn    *api.Connection
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	Log     logr.Logger
	Owners  Owners

	Permissions *Permissions

	campaign *Campaign
	identity string // in Leases; unique, because two Targets of one replica overlap while credentials are replaced

	failing *watch.Bell // rung when one of failures has changed

	mu       sync.Mutex // guards all below, and problems of candidacies; orders reports: Registry.mu is taken under it
	leases   map[string]leaseState
	failures []*Failures // of the Loops of the terms
}

// leaseState is what is reported about one Lease.
type leaseState struct {
	state   cluster.WritingState
	held    bool
	holder  string // another one; empty if it is not known
	problem string
}

func (c *Campaign) newTarget(spec cluster.Spec, conn *api.Connection) (*Target, error) {
	target := &Target{
		Name: spec.Name, Local: spec.Local, Conn: conn, Log: c.log.WithValues("cluster", spec.Name),
		campaign: c, identity: c.options.Replica + "_" + rand.String(8), leases: map[string]leaseState{},
		failing: watch.NewBell(),
	}
	target.Owners.log = target.Log
	// The user agent distinguishes replicas in the API server's audit log.
	client := &http.Client{
		Transport: transport.NewUserAgentRoundTripper("fingerpost/"+target.identity, conn.HTTPClient.Transport),
	}

	var err error
	if target.Client, err = kubernetes.NewForConfigAndClient(conn.Config, client); err != nil {
		return nil, fmt.Errorf("client for writing: %w", err)
	}
	if target.Dynamic, err = dynamic.NewForConfigAndClient(conn.Config, client); err != nil {
		return nil, fmt.Errorf("client for custom resources: %w", err)
	}
	target.Permissions = NewPermissions(target.Log, target.Client)
	return target, nil
}

var leaseResource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// leasePermission is one on Leases in a namespace; empty: in all.
func leasePermission(namespace string, verbs ...string) Permission {
	return Permission{Resource: leaseResource, Namespace: namespace, Verbs: verbs}
}

// A candidacy is for one Lease in one cluster.
type candidacy struct {
	*Target
	config   lease.Config
	tasks    []Task
	problems map[string]error // of the tasks that cannot run, by name; nil error: they run. Guarded by mu
}

// run campaigns while a task is wanted, until ctx ends. Tasks that are not wanted any more clean up.
func (k *candidacy) run(ctx context.Context, spec *watch.Value[cluster.Spec]) {
	for ctx.Err() == nil {
		now, changed := spec.Load()
		wanted := k.wanted(now)
		running, end := context.WithCancel(ctx)
		var wg sync.WaitGroup
		if len(wanted) > 0 {
			wg.Go(func() { k.runWhilePermitted(running, wanted) })
		} else {
			k.report(leaseState{})
		}

		next := wanted
		for sameTasks(next, wanted) && watch.WaitClosed(ctx, changed) {
			now, changed = spec.Load()
			next = k.wanted(now)
		}
		end()
		wg.Wait()
		cleaning, stop := context.WithCancel(context.WithoutCancel(ctx))

		switch {
		case ctx.Err() == nil:
			dropped := slices.DeleteFunc(wanted, func(t Task) bool { return containsTask(next, t) })
			wg.Go(func() {
				k.waitWanted(cleaning, spec, dropped)
				stop()
			})
			k.clean(cleaning, dropped)
		case errors.Is(context.Cause(ctx), cluster.ErrUnlinked):
			k.clean(cleaning, wanted)
		}

		stop()
		wg.Wait()
	}
}

// waitWanted waits until one of the tasks is wanted, or ctx ends.
func (k *candidacy) waitWanted(ctx context.Context, spec *watch.Value[cluster.Spec], tasks []Task) {
	for {
		now, changed := spec.Load()
		if slices.ContainsFunc(k.wanted(now), func(t Task) bool { return containsTask(tasks, t) }) ||
			!watch.WaitClosed(ctx, changed) {
			return
		}
	}
}

func (k *candidacy) wanted(spec cluster.Spec) (tasks []Task) {
	for _, t := range k.tasks {
		if t.Wanted == nil || t.Wanted(spec) {
			tasks = append(tasks, t)
		}
	}
	return tasks
}

func (t Task) same(o Task) bool { return t.Name == o.Name }

func containsTask(tasks []Task, t Task) bool { return slices.ContainsFunc(tasks, t.same) }

func sameTasks(a, b []Task) bool { return slices.EqualFunc(a, b, Task.same) }

// runWhilePermitted campaigns for the Lease while at least one of the tasks can run, until ctx ends.
func (k *candidacy) runWhilePermitted(ctx context.Context, tasks []Task) {
	k.reportReviewing()

	retry := k.newRetry()
	for ctx.Err() == nil {
		retry.began = time.Now()
		err := k.review(ctx, tasks)
		if err == nil {
			err = k.elect(ctx, k.acquireDelay(), func(term context.Context) error { return k.lead(term, tasks) })
		}
		if ctx.Err() != nil {
			return
		}

		switch {
		case errors.Is(err, ErrNothingToWrite):
			k.report(leaseState{})
		case lacksPermission(err):
			k.report(leaseState{state: cluster.ReadOnly, problem: cluster.ErrorText(err)})
		default:
			k.report(k.failed(err))
		}
		retry.wait(ctx, err)
	}
}

// failed returns what is known of a Lease that could not be campaigned for: why, and besides what was known before.
func (k *candidacy) failed(err error) leaseState {
	k.mu.Lock()
	defer k.mu.Unlock()
	last := k.leases[k.config.Name]
	if last.state != cluster.ReadOnly {
		last.state = cluster.Standby
	}
	last.held, last.problem = false, cluster.ErrorText(err)
	return last
}

// standby returns that a Lease is waited for. Why it could not be campaigned for last is still so until the next
// attempt works: one after the other fails, and between two of them nothing is better.
func (k *candidacy) standby(holder string, works bool) leaseState {
	k.mu.Lock()
	defer k.mu.Unlock()
	problem := k.leases[k.config.Name].problem
	if works {
		problem = ""
	}
	return leaseState{state: cluster.Standby, holder: holder, problem: problem}
}

// review returns nil if the Lease can be campaigned for and one of the tasks can run, or why none can.
func (k *candidacy) review(ctx context.Context, tasks []Task) error {
	if err := k.reviewLease(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	clear(k.problems)
	k.mu.Unlock()
	for _, t := range tasks {
		k.setProblem(t, t.review(ctx, k.Target))
	}
	return k.problemOfAll(tasks)
}

// reviewLease returns nil if the Lease can be campaigned for. Who may not watch or update Leases, as the account of
// Linkerd's policy controller, polls and patches it. That of an installation is watched together with those of others.
func (k *candidacy) reviewLease(ctx context.Context) error {
	k.config.Polled = false
	err := k.Permissions.Review(ctx, k.leaseRights())
	if !IsMissingPermissions(err) || k.config.Labels != nil {
		return err
	}

	k.config.Polled = true
	if k.Permissions.Review(ctx, k.leaseRights()) != nil {
		return err // it names the rights that are best
	}
	return nil
}

// leaseRights are those without which the Lease cannot be campaigned for.
func (k *candidacy) leaseRights() Permission {
	if k.config.Polled {
		return leasePermission(k.config.Namespace, "get", "create", "patch")
	}
	return leasePermission(k.config.Namespace, "get", "list", "watch", "create", "update")
}

// lead runs each of the tasks in one term. It returns an error if none can run any more, so that the Lease is
// given up.
func (k *candidacy) lead(term context.Context, tasks []Task) error {
	term, end := context.WithCancelCause(term)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end(nil)

	for _, t := range tasks {
		wg.Go(func() {
			retry := k.newRetry()
			for term.Err() == nil {
				retry.began = time.Now()
				err := k.runTask(term, t)
				if all := k.problemOfAll(tasks); all != nil {
					end(all)
				}
				if term.Err() == nil {
					retry.wait(term, err)
				}
			}
		})
	}

	<-term.Done()
	if err := context.Cause(term); cannotRun(err) {
		return err
	}
	return nil
}

// runTask reviews and runs one task, and returns why it waits unless the term has ended.
func (k *candidacy) runTask(term context.Context, task Task) error {
	err := task.review(term, k.Target)
	if err == nil {
		k.setProblem(task, nil)
		err = task.Run(term, k.Target)
	}
	if term.Err() != nil {
		return nil //nolint:nilerr // an error of the task follows from that
	}

	if err == nil {
		err = fmt.Errorf("the %s are not written: the task has ended", task.Name)
	}
	k.Log.Info("A task of the Lease waits", "lease", k.config.Name, "task", task.Name, "reason", err.Error())
	k.setProblem(task, err)
	return err
}

// review returns nil if the task can run, or why it cannot.
func (t Task) review(ctx context.Context, target *Target) error {
	err := target.Permissions.Review(ctx, t.Needs...)
	if err != nil || t.Review == nil {
		return err
	}
	return t.Review(ctx, target)
}

// cannotRun reports whether an error of a task means that it cannot run with the permissions, and the kinds, that
// there are.
func cannotRun(err error) bool {
	return lacksPermission(err) || errors.Is(err, ErrNothingToWrite)
}

// lacksPermission reports whether it is a right that is missing. What a policy, a webhook or a quota denies is allowed
// to the account, and may pass at any time.
func lacksPermission(err error) bool {
	return IsMissingPermissions(err) || apierrors.IsForbidden(err) && api.CauseOf(err).Reason == api.Forbidden
}

// setProblem notes why a task does not run; nil: it does.
func (k *candidacy) setProblem(t Task, err error) {
	k.mu.Lock()
	k.problems[t.Name] = err
	held := k.leases[k.config.Name].held
	k.mu.Unlock()
	if held {
		k.reportHeld()
	}
}

// problemOfAll returns nil if one of the tasks can run, or else why they cannot.
func (k *candidacy) problemOfAll(tasks []Task) error {
	k.mu.Lock()
	defer k.mu.Unlock()

	var all []error
	for _, t := range tasks {
		err := k.problems[t.Name]
		if !cannotRun(err) {
			return nil
		}
		if !errors.Is(err, ErrNothingToWrite) {
			all = append(all, err)
		}
	}

	if len(all) == 0 {
		return ErrNothingToWrite
	}
	return errors.Join(all...)
}

// acquireDelay is how long a free Lease that installations share is left to the one in the cluster itself.
func (k *candidacy) acquireDelay() time.Duration {
	if k.Local || k.config.Labels != nil {
		return 0
	}
	return k.campaign.options.Timing.Renew / 4
}

// A retry is how long something that has ended is left alone before it is tried again.
type retry struct {
	*candidacy
	began   time.Time // when it was tried last
	lacking time.Duration
}

func (k *candidacy) newRetry() *retry { return &retry{candidacy: k, lacking: firstPermissionRetry} }

// wait waits for seconds, and ever longer while permissions are missing.
func (r *retry) wait(ctx context.Context, err error) {
	if time.Since(r.began) > PermissionRetry {
		r.lacking = firstPermissionRetry
	}

	d := r.campaign.options.Timing.Duration
	least := d / 2
	switch {
	case lacksPermission(err):
		d, r.lacking = r.lacking, min(2*r.lacking, PermissionRetry)
		least = d // an earlier answer would be the last one
	case errors.Is(err, ErrNothingToWrite):
		least = nothingRetry / 2
		d = nothingRetry
	}
	r.pause(ctx, least+time.Duration(rand.Int63nRange(0, int64(d))))
}

// pause waits, but no longer than until the connection has new credentials, or ctx ends.
func (t *Target) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Conn.Changed():
		t.Permissions.forgetAll()
	case <-ctx.Done():
	}
}

// elect runs lead in each term of the Lease, until ctx ends or an error makes campaigning useless. A free Lease is
// left to other candidates for delay.
func (k *candidacy) elect(ctx context.Context, delay time.Duration, lead func(term context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	if k.config.Labels != nil {
		defer k.Owners.forgetLeases()
	}
	defer wg.Wait()
	defer cancel()

	config := k.config
	config.AcquireDelay = delay
	if config.Labels != nil {
		config.Watched, config.Marks, config.Changed = claims(config.Namespace), claimMarks, k.Owners.recordLease
		k.followClaims(ctx, &wg)
	}

	elector := lease.NewElector(k.Log, k.Client, k.Conn, config)
	wg.Go(func() { k.reportHolder(ctx, elector) })
	return k.whyNotElected(ctx, elector.Run(ctx, lead))
}

// whyNotElected returns an error of an Elector with the right that is missing, or the namespace, if it is for that.
func (k *candidacy) whyNotElected(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, lease.ErrUnreadable) && k.config.Polled:
		return &MissingPermissions{[]Permission{leasePermission(k.config.Namespace, "get")}}
	case errors.Is(err, lease.ErrUnreadable):
		return &MissingPermissions{[]Permission{leasePermission(k.config.Namespace, "list", "watch")}}
	case apierrors.IsNotFound(err):
		return errNoNamespace(k.config.Namespace)
	case apierrors.IsForbidden(err):
		if missing := k.Permissions.ReviewRefused(ctx, k.leaseRights()); IsMissingPermissions(missing) {
			return missing // it names the right
		}
	}
	return err
}

// clean has tasks delete what they wrote, if no other installation goes on writing: if the Lease stays free for as
// long as it would last.
func (k *candidacy) clean(ctx context.Context, tasks []Task) {
	tasks = slices.DeleteFunc(tasks, func(t Task) bool { return t.Clean == nil })
	if len(tasks) == 0 {
		return
	}

	timing := k.campaign.options.Timing
	ctx, cancel := context.WithTimeout(ctx, 3*timing.Duration)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		watch.WaitClosed(ctx, k.campaign.options.Stop)
		cancel()
	})

	if k.review(ctx, tasks) != nil {
		return
	}

	errCleaned := errors.New("what was written is deleted")
	err := k.elect(ctx, timing.Duration, func(term context.Context) error {
		for _, t := range tasks {
			if err := k.runClean(term, t); err != nil {
				return err
			}
		}
		return errCleaned
	})

	switch {
	case errors.Is(err, errCleaned):
	case ctx.Err() != nil:
		k.Log.Info("What was written into the cluster stays: it is wanted again, another replica goes on writing, " +
			"or the cluster is out of reach")
	default:
		logs.Warn(k.Log, "What was written into the cluster stays: deleting it failed", "error", cluster.ErrorText(err))
	}
}

// runClean has a task delete what it wrote, again while that fails.
func (k *candidacy) runClean(term context.Context, t Task) error {
	for failures := 0; ; failures++ {
		err := t.Clean(term, k.Target)
		if err == nil || apierrors.IsForbidden(err) || term.Err() != nil {
			return err
		}
		if failures == 0 {
			k.Log.Info("What was written into the cluster was not deleted, which is tried again",
				"error", cluster.ErrorText(err))
		}
		k.pause(term, k.campaign.options.Timing.Renew)
	}
}

// reportHolder reports whether this replica holds the Lease, whenever that changes, and whenever the Lease does:
// while credentials are replaced the Target before this one reports as well, and its last report must not stay. An
// attempt works once the holder was seen to renew the Lease, or if it has lasted longer than one that fails.
func (k *candidacy) reportHolder(ctx context.Context, elector *lease.Elector) {
	settled := time.NewTimer(4 * k.config.Timing.Duration)
	defer settled.Stop()

	for lasts := false; ; {
		held, changed := elector.Held()
		observed := elector.Observed()
		if held {
			k.reportHeld()
		} else {
			k.report(k.standby(elector.Holder(), lasts || elector.IsRenewed()))
		}

		select {
		case <-changed:
		case <-observed:
		case <-settled.C:
			lasts = true
		case <-ctx.Done():
			return
		}
	}
}

// reportHeld reports that the Lease is held here, and which of the tasks cannot run.
func (k *candidacy) reportHeld() {
	state := leaseState{state: cluster.Holding, held: true}
	k.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(k.problems)) {
		if err := k.problems[name]; err != nil && !errors.Is(err, ErrNothingToWrite) {
			state.problem = appendProblem(state.problem, err.Error())
			if cannotRun(err) {
				state.state = cluster.ReadOnly
			}
		}
	}
	k.mu.Unlock()
	k.report(state)
}

// report records the state of the Lease, and reports that of all to the Registry.
func (k *candidacy) report(s leaseState) {
	k.mu.Lock()
	before := k.leases[k.config.Name]
	k.leases[k.config.Name] = s
	k.publish()
	k.mu.Unlock()
	if s.state == cluster.ReadOnly && before != s {
		k.Log.Info("Fingerpost may not write into this cluster; discovery is not affected",
			"lease", k.config.Name, "reason", s.problem)
	}
}

// reportReviewing reports that it is not known yet whether there is something to write, unless that is known from
// before.
func (k *candidacy) reportReviewing() {
	k.mu.Lock()
	isKnown := k.leases[k.config.Name].state != cluster.NotWriting
	k.mu.Unlock()
	if !isKnown {
		k.report(leaseState{state: cluster.Reviewing})
	}
}

// dropReport takes back what was reported under the present name of the Lease.
func (k *candidacy) dropReport() {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.leases, k.config.Name)
}

// writingOf sums up the states of all Leases: Holding if one is, else Standby if one is waited for. Of those that are
// reviewed it is not known yet whether anything is wrong.
func writingOf(leases map[string]leaseState) cluster.Writing {
	var writing cluster.Writing
	isReviewing := false

	for _, name := range slices.Sorted(maps.Keys(leases)) {
		state := leases[name]
		switch {
		case state.state == cluster.Holding:
			writing.State = cluster.Holding
		case state.state == cluster.Reviewing:
			isReviewing = true
		case writing.State != cluster.Holding && state.state != cluster.NotWriting && writing.State != cluster.Standby:
			writing.State = state.state
		}

		if state.held {
			writing.Leases = append(writing.Leases, name)
		}
		if state.held || state.state == cluster.Standby {
			writing.Wanted = append(writing.Wanted, name)
		}

		if state.holder != "" {
			if writing.Holders == nil {
				writing.Holders = map[string]string{}
			}
			writing.Holders[name] = state.holder
		}
		writing.Problem = appendProblem(writing.Problem, state.problem)
	}

	if isReviewing && writing.State != cluster.Holding && writing.Problem == "" {
		writing.State = cluster.Reviewing
	}
	return writing
}

package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
)

// A category is the title above checks of one kind.
type category string

const (
	localCategory   category = "fingerpost-kubernetes"
	installCategory category = "fingerpost-install"
	meshCategory    category = "fingerpost-mesh"
	replicaCategory category = "fingerpost-replicas"
	clusterCategory category = "fingerpost-clusters"
	writerCategory  category = "fingerpost-writers"
	linkCategory    category = "fingerpost-links"
	serviceCategory category = "fingerpost-services"
)

// A check is one condition that should hold.
type check struct {
	category    category
	description string
	anchor      string        // of its heading in docs/checks.md
	retry       bool          // it may pass later by itself
	takes       time.Duration // longer than a response
	run         func(ctx context.Context) error
}

// A warning is an error that does not fail the report.
type warning struct{ error }

func warningf(format string, args ...any) error { return warning{fmt.Errorf(format, args...)} }

// A permanent error or warning does not go away by itself, so that waiting is of no use.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

func permanentErrorf(format string, args ...any) error { return permanent{fmt.Errorf(format, args...)} }

func permanentWarningf(format string, args ...any) error { return permanent{warningf(format, args...)} }

// A detail is no error: it follows the description of a check that succeeds.
type detail string

func (d detail) Error() string { return string(d) }

// A failing error is that of a check which some Problems fail, the first of which has a class.
type failing struct {
	error
	class problem.Class
}

func (f failing) Unwrap() error { return f.error }

func isWarning(err error) bool {
	_, is := errors.AsType[warning](err)
	return is
}

// errSkipped is the error of a check that does not apply. It is not reported.
var errSkipped = errors.New("skipped")

// skipped is an errSkipped whose reason is printed.
type skipped struct{ reason string }

func (s skipped) Error() string { return errSkipped.Error() + ": " + s.reason }
func (s skipped) Unwrap() error { return errSkipped }

// errNotChecked is the error of a check that did not come to its end before the command was interrupted.
var errNotChecked = errors.New("not checked")

// A runner runs checks and reports their results.
//
// Checks that are run together run at the same time, and are printed in their order. One that may pass later by
// itself is set aside, so that it does not delay the results of others: wait runs it again until it passes, the
// deadline is reached or the command is interrupted, and prints it then. Meanwhile progress shows why it waits.
//
// What a check finds is its error: nil or a detail is success, a warning does not fail the report, and every other
// error does, but for errSkipped and errNotChecked. A permanent one is never set aside.
//
// Each check is reported once, whatever becomes of the command: what is still set aside at the end with the error of
// its last run, and what did not come to its end as not checked, which makes the report an incomplete one. So checks
// neither retry nor look at the clock, and those of what replicas report do not even send requests: before they are
// run again, refresh reads all pages once. A check may take as long as its timeout; one that ignores its context
// delays all others.
//
// One goroutine calls its methods; those of checks call once alone, which changes nothing.
type runner struct {
	to       io.Writer // nil to print everything at the end
	short    bool      // print only what did not succeed
	deadline time.Time // of waiting
	timeout  time.Duration
	pause    time.Duration // between two tries
	progress *cli.Progress // nil: none

	report      checkReport
	printed     category // that was printed last
	interrupted bool
	again       bool // checks are run that were set aside
	waiting     []waitingCheck
}

type waitingCheck struct {
	check
	err error // of its last run
}

func newRunner(wait, timeout time.Duration) *runner {
	return &runner{
		deadline: time.Now().Add(wait), timeout: timeout, pause: 2 * time.Second, report: checkReport{Success: true},
	}
}

// run runs checks, and sets those aside that may pass later.
func (r *runner) run(ctx context.Context, checks ...check) {
	results := make([]chan error, len(checks))
	for i, c := range checks {
		results[i] = make(chan error, 1)
		go func() { results[i] <- r.once(ctx, c) }()
	}

	for i, c := range checks {
		err := r.await(c.description, results[i])
		if mayPass(c, err) && r.canWait(ctx) {
			r.waiting = append(r.waiting, waitingCheck{c, err})
			continue
		}
		r.add(c, err)
	}
}

// must runs one check on which others depend, waits for it, and reports whether it succeeds or is a warning.
func (r *runner) must(ctx context.Context, c check) bool {
	var last error
	run := c.run
	c.run = func(ctx context.Context) error {
		last = run(ctx)
		return last
	}
	r.run(ctx, c)
	r.wait(ctx, nil)
	return !r.interrupted && (last == nil || isWarning(last))
}

// wait runs the checks that were set aside again and again, each time after refresh, until all are decided.
func (r *runner) wait(ctx context.Context, refresh func(context.Context)) {
	r.again = true
	defer func() { r.again = false }()

	for len(r.waiting) > 0 && r.canWait(ctx) && r.sleep(ctx) {
		if refresh != nil {
			once, cancel := context.WithTimeout(ctx, r.timeout)
			refresh(once)
			cancel()
		}
		if ctx.Err() != nil {
			break
		}

		var again []check
		for _, w := range r.waiting {
			again = append(again, w.check)
		}
		r.waiting = nil
		r.run(ctx, again...)
	}

	r.interrupted = r.interrupted || ctx.Err() != nil && len(r.waiting) > 0
	for _, w := range r.waiting {
		r.add(w.check, w.err)
	}
	r.waiting = nil
}

func (r *runner) canWait(ctx context.Context) bool {
	return ctx.Err() == nil && time.Now().Add(r.pause).Before(r.deadline)
}

// mayPass reports whether a check that has failed may pass later by itself.
func mayPass(c check, err error) bool {
	if err == nil || !c.retry || errors.Is(err, errSkipped) || errors.Is(err, errNotChecked) {
		return false
	}
	_, passed := errors.AsType[detail](err)
	_, lasts := errors.AsType[permanent](err)
	return !passed && !lasts
}

// once runs a check once.
func (r *runner) once(ctx context.Context, c check) error {
	if ctx.Err() != nil {
		return errNotChecked
	}
	once, cancel := context.WithTimeout(ctx, r.timeout+c.takes)
	defer cancel()
	err := c.run(once)
	if err != nil && ctx.Err() != nil {
		return errNotChecked
	}
	return api.InWords(err)
}

// await returns the result of a check, and shows meanwhile that it is waited for.
func (r *runner) await(description string, result <-chan error) error {
	if r.progress == nil || r.again && !r.progress.Terminal {
		return <-result
	}
	tick := time.NewTicker(cli.SpinnerInterval)
	defer tick.Stop()

	for {
		select {
		case err := <-result:
			return err
		case <-tick.C:
			r.progress.Show(description, description)
		}
	}
}

// sleep pauses before the next try, and shows what is waited for. It returns false if ctx ends.
func (r *runner) sleep(ctx context.Context) bool {
	return r.progress.Pause(ctx, r.pause, r.waiting[0].description, r.waitingText)
}

// waitingText describes the first check that is waited for, and for how long.
func (r *runner) waitingText() string {
	w, more := r.waiting[0], ""
	if n := len(r.waiting) - 1; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("waiting up to %s (--wait) for: %s%s: %s",
		time.Until(r.deadline).Round(time.Second), w.description, more, oneLine(w.err))
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// add adds the outcome of a check to the report, and prints it.
func (r *runner) add(check check, err error) {
	result := checkResult{Description: check.description, Result: resultSuccess}
	if d, is := errors.AsType[detail](err); is {
		result.Description += ": " + string(d)
		err = nil
	}

	switch {
	case errors.Is(err, errSkipped):
		r.printSkipped(check, err)
		return
	case errors.Is(err, errNotChecked):
		r.interrupted = true
		result.Result, result.Error = resultWarning, err.Error()
	case isWarning(err):
		result.Result = resultWarning
	case err != nil:
		result.Result, r.report.Success = resultError, false
	}

	if err != nil {
		result.Error, result.Hint = oneLine(err), hintFor(check, err)
	}

	name := string(check.category)
	i := slices.IndexFunc(r.report.Categories, func(in *checkCategory) bool { return in.Name == name })
	if i < 0 {
		i = len(r.report.Categories)
		r.report.Categories = append(r.report.Categories, &checkCategory{Name: name})
	}
	in := r.report.Categories[i]
	in.Checks = append(in.Checks, result)
	r.printResult(check.category, result, err)
}

// hintFor returns where to read on about a check that did not succeed.
func hintFor(c check, err error) string {
	if f, is := errors.AsType[failing](err); is {
		return docsURL + f.class.Runbook()
	}
	return hintsURL + c.anchor
}

func (r *runner) printResult(of category, result checkResult, err error) {
	r.progress.Clear()
	if r.to == nil || r.short && result.Result == resultSuccess {
		return
	}

	r.printTitle(of)
	if errors.Is(err, errNotChecked) {
		fmt.Fprintf(r.to, "– %s: not checked\n", cli.Printable(result.Description))
		return
	}
	fmt.Fprintf(r.to, "%s %s\n", glyphs[result.Result], cli.Printable(result.Description))
	if err == nil {
		return
	}

	for line := range strings.Lines(err.Error()) {
		wrapped := cli.Wrap(cli.Printable(strings.TrimSpace(line)), cli.TableWidth-4)
		fmt.Fprintf(r.to, "    %s\n", strings.Join(wrapped, "\n    "))
	}
	fmt.Fprintf(r.to, "    see %s for hints\n", result.Hint)
}

// printSkipped prints why a check does not apply, if there is a reason.
func (r *runner) printSkipped(check check, err error) {
	reason, has := errors.AsType[skipped](err)
	r.progress.Clear()
	if r.to == nil || r.short || !has {
		return
	}
	r.printTitle(check.category)
	text := cli.Wrap(cli.Printable(reason.Error()), cli.TableWidth-4)
	fmt.Fprintf(r.to, "– %s\n    %s\n", cli.Printable(check.description), strings.Join(text, "\n    "))
}

// printTitle prints the title of a category above its first result.
func (r *runner) printTitle(of category) {
	if r.printed == of {
		return
	}
	if r.printed != "" {
		fmt.Fprintln(r.to)
	}
	title := cli.Printable(string(of))
	fmt.Fprintf(r.to, "%s\n%s\n", title, strings.Repeat("-", len(title)))
	r.printed = of
}

// finish prints what is left of the report, and returns ErrFailed if a check has failed.
func (r *runner) finish(to io.Writer) error {
	r.progress.Clear()
	if r.to == nil {
		if err := cli.PrintJSON(to, r.report); err != nil {
			return err
		}
	} else {
		result := resultSuccess
		switch {
		case !r.report.Success:
			result = resultError
		case r.interrupted:
			result = resultWarning
		}

		if r.printed != "" {
			fmt.Fprintln(to)
		}
		fmt.Fprintf(to, "Status check results are %s\n", glyphs[result])
	}

	switch {
	case !r.report.Success:
		return ErrFailed
	case r.interrupted:
		return errInterrupted
	}
	return nil
}

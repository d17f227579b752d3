package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	pageTimeout   = 10 * time.Second
	maxPageBytes  = 256 << 20
	listPodsEvery = 3 // rounds of watchPeriod
)

var watchPeriod = 2 * time.Second // less in tests

// A debugCommand shows a page of the debug servers of all replicas: as a table or as JSON, once or whenever
// it has changed.
type debugCommand struct {
	ReplicaFlags
	output string
	watch  bool
}

func newDebugCommand(version string) debugCommand {
	return debugCommand{ReplicaFlags: NewReplicaFlags(version)}
}

func (d *debugCommand) addDebugFlags(cmd *cobra.Command, outputs ...string) {
	d.AddFlags(cmd)
	d.addShowFlags(cmd, outputs...)
}

func (d *debugCommand) addShowFlags(cmd *cobra.Command, outputs ...string) {
	addOutputFlag(cmd, &d.output, outputs...)
	cmd.Flags().BoolVarP(&d.watch, "watch", "w", false,
		"read the page every 2 s, until interrupted: a terminal is redrawn, and elsewhere lines that "+
			"changed are printed")
}

// The values of -o.
const (
	tableOutput = "table"
	wideOutput  = "wide"
	jsonOutput  = "json"
	yamlOutput  = "yaml"
	nameOutput  = "name"
)

// addOutputFlag adds -o with table, json, yaml and others.
func addOutputFlag(cmd *cobra.Command, output *string, others ...string) {
	AddChoice(cmd, output, "output", "o", "", append([]string{tableOutput, jsonOutput, yamlOutput}, others...)...)
}

// A view is how a command shows a page of all replicas.
type view[T, V any] struct {
	path  string
	merge func([]Response[T]) V
	// print adds the page to a frame, for people. If there are several replicas, it names them.
	print func(f *frame, page V, several bool, now time.Time)
	check func(V) error // why the page is not what was asked for, at the end; nil if it always is
}

// show reads a page of every replica, merges the responses and prints the result. Replicas that fail are an
// error at the end; the pages of the others are shown nevertheless.
//
// With --watch it does so again and again. What is shown is the last frame that has a page: rounds in which no
// replica responds leave it, so that a rollout does not empty a terminal. Only if the first round fails the command
// ends. A terminal is redrawn, with the errors of the round below the page. Elsewhere errors go to stderr, and of
// a table the lines are printed whose key is not in the frame before; keys leave out what changes by itself.
//
// Replicas are opened anew after a failure, and each few rounds if other Pods are ready: what is open is not closed
// before its successor is, and stays if there is none.
func show[T, V any](cmd *cobra.Command, flags *debugCommand, view view[T, V]) error {
	ctx := cmd.Context()
	replicas, err := flags.Open(ctx)
	if err != nil {
		return err
	}

	defer func() { CloseAll(replicas) }()
	ticker := time.NewTicker(watchPeriod)
	defer ticker.Stop()
	var shown *frame

	for round := 1; ; round++ {
		responses, failed := FetchAll[T](ctx, replicas, view.path)
		if shown != nil && ctx.Err() != nil {
			return nil // interrupted
		}

		next, unexpected, err := view.newFrame(cmd, flags, responses, len(replicas) > 1)
		switch {
		case err != nil:
			return err
		case next == nil && shown == nil:
			return failed
		case !flags.watch:
			return cmp.Or(next.printAll(), errors.Join(failed, unexpected))
		}

		if err := flags.printUpdate(cmd, shown, next, failed); err != nil {
			return err
		}
		shown = cmp.Or(next, shown)
		// Pods may have been replaced.
		if failed != nil || round%listPodsEvery == 0 && flags.podsChanged(ctx, replicas) {
			replicas = flags.reopen(cmd, replicas)
		}

		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// newFrame returns what is shown of the responses; nil for none.
func (v view[T, V]) newFrame(
	cmd *cobra.Command, flags *debugCommand, responses []Response[T], several bool,
) (f *frame, unexpected, err error) {
	if len(responses) == 0 {
		return nil, nil, nil
	}

	f = &frame{Screen: NewScreen(cmd.OutOrStdout())}
	page := v.merge(responses)
	if v.check != nil {
		unexpected = v.check(page)
	}
	if isForMachines(flags.output) {
		return f, unexpected, f.addPage(page, flags.output)
	}
	v.print(f, page, several, asOf(responses))
	return f, unexpected, nil
}

// asOf returns as of when ages are shown: the time of the first response. While others are waited for, or for those
// that never come, nothing becomes older. Replicas are asked at the same time.
func asOf[T any](responses []Response[T]) time.Time {
	first := func(a, b Response[T]) int { return a.at.Compare(b.at) }
	return slices.MinFunc(responses, first).at
}

// printUpdate prints what differs from the frame that is shown, nil for none. Without a next frame that is the error
// of the replicas only.
func (d *debugCommand) printUpdate(cmd *cobra.Command, shown, next *frame, failed error) error {
	screen := NewScreen(cmd.OutOrStdout())
	if !screen.Terminal {
		printError(cmd, failed)
		if next == nil {
			return nil
		}
		return next.printAfter(shown, d.output)
	}

	redrawn := frame{Screen: screen, lines: slices.Clone(cmp.Or(next, shown).lines)}
	if failed != nil {
		redrawn.printf("fingerpost: %s", failed)
	}
	return redrawn.redraw()
}

// reopen returns the replicas that there are now, and closes those before. If they cannot be opened those stay.
func (d *debugCommand) reopen(cmd *cobra.Command, before []Replica) []Replica {
	all, err := d.Open(cmd.Context())
	if err == nil {
		CloseAll(before)
		return all
	}
	if cmd.Context().Err() == nil && !NewScreen(cmd.OutOrStdout()).Terminal {
		printError(cmd, err)
	}
	return before
}

// isForMachines reports whether -o asks for a page as it is.
func isForMachines(output string) bool { return output == jsonOutput || output == yamlOutput }

// addPage adds a page for machines.
func (f *frame) addPage(page any, output string) error {
	var b bytes.Buffer
	if err := printPage(&b, page, output); err != nil {
		return err
	}
	for text := range strings.Lines(b.String()) {
		text = strings.TrimSuffix(text, "\n")
		f.lines = append(f.lines, line{text, text})
	}
	return nil
}

// printAfter prints the lines that changed, or a whole page for machines if any did.
func (f *frame) printAfter(shown *frame, output string) error {
	switch {
	case shown == nil:
		return f.printAll()
	case isForMachines(output):
		if slices.Equal(f.lines, shown.lines) {
			return nil
		}
		if output == yamlOutput {
			fmt.Fprintln(f, "---")
		}
		return f.printAll()
	default:
		return f.printChanged(shown)
	}
}

// printError prints an error, if there is one, while the command goes on.
func printError(cmd *cobra.Command, err error) {
	if err != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "fingerpost:", PrintableLines(err.Error()))
	}
}

// A Response is a page of one replica.
type Response[T any] struct {
	Replica string
	Page    T

	at time.Time // when it came
}

// FetchAll reads a page of every replica at the same time, and returns the responses in the order of the
// replicas. The error names the replicas that fail; if all fail in the same way it has that text once.
func FetchAll[T any](ctx context.Context, replicas []Replica, path string) (responses []Response[T], err error) {
	all := make([]Response[T], len(replicas))
	errs := make([]error, len(replicas))
	var wg sync.WaitGroup
	for i, r := range replicas {
		wg.Go(func() {
			all[i].Replica = r.Name
			errs[i] = r.Fetch(ctx, path, &all[i].Page)
			all[i].at = time.Now()
		})
	}
	wg.Wait()
	texts := sets.New[string]()

	for i, r := range replicas {
		if errs[i] == nil {
			responses = append(responses, all[i])
			continue
		}
		texts.Insert(errs[i].Error())
		err = errors.Join(err, fmt.Errorf("%s: %w", r.Name, errs[i]))
	}

	if len(responses) == 0 && len(texts) == 1 {
		return nil, errs[0]
	}
	return responses, err
}

// Fetch decodes a page of the replica's debug server into what to points to.
func (r *Replica) Fetch(ctx context.Context, path string, to any) error {
	body, err := r.fetchBody(ctx, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, to); err != nil {
		return fmt.Errorf("the server's response: %w", err)
	}
	return nil
}

// fetchBody reads a page of the replica's debug or admin server.
func (r *Replica) fetchBody(ctx context.Context, path string) ([]byte, error) {
	if r.Err != nil {
		return nil, r.Err
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.Patience, pageTimeout))
	defer cancel()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.Addr+path, nil)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", r.Addr, err)
	}
	client := &http.Client{Transport: r.Transport}
	response, err := client.Do(request)
	if err != nil {
		return nil, r.responseError(err)
	}

	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxPageBytes))
	if err != nil || response.StatusCode == http.StatusOK {
		return body, err
	}

	text := bytes.TrimSpace(body)
	noSuchPage := response.StatusCode == http.StatusNotFound && bytes.HasPrefix(text, []byte("404"))
	if len(text) == 0 || noSuchPage {
		return nil, fmt.Errorf("%s%s: %s: the server may be of another version",
			r.target, path, response.Status)
	}
	marks := map[int]int{http.StatusNotFound: ExitNotFound, http.StatusBadRequest: ExitUsage}
	return nil, WithExitCode(cmp.Or(marks[response.StatusCode], ExitFailed), errors.New(string(text)))
}

// responseError names what did not respond. At the end of a forwarded port the error's own addresses are
// those of this host.
func (r *Replica) responseError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no response from %s within %s", r.target, pageTimeout)
	}
	if r.target == r.Addr {
		return fmt.Errorf("no response from %s (is it the right address?): %w", r.target, err)
	}

	if e, is := errors.AsType[*url.Error](err); is {
		err = e.Err
	}
	if e, is := errors.AsType[*net.OpError](err); is {
		err = e.Err
	}
	return fmt.Errorf("no response from %s: %w", r.target, err)
}

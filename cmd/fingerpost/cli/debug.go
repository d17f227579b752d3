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
	addChoice(cmd, output, "output", "o", "", append([]string{tableOutput, jsonOutput, yamlOutput}, others...)...)
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
func show[T, V any](cmd *cobra.Command, d *debugCommand, v view[T, V]) error {
	ctx := cmd.Context()
	replicas, done, err := d.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { done() }()
	ticker := time.NewTicker(watchPeriod)
	defer ticker.Stop()
	var shown *frame
	for round := 1; ; round++ {
		responses, failed := FetchAll[T](ctx, FetchPage, replicas, v.path)
		switch {
		case shown != nil && ctx.Err() != nil:
			return nil // interrupted
		case shown == nil && len(responses) == 0:
			return failed
		}
		next := &frame{Screen: NewScreen(cmd.OutOrStdout())}
		redraws := d.watch && next.Terminal
		var unexpected error
		if len(responses) > 0 {
			page := v.merge(responses)
			if v.check != nil {
				unexpected = v.check(page)
			}
			if err := d.fill(next, page, func() { v.print(next, page, len(replicas) > 1, time.Now()) }); err != nil {
				return err
			}
		}
		switch {
		case !d.watch:
			if err := next.print(); err != nil {
				return err
			}
			return errors.Join(failed, unexpected)
		case redraws:
			if len(responses) == 0 {
				next.lines = slices.Clone(shown.lines)
			}
			if failed != nil {
				next.printf("fingerpost: %s", failed)
			}
			err = next.redraw()
		default:
			printError(cmd, failed)
			if len(responses) > 0 {
				err = next.printAfter(shown, d.output)
			}
		}
		if err != nil {
			return err
		}
		if len(responses) > 0 {
			shown = next
		}
		if failed != nil || round%listPodsEvery == 0 && d.podsChanged(ctx, replicas) { // Pods may have been replaced
			others, othersDone, err := d.Open(ctx)
			switch {
			case err == nil:
				done()
				replicas, done = others, othersDone
			case ctx.Err() == nil && !redraws:
				printError(cmd, err)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// fill adds a page to a frame, in the form that -o names.
func (d *debugCommand) fill(f *frame, page any, printTable func()) error {
	if d.output != jsonOutput && d.output != yamlOutput {
		printTable()
		return nil
	}
	var b bytes.Buffer
	if err := printPage(&b, page, d.output); err != nil {
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
		return f.print()
	case output == jsonOutput || output == yamlOutput:
		if slices.Equal(f.lines, shown.lines) {
			return nil
		}
		if output == yamlOutput {
			fmt.Fprintln(f, "---")
		}
		return f.print()
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
}

// A FetchFunc decodes a page of a replica's debug server.
type FetchFunc func(ctx context.Context, from Replica, path string, to any) error

// FetchAll reads a page of every replica at the same time, and returns the responses in the order of the
// replicas. The error names the replicas that fail; if all fail in the same way it has that text once.
func FetchAll[T any](
	ctx context.Context, fetch FetchFunc, replicas []Replica, path string,
) (responses []Response[T], err error) {
	pages := make([]T, len(replicas))
	errs := make([]error, len(replicas))
	var wg sync.WaitGroup
	for i, r := range replicas {
		wg.Go(func() { errs[i] = fetch(ctx, r, path, &pages[i]) })
	}
	wg.Wait()
	texts := map[string]bool{}
	for i, r := range replicas {
		if errs[i] == nil {
			responses = append(responses, Response[T]{r.Name, pages[i]})
			continue
		}
		texts[errs[i].Error()] = true
		err = errors.Join(err, fmt.Errorf("%s: %w", r.Name, errs[i]))
	}
	if len(responses) == 0 && len(texts) == 1 {
		return nil, errs[0]
	}
	return responses, err
}

// FetchPage decodes a page of a replica's debug server into what to points to. It is a FetchFunc.
func FetchPage(ctx context.Context, from Replica, path string, to any) error {
	body, err := fetchBody(ctx, from, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, to); err != nil {
		return fmt.Errorf("the server's response: %w", err)
	}
	return nil
}

// fetchBody reads a page of a replica's debug or admin server.
func fetchBody(ctx context.Context, from Replica, path string) ([]byte, error) {
	if from.Err != nil {
		return nil, from.Err
	}
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+from.Addr+path, nil)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", from.Addr, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, from.responseError(err)
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
			from.target, path, response.Status)
	}
	marks := map[int]int{http.StatusNotFound: ExitNotFound, http.StatusBadRequest: ExitUsage}
	return nil, WithExitCode(cmp.Or(marks[response.StatusCode], ExitFailed), errors.New(string(text)))
}

// responseError names what did not respond. At the end of a forwarded port the error's own addresses are
// those of this host.
func (r Replica) responseError(err error) error {
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

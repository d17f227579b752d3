package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
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

func (d *debugCommand) addDebugFlags(cmd *cobra.Command) {
	d.AddFlags(cmd)
	addOutputFlag(cmd, &d.output)
	cmd.Flags().BoolVarP(&d.watch, "watch", "w", false,
		"read the page every 2 s and print it again when it has changed, until interrupted")
}

// The values of -o.
const (
	tableOutput = "table"
	jsonOutput  = "json"
)

func addOutputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", tableOutput, "table or json")
	values := cobra.FixedCompletions([]string{tableOutput, jsonOutput}, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.RegisterFlagCompletionFunc("output", values) // it fails for a flag that does not exist
}

// checkOutput refuses any other -o.
func checkOutput(output string) error {
	if output != tableOutput && output != jsonOutput {
		return fmt.Errorf("-o %s is neither table nor json", output)
	}
	return nil
}

// A printFunc prints a page as a table. If there are several replicas, the table names them.
type printFunc[V any] func(to io.Writer, page V, several bool, now time.Time) error

// showPages reads a page of every replica, merges the responses and prints the result. Replicas that fail are
// an error at the end; the pages of the others are shown nevertheless.
func showPages[T, V any](
	cmd *cobra.Command,
	d *debugCommand,
	path string,
	merge func([]Response[T]) V,
	printTable printFunc[V],
) error {
	if err := checkOutput(d.output); err != nil {
		return err
	}
	ctx := cmd.Context()
	replicas, done, err := d.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { done() }()
	ticker := time.NewTicker(watchPeriod)
	defer ticker.Stop()
	var shown []byte
	for round := 1; ; round++ {
		responses, failed := FetchAll[T](ctx, replicas, path)
		switch {
		case shown != nil && ctx.Err() != nil:
			return nil // interrupted
		case shown == nil && len(responses) == 0:
			return failed
		case len(responses) > 0:
			text, err := render(merge(responses), d.output, printTable, len(replicas) > 1)
			if err != nil {
				return err
			}
			if err := d.printChanged(cmd.OutOrStdout(), text, shown); err != nil {
				return err
			}
			shown = text
		}
		if !d.watch {
			return failed
		}
		printError(cmd, failed)
		if failed != nil || round%listPodsEvery == 0 && d.podsChanged(ctx, replicas) { // Pods may have been replaced
			others, othersDone, err := d.Open(ctx)
			switch {
			case err == nil:
				done()
				replicas, done = others, othersDone
			case ctx.Err() == nil:
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

func render[V any](page V, output string, printTable printFunc[V], several bool) ([]byte, error) {
	var b bytes.Buffer
	if output == jsonOutput {
		err := PrintJSON(&b, page)
		return b.Bytes(), err
	}
	err := printTable(&b, page, several, time.Now())
	return b.Bytes(), err
}

// printChanged prints a page if it differs from the one before, with the time in between if it is a table.
func (d *debugCommand) printChanged(to io.Writer, text, before []byte) error {
	if bytes.Equal(text, before) {
		return nil
	}
	if before != nil && d.output == tableOutput {
		fmt.Fprintf(to, "\n%s\n", time.Now().Format(time.TimeOnly))
	}
	_, err := to.Write(text)
	return err
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

// FetchAll reads a page of every replica at the same time, and returns the responses in the order of the
// replicas. The error names the replicas that fail; if all fail in the same way it has that text once.
func FetchAll[T any](ctx context.Context, replicas []Replica, path string) (responses []Response[T], err error) {
	pages := make([]T, len(replicas))
	errs := make([]error, len(replicas))
	var wg sync.WaitGroup
	for i, r := range replicas {
		wg.Go(func() { errs[i] = FetchPage(ctx, r, path, &pages[i]) })
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

// FetchPage reads a page of a replica's debug server.
func FetchPage[T any](ctx context.Context, from Replica, path string, to *T) error {
	body, err := fetchBody(ctx, from, path)
	if err != nil {
		return err
	}
	var page T // a zero value, whatever to holds
	if err := json.Unmarshal(body, &page); err != nil {
		return fmt.Errorf("the server's response: %w", err)
	}
	*to = page
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
	return nil, errors.New(string(text))
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

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
	pageBytes     = 256 << 20 // bound on what is read of a page
	watchPeriod   = 2 * time.Second
	listPodsEvery = 3 // of so many rounds: which Pods there are is asked
)

// A pager is a command that shows a page of the debug servers of all replicas: for people or for machines, once or whenever it has
// changed.
type debugCommand struct {
	ReplicaFlags
	output string
	watch  bool
}

func (p *debugCommand) addFlags(cmd *cobra.Command) {
	p.ReplicaFlags.AddFlags(cmd)
	outputFlag(cmd, &p.output)
	cmd.Flags().BoolVarP(&p.watch, "watch", "w", false, "ask each 2 s, and show again what has changed, until interrupted")
}

func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "table", "table or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// tableOrJSON refuses another -o.
func tableOrJSON(output string) error {
	if output != "table" && output != "json" {
		return fmt.Errorf("-o %s is neither table nor json", output)
	}
	return nil
}

// show asks every replica for a page, and shows what merge makes of the answers: as JSON, or as print does. several says whether there
// is more than one replica to tell apart. Replicas that do not answer are an error in the end, and hide nothing of what others say.
func showPages[T, V any](
	cmd *cobra.Command, p *debugCommand, path string, merge func([]Response[T]) V, print func(to io.Writer, said V, several bool, now time.Time) error,
) error {
	if err := tableOrJSON(p.output); err != nil {
		return err
	}
	ctx, to := cmd.Context(), cmd.OutOrStdout()
	replicas, done, err := p.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { done() }()
	ticker := time.NewTicker(watchPeriod)
	defer ticker.Stop()
	var shown []byte
	for round := 1; ; round++ {
		answers, failed := FetchAll[T](ctx, replicas, path)
		if shown != nil && ctx.Err() != nil {
			return nil
		}
		if len(answers) == 0 && shown == nil {
			return failed
		}
		if len(answers) > 0 {
			var out bytes.Buffer
			if said := merge(answers); p.output == "json" {
				err = PrintJSON(&out, said)
			} else {
				err = print(&out, said, len(replicas) > 1, time.Now())
			}
			if err != nil {
				return err
			}
			if !bytes.Equal(shown, out.Bytes()) {
				if shown != nil && p.output == "table" {
					fmt.Fprintf(to, "\n%s\n", time.Now().Format(time.TimeOnly))
				}
				shown = out.Bytes()
				if _, err := to.Write(shown); err != nil {
					return err
				}
			}
		}
		if !p.watch {
			return failed
		}
		if failed != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "fingerpost:", PrintableLines(failed.Error()))
		}
		if failed != nil || round%listPodsEvery == 0 && p.podsChanged(ctx, replicas) { // a Pod may be gone, and another one there
			again, end, err := p.Open(ctx)
			if err == nil {
				done()
				replicas, done = again, end
			} else if ctx.Err() == nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "fingerpost:", PrintableLines(err.Error()))
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// An answer is a page of one replica.
type Response[T any] struct {
	Replica string
	Page    T
}

// fetchAll reads a page of each replica, at once, and returns the answers in the order of the replicas. The error names those that do not
// answer; what is said by all of them is said once.
func FetchAll[T any](ctx context.Context, replicas []Replica, path string) (answers []Response[T], err error) {
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
			answers = append(answers, Response[T]{r.Name, pages[i]})
			continue
		}
		texts[errs[i].Error()] = true
		err = errors.Join(err, fmt.Errorf("%s: %w", r.Name, errs[i]))
	}
	if len(answers) == 0 && len(texts) == 1 {
		return nil, errs[0]
	}
	return answers, err
}

// fetch reads a page of a replica's debug server.
func FetchPage[T any](ctx context.Context, from Replica, path string, to *T) error {
	body, err := getPage(ctx, from, path)
	if err != nil {
		return err
	}
	var page T // nothing is left of what was read before
	if err := json.Unmarshal(body, &page); err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	*to = page
	return nil
}

// getPage returns a page of a server's debug or admin server.
func getPage(ctx context.Context, from Replica, path string) ([]byte, error) {
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
		if from.target == from.Addr {
			return nil, fmt.Errorf("no answer from %s (is it the right address?): %w", from.target, err)
		}
		if e, is := errors.AsType[*url.Error](err); is { // our end of what is forwarded says nothing
			err = e.Err
		}
		if e, is := errors.AsType[*net.OpError](err); is {
			err = e.Err
		}
		return nil, fmt.Errorf("no answer from %s: %w", from.target, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, pageBytes))
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(string(bytes.TrimSpace(body)))
		if len(bytes.TrimSpace(body)) == 0 || response.StatusCode == http.StatusNotFound && bytes.HasPrefix(body, []byte("404")) {
			err = fmt.Errorf("%s%s: %s: the server may be of another version", from.target, path, response.Status)
		}
	}
	return body, err
}

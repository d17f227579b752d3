package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

const (
	pageTimeout = 10 * time.Second
	pageBytes   = 256 << 20 // bound on what is read of a page
	watchPeriod = 2 * time.Second
)

// A pager is a command that shows a page of the debug server: as a table or as it is, once or whenever it has changed.
type pager struct {
	reach
	output string
	watch  bool
}

func (p *pager) flags(cmd *cobra.Command) {
	p.reach.flags(cmd, debugPort)
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

// show shows a page. print makes a table of it.
func (p *pager) show(cmd *cobra.Command, path string, print func(to io.Writer, body []byte, now time.Time) error) error {
	if err := tableOrJSON(p.output); err != nil {
		return err
	}
	ctx, to := cmd.Context(), cmd.OutOrStdout()
	server, done, err := p.one(ctx)
	if err != nil {
		return err
	}
	defer done()
	ticker := time.NewTicker(watchPeriod)
	defer ticker.Stop()
	var shown []byte
	for {
		body, err := getPage(ctx, server.Addr, path)
		var out bytes.Buffer
		switch {
		case err != nil:
		case p.output == "json":
			out.Write(body)
		default:
			err = print(&out, body, time.Now())
		}
		switch {
		case err != nil && (!p.watch || shown == nil):
			return err
		case err != nil && ctx.Err() == nil:
			fmt.Fprintln(cmd.ErrOrStderr(), "fingerpost:", err)
		case err == nil && !bytes.Equal(shown, out.Bytes()):
			if shown != nil && p.output == "table" {
				fmt.Fprintf(to, "\n%s\n", time.Now().Format(time.TimeOnly))
			}
			shown = out.Bytes()
			if _, err := to.Write(shown); err != nil {
				return err
			}
		}
		if !p.watch {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// getPage returns a page of a server's debug or admin server.
func getPage(ctx context.Context, addr, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", addr, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("no answer from %s (is it the right --debug-addr?): %w", addr, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, pageBytes))
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(string(bytes.TrimSpace(body)))
		if len(bytes.TrimSpace(body)) == 0 || response.StatusCode == http.StatusNotFound && bytes.HasPrefix(body, []byte("404")) {
			err = fmt.Errorf("%s%s: %s: the server may be of another version", addr, path, response.Status)
		}
	}
	return body, err
}

// decode reads a page.
func decode[T any](body []byte) (page T, err error) {
	if err = json.Unmarshal(body, &page); err != nil {
		err = fmt.Errorf("the server's answer: %w", err)
	}
	return page, err
}

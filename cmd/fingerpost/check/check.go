// Package check has the health report: what replicas know, and what can be seen from where the command runs.
package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
)

// errChecks says that a check has failed, which was told already.
var ErrFailed = errors.New("a check has failed")

// hintsURL is where each check has a heading.
const hintsURL = "https://github.com/fingerpost/fingerpost/blob/main/docs/checks.md#"

// The results of a check, as Linkerd calls them.
const (
	resultSuccess = "success"
	resultWarning = "warning"
	resultError   = "error"
)

var glyphs = map[string]string{resultSuccess: "√", resultWarning: "‼", resultError: "×"}

// A checkReport is what 'linkerd check' reads of an extension.
type checkReport struct {
	Success    bool             `json:"success"`
	Categories []*checkCategory `json:"categories"`
}

type checkCategory struct {
	Name   string        `json:"categoryName"`
	Checks []checkResult `json:"checks"`
}

type checkResult struct {
	Description string `json:"description"`
	Hint        string `json:"hint,omitempty"`
	Error       string `json:"error,omitempty"`
	Result      string `json:"result"`
}

// A check is one thing that should be right.
type check struct {
	description string
	anchor      string // of its hint in docs/checks.md
	retry       bool   // it may become right by itself
	run         func(ctx context.Context) error
}

// warning is an error that fails no check.
type warning struct {
	error
	permanent bool // it does not become right by itself
}

func warningf(format string, args ...any) error { return warning{error: fmt.Errorf(format, args...)} }

func permanentWarningf(format string, args ...any) error {
	return warning{fmt.Errorf(format, args...), true}
}

// errSkipped is of a check that cannot be made, and is not told.
var errSkipped = errors.New("skipped")

// A checker makes checks and tells what comes of them.
type runner struct {
	to       io.Writer // nil to tell all at the end
	short    bool      // tell only what is not right
	deadline time.Time // for what is tried again
	timeout  time.Duration
	pause    time.Duration // between two tries

	report   checkReport
	printed  string // the category that was told last
	category string
}

// begin begins a category.
func (c *runner) beginCategory(category string) { c.category = category }

// check makes a check, again and again if it may become right, and reports whether it is, or is only warned of.
func (c *runner) check(ctx context.Context, k check) bool {
	var err error
	for {
		once, cancel := context.WithTimeout(ctx, c.timeout)
		err = k.run(once)
		cancel()
		warned, _ := errors.AsType[warning](err)
		if err == nil || !k.retry || warned.permanent || errors.Is(err, errSkipped) || !time.Now().Add(c.pause).Before(c.deadline) {
			break
		}
		timer := time.NewTimer(c.pause)
		select {
		case <-timer.C:
			continue
		case <-ctx.Done():
			timer.Stop()
		}
		break
	}
	if errors.Is(err, errSkipped) {
		return false
	}
	result := checkResult{Description: k.description, Result: resultSuccess}
	if err != nil {
		result.Result, result.Error, result.Hint = resultError, strings.ReplaceAll(err.Error(), "\n", "; "), hintsURL+k.anchor
		if _, is := errors.AsType[warning](err); is {
			result.Result = resultWarning
		}
	}
	c.add(result)
	return result.Result != resultError
}

func (c *runner) add(r checkResult) {
	if r.Result == resultError {
		c.report.Success = false
	}
	if n := len(c.report.Categories); n == 0 || c.report.Categories[n-1].Name != c.category {
		c.report.Categories = append(c.report.Categories, &checkCategory{Name: c.category})
	}
	last := c.report.Categories[len(c.report.Categories)-1]
	last.Checks = append(last.Checks, r)
	if c.to == nil || c.short && r.Result == resultSuccess {
		return
	}
	if c.printed != c.category {
		if c.printed != "" {
			fmt.Fprintln(c.to)
		}
		title := cli.Printable(c.category)
		fmt.Fprintf(c.to, "%s\n%s\n", title, strings.Repeat("-", len(title)))
		c.printed = c.category
	}
	fmt.Fprintf(c.to, "%s %s\n", glyphs[r.Result], cli.Printable(r.Description))
	if r.Error != "" {
		fmt.Fprintf(c.to, "    %s\n    see %s for hints\n", strings.Join(cli.Wrap(cli.Printable(r.Error), cli.TableWidth-4), "\n    "), r.Hint)
	}
}

func Command(version string) *cobra.Command {
	s := environment{ReplicaFlags: cli.NewReplicaFlags(version)}
	var output, linkerdNamespace string
	var pre, proxy bool
	var wait, timeout time.Duration
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check that Fingerpost and the clusters that are linked are as they should be",
		Long: `Check that Fingerpost and the clusters that are linked are as they should be: what replicas know, and what can
be asked from here with your rights and with the credentials of the Links. With --pre, check that it can be
installed. It exits with 1 if a check has failed (×); warnings (‼) fail nothing.

Installed as linkerd-fingerpost it is a part of 'linkerd check' where a namespace has the label
linkerd.io/extension=fingerpost.`,
		Example: "  fingerpost check\n  fingerpost check --pre\n  fingerpost check -o short --wait 0s",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if proxy {
				s.Namespace = "" // with --proxy the namespace is that of proxies, of which we have none to check
			}
			s.controllerNamespace = linkerdNamespace
			c := &runner{deadline: time.Now().Add(wait), timeout: timeout, pause: 2 * time.Second}
			c.report.Success = true
			switch output {
			case "table", "basic":
				c.to = cmd.OutOrStdout()
			case "short":
				c.to, c.short = cmd.OutOrStdout(), true
			case "json":
			default:
				return fmt.Errorf("-o %s is none of table, short and json", output)
			}
			s.run(cmd.Context(), c, pre)
			if c.to == nil {
				if err := cli.PrintJSON(cmd.OutOrStdout(), c.report); err != nil {
					return err
				}
			} else {
				result := resultSuccess
				if !c.report.Success {
					result = resultError
				}
				if c.printed != "" {
					fmt.Fprintln(c.to)
				}
				fmt.Fprintf(c.to, "Status check results are %s\n", glyphs[result])
			}
			if !c.report.Success {
				return ErrFailed
			}
			return nil
		},
	}
	s.AddFlags(cmd)
	fs := cmd.Flags()
	fs.StringVarP(&linkerdNamespace, "linkerd-namespace", "L", "linkerd", "namespace of the mesh's control plane, here and in linked clusters")
	fs.StringVarP(&output, "output", "o", "table", "table, short (only what is not right) or json")
	fs.BoolVar(&pre, "pre", false, "check that Fingerpost can be installed")
	fs.DurationVar(&wait, "wait", 5*time.Minute, "how long to wait for what may become right by itself")
	fs.DurationVar(&timeout, "timeout", 10*time.Second, "how long to wait for an answer")
	fs.BoolVar(&proxy, "proxy", false, "")
	fs.String("api-addr", "", "")
	fs.Bool("verbose", false, "")
	for _, name := range []string{"proxy", "api-addr", "verbose"} { // what 'linkerd check' hands on
		_ = fs.MarkHidden(name)
	}
	return cmd
}

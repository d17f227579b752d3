// Package check has the health report: what replicas report, and what can be seen from where the command
// runs.
//
// A [runner] runs checks in their order, retries those that may pass later, and prints each result at once.
// check.go has the runner and the command, local.go the checks of the local cluster, replicas.go those of
// what replicas report, of linked clusters above all, and compare.go how replicas differ. Nothing is sent to
// a linked cluster from here: replicas have the credentials, and report what they find. Each check has a
// heading in docs/checks.md.
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

// ErrFailed is the error of a report in which a check has failed. The report has been printed.
var ErrFailed = errors.New("a check has failed")

// hintsURL has a heading for each check.
const hintsURL = "https://github.com/fingerpost/fingerpost/blob/main/docs/checks.md#"

// The results of a check, as Linkerd names them.
const (
	resultSuccess = "success"
	resultWarning = "warning"
	resultError   = "error"
)

var glyphs = map[string]string{resultSuccess: "√", resultWarning: "‼", resultError: "×"}

// A checkReport is what 'linkerd check' reads from an extension.
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

// A check is one condition that should hold.
type check struct {
	description string
	anchor      string // of its heading in docs/checks.md
	retry       bool   // it may pass later by itself
	run         func(ctx context.Context) error
}

// A warning is an error that does not fail the report.
type warning struct {
	error
	permanent bool // it does not go away by itself, so that a retry is of no use
}

func warningf(format string, args ...any) error { return warning{error: fmt.Errorf(format, args...)} }

func permanentWarningf(format string, args ...any) error {
	return warning{fmt.Errorf(format, args...), true}
}

// joinWarnings joins errors. The result is a warning if all of them are.
func joinWarnings(errs ...error) error {
	joined := errors.Join(errs...)
	for _, err := range errs {
		if _, is := errors.AsType[warning](err); err != nil && !is {
			return errors.New(joined.Error())
		}
	}
	return joined
}

// errSkipped is the error of a check that does not apply. It is not reported.
var errSkipped = errors.New("skipped")

// A runner runs checks and reports their results.
type runner struct {
	to       io.Writer // nil to print everything at the end
	short    bool      // print only what did not succeed
	deadline time.Time // of retries
	timeout  time.Duration
	pause    time.Duration // between two tries

	report   checkReport
	printed  string // category that was printed last
	category string
}

func (r *runner) beginCategory(category string) { r.category = category }

// runCheck runs a check, with retries if they may help, and reports whether it succeeds or is a warning.
func (r *runner) runCheck(ctx context.Context, c check) bool {
	err := r.try(ctx, c)
	if errors.Is(err, errSkipped) {
		return false
	}
	result := checkResult{Description: c.description, Result: resultSuccess}
	if err != nil {
		result.Result = resultError
		if _, is := errors.AsType[warning](err); is {
			result.Result = resultWarning
		}
		result.Error = strings.ReplaceAll(err.Error(), "\n", "; ")
		result.Hint = hintsURL + c.anchor
	}
	r.addResult(result)
	return result.Result != resultError
}

// try runs a check until it succeeds, cannot succeed by itself, or the deadline is reached.
func (r *runner) try(ctx context.Context, c check) error {
	for {
		once, cancel := context.WithTimeout(ctx, r.timeout)
		err := c.run(once)
		cancel()
		if err == nil || !c.retry || errors.Is(err, errSkipped) {
			return err
		}
		if w, is := errors.AsType[warning](err); is && w.permanent {
			return err
		}
		if !time.Now().Add(r.pause).Before(r.deadline) {
			return err
		}
		timer := time.NewTimer(r.pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// addResult adds a result to the report, and prints it.
func (r *runner) addResult(result checkResult) {
	if result.Result == resultError {
		r.report.Success = false
	}
	if n := len(r.report.Categories); n == 0 || r.report.Categories[n-1].Name != r.category {
		r.report.Categories = append(r.report.Categories, &checkCategory{Name: r.category})
	}
	last := r.report.Categories[len(r.report.Categories)-1]
	last.Checks = append(last.Checks, result)
	if r.to == nil || r.short && result.Result == resultSuccess {
		return
	}
	if r.printed != r.category {
		if r.printed != "" {
			fmt.Fprintln(r.to)
		}
		title := cli.Printable(r.category)
		fmt.Fprintf(r.to, "%s\n%s\n", title, strings.Repeat("-", len(title)))
		r.printed = r.category
	}
	fmt.Fprintf(r.to, "%s %s\n", glyphs[result.Result], cli.Printable(result.Description))
	if result.Error != "" {
		lines := cli.Wrap(cli.Printable(result.Error), cli.TableWidth-4)
		fmt.Fprintf(r.to, "    %s\n    see %s for hints\n", strings.Join(lines, "\n    "), result.Hint)
	}
}

// finish prints what is left of the report, and returns ErrFailed if a check has failed.
func (r *runner) finish(to io.Writer) error {
	if r.to == nil {
		if err := cli.PrintJSON(to, r.report); err != nil {
			return err
		}
	} else {
		result := resultSuccess
		if !r.report.Success {
			result = resultError
		}
		if r.printed != "" {
			fmt.Fprintln(to)
		}
		fmt.Fprintf(to, "Status check results are %s\n", glyphs[result])
	}
	if !r.report.Success {
		return ErrFailed
	}
	return nil
}

// Command returns the command of a binary of this version.
func Command(version string) *cobra.Command {
	e := environment{ReplicaFlags: cli.NewReplicaFlags(version)}
	var output string
	var pre, proxy bool
	var wait, timeout time.Duration
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the health of Fingerpost and of the linked clusters",
		Long: `Check the health of Fingerpost and of the linked clusters: what replicas report, and what can be seen
of this cluster with your permissions. With --pre, check that Fingerpost can be installed. The exit code
is 1 if a check has failed (×); warnings (‼) do not fail the report.

Installed as linkerd-fingerpost it is part of 'linkerd check', for namespaces with the label
linkerd.io/extension=fingerpost.`,
		Example: "  fingerpost check\n  fingerpost check --pre\n  fingerpost check -o short --wait 0s",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if proxy {
				e.Namespace = "" // linkerd sets it to the namespace of proxies, which we do not check
			}
			r := &runner{deadline: time.Now().Add(wait), timeout: timeout, pause: 2 * time.Second}
			r.report.Success = true
			switch output {
			case "table", "basic":
				r.to = cmd.OutOrStdout()
			case "short":
				r.to, r.short = cmd.OutOrStdout(), true
			case "json":
			default:
				return fmt.Errorf("-o %s is none of table, short and json", output)
			}
			e.run(cmd.Context(), r, pre)
			return r.finish(cmd.OutOrStdout())
		},
	}
	e.AddFlags(cmd)
	fs := cmd.Flags()
	fs.StringVarP(&e.controllerNamespace, "linkerd-namespace", "L", "linkerd",
		"namespace of the mesh's control plane")
	fs.StringVarP(&output, "output", "o", "table", "table, short (only what did not succeed) or json")
	fs.BoolVar(&pre, "pre", false, "check that Fingerpost can be installed")
	fs.DurationVar(&wait, "wait", 5*time.Minute, "how long to retry checks that may pass later by themselves")
	fs.DurationVar(&timeout, "timeout", 10*time.Second, "how long to wait for a response")
	fs.BoolVar(&proxy, "proxy", false, "")
	fs.String("api-addr", "", "")
	fs.Bool("verbose", false, "")
	for _, name := range []string{"proxy", "api-addr", "verbose"} { // 'linkerd check' passes them
		_ = fs.MarkHidden(name)
	}
	return cmd
}

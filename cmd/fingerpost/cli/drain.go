package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"

	"github.com/fingerpost/fingerpost/federation/policy"
	"github.com/fingerpost/fingerpost/links"
)

// maxDrain is the longest that a Link may ask for.
const maxDrain = 7 * 24 * time.Hour

var drainPoll = 2 * time.Second // between two looks at the condition Drained

// linkAnnotator sets annotations of the Links of a cluster.
type linkAnnotator struct {
	kubeFlags
	namespace string
	over      time.Duration
	wait      bool
}

const annotatesLink = `

It sets an annotation of the Link in the cluster that --context names, and takes the right to list
and patch Links there. The replicas of Fingerpost do the rest.`

func drainCommand(version string) *cobra.Command {
	annotator := linkAnnotator{kubeFlags: kubeFlags{version: version}}
	cmd := annotator.command("drain CLUSTER", "Shift traffic away from a linked cluster",
		`Shift traffic away from a linked cluster, at once or in steps of 5 % over some time. What no other
cluster has ready endpoints of stays where it is, and the condition Drained of the Link names it.

With --wait the command returns when no Service gets endpoints of the cluster any more, with exit
code 1 if some Services have nothing else.`,
		`  fingerpost drain west --over 5m --wait
  fingerpost undrain west --over 5m`,
		annotator.drain)
	cmd.Flags().DurationVar(&annotator.over, "over", 0,
		"how long it takes until all traffic is gone, at most 168h; 0 for at once")

	cmd.Flags().BoolVar(&annotator.wait, "wait", false, "return when no Service gets endpoints of the cluster any more")
	return cmd
}

func undrainCommand(version string) *cobra.Command {
	a := linkAnnotator{kubeFlags: kubeFlags{version: version}}
	cmd := a.command("undrain CLUSTER", "Give a drained cluster its traffic back",
		"Give a cluster that 'fingerpost drain' has drained its traffic back, at once or in steps of 5 %.",
		"  fingerpost undrain west --over 5m",
		func(cmd *cobra.Command, name string) error {
			d := policy.Drain{From: now(), Over: a.over, Up: true}
			return a.annotateDrain(cmd, name, d, nil, "gets its traffic back ")
		})
	cmd.Flags().DurationVar(&a.over, "over", 0,
		"how long it takes until all traffic is back, at most 168h; 0 for at once")
	return cmd
}

func releaseCommand(version string) *cobra.Command {
	a := linkAnnotator{kubeFlags: kubeFlags{version: version}}
	return a.command("release CLUSTER", "Release endpoints that the withdrawal guard holds",
		`Release the endpoints of a linked cluster that has withdrawn most of them at once. They are
held if the Link has the annotation `+policy.WithdrawalGuardKey+`, for
the time in its value; the condition Guarded of the Link shows what.`,
		"  fingerpost release west",
		func(cmd *cobra.Command, name string) error {
			return a.annotate(cmd, name, links.ReleasedAtKey, now().Format(time.RFC3339),
				"keeps nothing that it has withdrawn")
		})
}

func (a *linkAnnotator) command(
	use, short, long, example string, run func(cmd *cobra.Command, name string) error,
) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long + annotatesLink, Example: example,
		Args: arguments("CLUSTER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.over < 0 || a.over > maxDrain {
				return usageError(cmd, fmt.Errorf("--over %s: it may take from 0 to %s", a.over, maxDrain))
			}
			return run(cmd, args[0])
		},
	}

	groupFlags(cmd.Flags(), a.addKubeFlags)
	cmd.Flags().StringVar(&a.namespace, "link-namespace", "", "namespace of the Link; empty for any")
	return cmd
}

// now is the time in whole seconds, as annotations have it.
func now() time.Time { return time.Now().UTC().Truncate(time.Second) }

func (a *linkAnnotator) drain(cmd *cobra.Command, name string) error {
	d := policy.Drain{From: now(), Over: a.over}
	if err := a.annotateDrain(cmd, name, d, "true", "loses its traffic "); err != nil || !a.wait {
		return err
	}
	return a.waitUntilDrained(cmd, name, d.From.Add(d.Over))
}

// annotateDrain sets the annotation of a drain, which has another value for one that is to take no time.
func (a *linkAnnotator) annotateDrain(
	cmd *cobra.Command, name string, d policy.Drain, atOnce any, what string,
) error {
	if d.Over == 0 {
		return a.annotate(cmd, name, policy.DrainKey, atOnce, what+"at once")
	}
	end := d.From.Add(d.Over).Format(time.RFC3339)
	return a.annotate(cmd, name, policy.DrainKey, d.String(), what+"until "+end)
}

// annotate sets an annotation of every Link of a cluster; nil removes it.
func (a *linkAnnotator) annotate(cmd *cobra.Command, name, key string, value any, what string) error {
	client, all, err := a.linksOf(cmd.Context(), name)
	if err != nil {
		return err
	}

	patch, err := json.Marshal(manifest{"metadata": manifest{"annotations": manifest{key: value}}})
	if err != nil {
		return err
	}

	options := metav1.PatchOptions{FieldManager: "fingerpost-cli"}
	for _, l := range all {
		namespaced := client.Namespace(l.GetNamespace())
		_, err := namespaced.Patch(cmd.Context(), l.GetName(), types.MergePatchType, patch, options)
		if err != nil {
			return fmt.Errorf("annotate the Link %s/%s: %w", l.GetNamespace(), l.GetName(), err)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s %s (Link %s/%s)\n", name, what, l.GetNamespace(), l.GetName())
	}
	return nil
}

// linksOf returns the Links of a cluster, and the client of the newest version of Links that is served.
func (a *linkAnnotator) linksOf(
	ctx context.Context, name string,
) (dynamic.NamespaceableResourceInterface, []unstructured.Unstructured, error) {
	config, err := a.RESTConfig()
	if err != nil {
		return nil, nil, err
	}

	client, items, err := ListLinks(ctx, config, a.namespace)
	switch {
	case errors.Is(err, ErrNoLinks):
		return nil, nil, WithExitCode(ExitNotFound, err)
	case err != nil:
		return nil, nil, err
	}

	all, others := []unstructured.Unstructured{}, sets.New[string]()
	for _, l := range items {
		linked, _, _ := unstructured.NestedString(l.Object, "spec", "targetClusterName")
		if linked == name {
			all = append(all, l)
		} else {
			others.Insert(linked)
		}
	}

	if len(all) == 0 {
		there := "there are no Links"
		if len(others) > 0 {
			there = "Links link " + strings.Join(sets.List(others), ", ")
		}
		return nil, nil, WithExitCode(ExitNotFound,
			fmt.Errorf("no Link links a cluster %q: %s", name, Printable(there)))
	}
	return client, all, nil
}

// waitUntilDrained returns once the cluster is drained, which it is not before a time, and prints progress. The drain
// goes on while Links cannot be listed.
func (a *linkAnnotator) waitUntilDrained(cmd *cobra.Command, name string, end time.Time) error {
	ticker := time.NewTicker(drainPoll)
	defer ticker.Stop()
	printed := ""

	for {
		_, all, err := a.linksOf(cmd.Context(), name)
		condition := drainedCondition(all)

		switch {
		case ExitCode(err) == ExitNotFound: // the Link was deleted
			return err
		case err != nil:
			condition = &metav1.Condition{Message: err.Error()}
		case condition == nil:
			condition = &metav1.Condition{Message: "no replica has reported the drain yet"}
		case time.Now().Before(end): // the condition may be that of an earlier drain
		case condition.Status == metav1.ConditionTrue:
			fmt.Fprintf(cmd.OutOrStdout(), "%s is drained\n", name)
			return nil
		case condition.Reason == links.ReasonStillNeeded:
			return WithExitCode(ExitNo, fmt.Errorf("%s is still needed: %s", name, Printable(condition.Message)))
		}

		if condition.Message != printed {
			fmt.Fprintf(cmd.ErrOrStderr(), "waiting: %s\n", Printable(condition.Message))
			printed = condition.Message
		}
		select {
		case <-ticker.C:
		case <-cmd.Context().Done():
			return fmt.Errorf("%s is not drained yet: %s", name, Printable(printed))
		}
	}
}

// drainedCondition returns the condition Drained of the first of the Links that has one; nil for none.
func drainedCondition(all []unstructured.Unstructured) *metav1.Condition {
	for _, l := range all {
		if c := meta.FindStatusCondition(ConditionsOf(&l), links.Drained); c != nil {
			return c
		}
	}
	return nil
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/internal/words"
)

func explainCommand(version string) *cobra.Command {
	flags := explanationCommand{debugCommand: newDebugCommand(version)}
	cmd := &cobra.Command{
		Use:        "explain AUTHORITY",
		SuggestFor: []string{"diagnostics"},
		Short:      "Explain which endpoints a client gets, and why",
		Long: `Explain which endpoints a client gets, and why: for each address that a cluster publishes, whether
the client gets it (+) or not (-), the reason, and whether its streams were sent it.

` + authorityHelp + `

Without --client the explanation is for a client without context. The node of a client is that of
its Pod, or if the Pod cannot be read the one that its streams report.

How Services may be reached, and by whom, is explained by 'explain policy' and 'explain route'.

Every replica is asked. The table is that of the replicas with a stream of the client, or if none
has one of the first replica, and names replicas that differ from it. With -o json there are all
of them. The exit code is 1 if replicas differ or a stream would be rejected, and 4 if there is no
such Service.`,
		Example: `  fingerpost explain web.shop:8080
  fingerpost explain web-federated.shop.svc.cluster.local:8080 --client shop/cart-5b7c9d-x2x4z`,
		Args: arguments("AUTHORITY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return showExplanations(cmd, &flags, args[0], view[discovery.Explanation, []replicaExplanation]{
				merge: mergeExplanations, print: printExplanations, check: checkExplanations,
			})
		},
	}

	flags.addExplanationFlags(cmd)
	cmd.AddCommand(explainPolicyCommand(version), explainRouteCommand(version))
	return cmd
}

// An explanationCommand shows what replicas explain of what a client gets of a Service.
type explanationCommand struct {
	debugCommand
	pod, node string // of the client
}

func (e *explanationCommand) addExplanationFlags(cmd *cobra.Command) {
	e.addAuthorityFlags(cmd)
	e.addShowFlags(cmd)
	cmd.Flags().StringVar(&e.pod, "client", "", "Pod of the client, namespace/name")
	cmd.Flags().StringVar(&e.node, "node", "", "node of the client, instead of its Pod's")
}

// showExplanations shows the page about a Service.
func showExplanations[V any](
	cmd *cobra.Command, flags *explanationCommand, service string, view view[discovery.Explanation, V],
) error {
	namespace, pod, both := strings.Cut(flags.pod, "/")
	if flags.pod != "" && (!both || namespace == "" || pod == "") {
		return usageError(cmd, fmt.Errorf("--client %q is not NAMESPACE/POD", flags.pod))
	}

	authority, err := flags.explainedAuthority(cmd.Context(), service)
	if err != nil {
		return err
	}

	query := url.Values{"authority": {authority}, "node": {flags.node}}
	if flags.pod != "" {
		query.Set("ns", namespace)
		query.Set("pod", pod)
		if flags.node == "" {
			query.Set("node", flags.nodeOf(cmd, namespace, pod))
		}
	}
	view.path = "/debug/explain?" + query.Encode()
	return show(cmd, &flags.debugCommand, view)
}

// explainedAuthority returns the whole authority of a Service.
func (e *explanationCommand) explainedAuthority(ctx context.Context, text string) (string, error) {
	if _, short, err := parseServiceName(text); err != nil || !short {
		return text, WithExitCode(ExitUsage, err)
	}
	replica, err := e.openFirst(ctx)
	if err != nil {
		return "", err
	}
	defer replica.Close()
	return e.authority(ctx, text, &replica)
}

// nodeOf returns the node of a Pod; empty if the Pod cannot be read.
func (r *ReplicaFlags) nodeOf(cmd *cobra.Command, namespace, name string) string {
	config, err := r.RESTConfig()
	if err != nil {
		return ""
	}
	config.Timeout = pageTimeout
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return ""
	}

	pod, err := client.CoreV1().Pods(namespace).Get(cmd.Context(), name, metav1.GetOptions{})
	if err != nil {
		printError(cmd, fmt.Errorf("read Pod %s/%s: %w", namespace, name, err))
		return ""
	}
	return pod.Spec.NodeName
}

// A replicaExplanation is the explanation of one replica.
type replicaExplanation struct {
	Replica string `json:"replica"`
	discovery.Explanation
}

func mergeExplanations(responses []Response[discovery.Explanation]) []replicaExplanation {
	all := []replicaExplanation{}
	for _, r := range responses {
		all = append(all, replicaExplanation{r.Replica, r.Page})
	}
	return all
}

// printExplanations prints those of the replicas that have a stream of the client, or if there is none the
// first, and names the replicas that differ from it.
func printExplanations(frame *frame, all []replicaExplanation, several bool, now time.Time) {
	chosen := slices.DeleteFunc(slices.Clone(all), func(x replicaExplanation) bool { return len(x.Streams) == 0 })
	if len(chosen) == 0 {
		chosen = all[:1]
	}

	for i, x := range chosen {
		if i > 0 {
			frame.printf("")
		}
		if several {
			frame.printf("replica %s", x.Replica)
		}
		printExplanation(frame, x.Explanation, now)
	}

	for _, x := range all {
		if disagree(chosen[0].Explanation, x.Explanation) {
			frame.printf("")
			frame.printf("warning: replicas %s and %s differ, see 'fingerpost check'", chosen[0].Replica, x.Replica)
		}
	}
}

// checkExplanations returns an error if there is no such Service, if a stream for it would be rejected, or if
// replicas differ.
func checkExplanations(all []replicaExplanation) error {
	for _, x := range all {
		if strings.HasPrefix(x.Refused, codes.NotFound.String()+":") {
			return WithExitCode(ExitNotFound, errors.New("there is no such Service in the local cluster"))
		}
	}
	for _, x := range all {
		if x.Refused != "" {
			return WithExitCode(ExitNo, errors.New("a stream that opens now is rejected"))
		}
	}

	for _, x := range all {
		if disagree(all[0].Explanation, x.Explanation) {
			return WithExitCode(ExitNo, fmt.Errorf("replicas %s and %s differ", all[0].Replica, x.Replica))
		}
	}
	return nil
}

// disagree reports whether two replicas would send different endpoints to the same client. Replicas that see
// the client on different nodes cannot be compared.
func disagree(a, b discovery.Explanation) bool {
	kept := func(x discovery.Explanation) sets.Set[string] {
		addrs := sets.New[string]()
		for _, c := range x.Claims {
			if c.Kept {
				addrs.Insert(c.Addr)
			}
		}
		return addrs
	}
	return a.Client.Node == b.Client.Node && (a.Refused != b.Refused || !kept(a).Equal(kept(b)))
}

func printExplanation(frame *frame, explanation discovery.Explanation, now time.Time) {
	kept := 0
	for _, c := range explanation.Claims {
		if c.Kept {
			kept++
		}
	}

	frame.printf("%s", explanation.Authority)
	frame.printf("for %s: %s", clientText(explanation.Client), words.Count(kept, "address"))
	if explanation.Refused != "" {
		frame.printf("error: %s", explanation.Refused)
	}
	for _, line := range append([]string{explanation.Waits}, explanation.Notes...) {
		if line != "" {
			frame.printf("note: %s", line)
		}
	}

	for _, s := range explanation.Streams {
		frame.printf("stream %d, open for %s, holds %s%s",
			s.ID, debug.Age(s.Opened, now), words.Count(s.Addresses, "address"), debug.LagText(s, now))
	}
	for _, change := range explanation.Changes {
		frame.printf("changed: %s", change)
	}
	if len(explanation.Claims) == 0 {
		return
	}

	frame.printf("")
	table := newTable("", "ADDRESS", "CLUSTER", "SLICE", "POD", "ZONE", "SENT", "WHY")
	table.keepColumns, table.whole = 3, []string{"ADDRESS"}
	table.optional = []string{"SLICE", "POD", "ZONE"}

	for _, claim := range explanation.Claims {
		mark, held := "-", ""
		if claim.Kept {
			mark = "+"
		}

		switch {
		case len(claim.HeldBy) > 0:
			held = "yes"
		case claim.Kept && len(explanation.Streams) > 0:
			held = "no"
		}
		_, pod, _ := strings.Cut(claim.Pod, "/")
		table.addRow(mark, dash(claim.Addr), dash(claim.Cluster), dash(claim.Slice), dash(pod),
			dash(claim.Zone), held, claim.Why)
	}
	frame.addTable(table)
}

func clientText(client discovery.Asker) string {
	text := "a client without context"
	if client.Pod != "" {
		text = client.Namespace + "/" + client.Pod
	}
	if client.Node != "" {
		text += " on node " + client.Node
	}
	if client.Zone != "" {
		text += " in zone " + client.Zone
	}
	return text
}

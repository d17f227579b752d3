package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/discovery"
)

func explainCommand(version string) *cobra.Command {
	d := newDebugCommand(version)
	var of clientFlags
	cmd := &cobra.Command{
		Use:   "explain AUTHORITY",
		Short: "Explain which endpoints a client gets, and why",
		Long: `Explain which endpoints a client gets, and why: for each address that a cluster publishes, whether
it is kept (+) or not (-), the reason, and whether the client's streams were sent it.

` + authorityHelp + `

Without --client the explanation is for a client without context. The node of a client is that of
its Pod, or if the Pod cannot be read the one that its streams report.

Every replica is asked. The table is that of the replicas with a stream of the client, or if none
has one of the first replica, and names replicas that differ from it. With -o json there are all
of them. The exit code is 1 if replicas differ or a stream would be rejected, and 4 if there is no
such Service.`,
		Example: `  fingerpost explain web.shop:8080
  fingerpost explain web-federated.shop.svc.cluster.local:8080 --client shop/cart-5b7c9d-x2x4z`,
		Args: arguments("AUTHORITY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := d.explanationPath(cmd, args[0], &of)
			if err != nil {
				return err
			}
			return show(cmd, &d, view[discovery.Explanation, []replicaExplanation]{
				path:  path,
				merge: mergeExplanations, print: printExplanations, check: checkExplanations,
			})
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	d.addAuthorityFlags(cmd)
	d.addShowFlags(cmd)
	of.addTo(cmd)
	return cmd
}

// clientFlags are the flags that name a client.
type clientFlags struct{ pod, node string }

func (c *clientFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.pod, "client", "", "Pod of the client, namespace/name")
	cmd.Flags().StringVar(&c.node, "node", "", "node of the client, instead of its Pod's")
}

// explanationPath returns the page that explains what a client gets of a Service.
func (d *debugCommand) explanationPath(cmd *cobra.Command, service string, of *clientFlags) (string, error) {
	namespace, pod, both := strings.Cut(of.pod, "/")
	if of.pod != "" && (!both || namespace == "" || pod == "") {
		return "", usageError(cmd, fmt.Errorf("--client %q is not NAMESPACE/POD", of.pod))
	}
	authority, err := d.explainedAuthority(cmd.Context(), service)
	if err != nil {
		return "", err
	}
	query := url.Values{"authority": {authority}, "node": {of.node}}
	if of.pod != "" {
		query.Set("ns", namespace)
		query.Set("pod", pod)
		if of.node == "" {
			query.Set("node", d.nodeOf(cmd, namespace, pod))
		}
	}
	return "/debug/explain?" + query.Encode(), nil
}

// explainedAuthority returns the whole authority of a Service.
func (d *debugCommand) explainedAuthority(ctx context.Context, text string) (string, error) {
	if _, short, err := parseServiceName(text); err != nil || !short {
		return text, WithExitCode(ExitUsage, err)
	}
	replica, err := d.openFirst(ctx)
	if err != nil {
		return "", err
	}
	defer replica.Close()
	return d.authority(ctx, text, &replica)
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
func printExplanations(f *frame, all []replicaExplanation, several bool, now time.Time) {
	chosen := slices.DeleteFunc(slices.Clone(all), func(x replicaExplanation) bool { return len(x.Streams) == 0 })
	if len(chosen) == 0 {
		chosen = all[:1]
	}
	for i, x := range chosen {
		if i > 0 {
			f.printf("")
		}
		if several {
			f.printf("replica %s", x.Replica)
		}
		printExplanation(f, x.Explanation, now)
	}
	for _, x := range all {
		if disagree(chosen[0].Explanation, x.Explanation) {
			f.printf("")
			f.printf("but: replicas %s and %s differ, see 'fingerpost check'", chosen[0].Replica, x.Replica)
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
	kept := func(x discovery.Explanation) map[string]bool {
		addrs := map[string]bool{}
		for _, c := range x.Claims {
			if c.Kept {
				addrs[c.Addr] = true
			}
		}
		return addrs
	}
	return a.Client.Node == b.Client.Node && (a.Refused != b.Refused || !maps.Equal(kept(a), kept(b)))
}

func printExplanation(f *frame, x discovery.Explanation, now time.Time) {
	kept := 0
	for _, c := range x.Claims {
		if c.Kept {
			kept++
		}
	}
	f.printf("%s", x.Authority)
	f.printf("for %s: %d addresses", clientText(x.Client), kept)
	for _, line := range append([]string{x.Refused, x.Waits}, x.Notes...) {
		if line != "" {
			f.printf("but: %s", line)
		}
	}
	for _, s := range x.Streams {
		f.printf("stream %d, open for %s, holds %d addresses%s",
			s.ID, debug.Age(s.Opened, now), s.Addresses, debug.LagText(s, now))
	}
	if len(x.Claims) == 0 {
		return
	}
	f.printf("")
	t := newTable("", "ADDRESS", "CLUSTER", "SLICE", "POD", "ZONE", "HELD", "WHY")
	t.keepColumns = 3
	for _, c := range x.Claims {
		mark, held := "-", ""
		if c.Kept {
			mark = "+"
		}
		switch {
		case len(c.HeldBy) > 0:
			held = "yes"
		case c.Kept && len(x.Streams) > 0:
			held = "no"
		}
		_, pod, _ := strings.Cut(c.Pod, "/")
		t.addRow(mark, dash(c.Addr), dash(c.Cluster), dash(c.Slice), dash(pod), dash(c.Zone), held, c.Why)
	}
	f.add(t)
}

func clientText(client discovery.Place) string {
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

package cli

import (
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/discovery"
)

func explainCommand(version string) *cobra.Command {
	p := debugCommand{ReplicaFlags: NewReplicaFlags(version, DebugPort)}
	var client, node string
	cmd := &cobra.Command{
		Use:   "explain AUTHORITY",
		Short: "Tell why a client sees the addresses that it sees",
		Long: `Tell why a client sees the addresses that it sees: for each address that a cluster claims, whether it is kept
(+) or not (-), why, and which of the client's streams were sent it.

AUTHORITY is <service>.<namespace>.svc.<cluster domain>[:port], with the hostname of one instance in front if
need be. Without --client the answer is that to a client of which nothing is known. The client's node is the
one where the Pod is, or if that cannot be looked up the one that its streams tell.

Every replica is asked. Shown is what those say that have a stream of the client, or if there is none the first
one; that another differs from it is told. With -o json all of them are shown.`,
		Example: "  fingerpost explain web.shop.svc.cluster.local:8080\n  fingerpost explain web-federated.shop.svc.cluster.local:8080 --client shop/cart-5b7c9d-x2x4z",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{"authority": args, "node": {node}}
			if client != "" {
				namespace, pod, ok := strings.Cut(client, "/")
				if !ok || namespace == "" || pod == "" {
					return fmt.Errorf("--client %q is not namespace/pod", client)
				}
				query.Set("ns", namespace)
				query.Set("pod", pod)
				if node == "" {
					query.Set("node", p.nodeOf(cmd, namespace, pod))
				}
			}
			return showPages(cmd, &p, "/debug/explain?"+query.Encode(), mergeExplanations, printExplanations)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	p.addFlags(cmd)
	cmd.Flags().StringVar(&client, "client", "", "the Pod that asks, namespace/name")
	cmd.Flags().StringVar(&node, "node", "", "the node where the client runs, if it is another one than it says")
	return cmd
}

// nodeOf returns the node of a Pod; empty if no API server can be asked.
func (r *ReplicaFlags) nodeOf(cmd *cobra.Command, namespace, pod string) string {
	config, err := r.RESTConfig()
	if err != nil {
		return ""
	}
	config.Timeout = pageTimeout
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return ""
	}
	found, err := client.CoreV1().Pods(namespace).Get(cmd.Context(), pod, metav1.GetOptions{})
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "fingerpost: Pod %s/%s: %v\n", namespace, pod, err)
		return ""
	}
	return found.Spec.NodeName
}

// A replicaExplanation is what a replica explains.
type replicaExplanation struct {
	Replica string `json:"replica"`
	discovery.Explanation
}

// mergeExplanations returns what all replicas explain.
func mergeExplanations(answers []Response[discovery.Explanation]) []replicaExplanation {
	all := []replicaExplanation{}
	for _, a := range answers {
		all = append(all, replicaExplanation{a.Replica, a.Page})
	}
	return all
}

// printExplanations prints those of the replicas that have a stream of the client, or if there is none the first, and says which others
// differ from it.
func printExplanations(to io.Writer, all []replicaExplanation, several bool, now time.Time) error {
	chosen := slices.DeleteFunc(slices.Clone(all), func(x replicaExplanation) bool { return len(x.Streams) == 0 })
	if len(chosen) == 0 {
		chosen = all[:1]
	}
	for i, x := range chosen {
		if i > 0 {
			fmt.Fprintln(to)
		}
		if several {
			fmt.Fprintf(to, "replica %s\n", Printable(x.Replica))
		}
		if err := printExplanation(to, x.Explanation, now); err != nil {
			return err
		}
	}
	for _, x := range all {
		if disagree(chosen[0].Explanation, x.Explanation) {
			fmt.Fprintf(to, "\nbut: replicas differ, see 'fingerpost diff %s %s'\n", Printable(chosen[0].Replica), Printable(x.Replica))
		}
	}
	return nil
}

// differ reports whether two replicas would answer something else to a client on the same node.
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

func printExplanation(to io.Writer, x discovery.Explanation, now time.Time) error {
	who := "a client of which nothing is known"
	if x.Client.Pod != "" {
		who = x.Client.Namespace + "/" + x.Client.Pod
	}
	if x.Client.Node != "" {
		who += " on node " + x.Client.Node
	}
	if x.Client.Zone != "" {
		who += " in zone " + x.Client.Zone
	}
	kept := 0
	for _, c := range x.Claims {
		if c.Kept {
			kept++
		}
	}
	fmt.Fprintf(to, "%s\nfor %s: %d addresses\n", Printable(x.Authority), Printable(who), kept)
	for _, line := range []string{x.Refused, x.Waits} {
		if line != "" {
			fmt.Fprintf(to, "but: %s\n", Printable(line))
		}
	}
	for _, s := range x.Streams {
		fmt.Fprintf(to, "stream %d, open for %s, holds %d addresses%s\n", s.ID, debug.Age(s.Opened, now), s.Addresses, debug.LagText(s, now))
	}
	if len(x.Claims) == 0 {
		return nil
	}
	fmt.Fprintln(to)
	t := newTable("", "ADDRESS", "CLUSTER", "SLICE", "POD", "ZONE", "HELD", "WHY")
	t.keepColumns = 3
	for _, c := range x.Claims {
		mark, held := "-", ""
		if c.Kept {
			mark = "+"
		}
		if len(c.HeldBy) > 0 {
			held = "yes"
		} else if c.Kept && len(x.Streams) > 0 {
			held = "no"
		}
		_, pod, _ := strings.Cut(c.Pod, "/")
		t.addRow(mark, dash(c.Addr), dash(c.Cluster), dash(c.Slice), dash(pod), dash(c.Zone), held, c.Why)
	}
	return t.print(to)
}

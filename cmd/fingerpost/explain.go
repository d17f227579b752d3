package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/discovery"
)

func explainCommand() *cobra.Command {
	var p pager
	var client, node string
	cmd := &cobra.Command{
		Use:   "explain AUTHORITY",
		Short: "Tell why a client sees the addresses that it sees",
		Long: `Tell why a client sees the addresses that it sees: for each address that a cluster claims, whether it is kept
(+) or not (-), why, and which of the client's streams were sent it.

AUTHORITY is <service>.<namespace>.svc.<cluster domain>[:port], with the hostname of one instance in front if
need be. Without --client the answer is that to a client of which nothing is known. The client's node is the
one where the Pod is, or if that cannot be looked up the one that its streams tell.`,
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
			return p.show(cmd, "/debug/explain?"+query.Encode(), printExplanation)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	p.flags(cmd)
	cmd.Flags().StringVar(&client, "client", "", "the Pod that asks, namespace/name")
	cmd.Flags().StringVar(&node, "node", "", "the node where the client runs, if it is another one than it says")
	return cmd
}

// nodeOf returns the node of a Pod; empty if no API server can be asked.
func (r *reach) nodeOf(cmd *cobra.Command, namespace, pod string) string {
	config, err := r.config()
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

func printExplanation(to io.Writer, body []byte, now time.Time) error {
	var x discovery.Explanation
	if err := json.Unmarshal(body, &x); err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
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
	fmt.Fprintf(to, "%s\nfor %s: %d addresses\n", printable(x.Authority), printable(who), kept)
	for _, line := range []string{x.Refused, x.Waits} {
		if line != "" {
			fmt.Fprintf(to, "but: %s\n", printable(line))
		}
	}
	for _, s := range x.Streams {
		fmt.Fprintf(to, "stream %d, open for %s, holds %d addresses%s\n", s.ID, age(s.Opened, now), s.Addresses, lagText(s, now))
	}
	if len(x.Claims) == 0 {
		return nil
	}
	fmt.Fprintln(to)
	t := newTable("", "ADDRESS", "CLUSTER", "SLICE", "POD", "ZONE", "HELD", "WHY")
	t.whole = 3
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
		t.row(mark, dash(c.Addr), dash(c.Cluster), dash(c.Slice), dash(pod), dash(c.Zone), held, c.Why)
	}
	return t.print(to)
}

// lagText says how a stream is behind; nothing if it is not.
func lagText(s discovery.StreamStatus, now time.Time) string {
	text := ""
	if s.Behind != nil {
		text += fmt.Sprintf(", %d adds and %d removes behind", s.Behind.Adds, s.Behind.Removes)
	}
	if s.Sending != nil {
		text += fmt.Sprintf(", has not read for %s", age(*s.Sending, now))
	}
	return text
}

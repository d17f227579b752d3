package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/discovery/proxy"
)

// quietPeriod without a message ends an answer: a large one has several messages, and the protocol does not
// mark the last one.
const quietPeriod = 200 * time.Millisecond

func endpointsCommand(version string) *cobra.Command {
	flags := newGRPCCommand(version)
	cmd := &cobra.Command{
		SuggestFor: []string{"diagnostics"},
		Use:        "endpoints AUTHORITY",
		Short:      "Print the endpoints of a service that a proxy gets",
		Long: `Print the endpoints of a service that a proxy gets, by a stream of its own. 'fingerpost explain'
shows what the streams of proxies were sent. The clusters of addresses, which proxies do not get,
are those that the replica's debug server reports. The exit code is 1 if there are no endpoints.

` + authorityHelp,
		Example: `  fingerpost endpoints web.shop:8080
  fingerpost endpoints web-federated.shop.svc.cluster.local:8080 --watch
  fingerpost endpoints svc/web -n shop -o json --token '{"nodeName":"node-1"}'`,
		Args: arguments("AUTHORITY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			lookup := flags.openLookup(cmd.Context())
			defer lookup.close()
			authority, err := flags.authority(cmd.Context(), args[0], lookup.replica)
			if err != nil {
				return err
			}

			lookup.authority = authority
			conn, err := flags.openConn(cmd)
			if err != nil {
				return err
			}
			defer conn.Close()
			if flags.watch {
				return conn.watchEndpoints(lookup)
			}
			return conn.printEndpoints(lookup)
		},
	}

	flags.addGRPCFlags(cmd)
	return cmd
}

// endpointJSON is one address of -o json.
type endpointJSON struct {
	Addr      string            `json:"addr"`
	Cluster   string            `json:"cluster,omitempty"` // empty if it is not known
	Guarded   bool              `json:"guarded,omitempty"` // its cluster has withdrawn it, and the guard holds it
	Weight    uint32            `json:"weight"`
	Identity  string            `json:"identity,omitempty"`
	Authority string            `json:"authority,omitempty"`
	Hint      string            `json:"hint,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// guardNote follows the cluster of an address in tables.
func (e endpointJSON) guardNote() string {
	if e.Guarded {
		return ", " + discovery.HeldByGuard
	}
	return ""
}

func newEndpointJSON(a proxy.Address) endpointJSON {
	tls := a.GetTlsIdentity()
	endpoint := endpointJSON{
		Addr: a.Addr.String(), Weight: a.GetWeight(), Labels: a.Labels,
		Identity:  tls.GetDnsLikeIdentity().GetName() + tls.GetUriLikeIdentity().GetUri(),
		Authority: a.GetAuthorityOverride().GetAuthorityOverride(),
	}

	switch h := a.GetProtocolHint(); {
	case h.GetH2() != nil:
		endpoint.Hint = "h2"
	case h.GetOpaque() != nil:
		endpoint.Hint = "opaque"
	}
	return endpoint
}

// printEndpoints prints the first answer, once no message has arrived for the quietPeriod. Where changes keep coming it
// is what the stream holds at the --timeout.
func (c *replicaConn) printEndpoints(lookup *clusterLookup) error {
	ctx, cancel := c.g.streamContext(c.cmd.Context())
	defer cancel()
	reading, stop := context.WithCancel(ctx)
	defer stop()
	quiet := time.AfterFunc(c.g.timeout, stop)
	defer quiet.Stop()
	if err := c.await(ctx); err != nil {
		return err
	}

	received := false
	request := proxy.Request{Authority: lookup.authority, Token: c.g.token}
	stream := proxy.Open(reading, c, request, func(e proxy.Event) {
		switch {
		case e.End != nil:
			c.observeEnd(e.End)
		case e.Message.Type != proxy.Heartbeat:
			received = true
			quiet.Reset(quietPeriod)
		}
	})
	<-stream.Done()

	switch {
	case !received && (ctx.Err() != nil || c.end == nil):
		return c.noMessageError(request.Authority)
	case ctx.Err() == nil && c.end != nil && (c.end.Code() != codes.OK || !received):
		return c.streamError(c.end)
	}
	return printAddresses(c.cmd.OutOrStdout(), lookup.describe(c.cmd.Context(), stream.Holds()), c.g.output)
}

// describe returns addresses with what is known of them besides what a proxy gets: their clusters, and whether
// the guard holds them.
func (l *clusterLookup) describe(ctx context.Context, all []proxy.Address) []endpointJSON {
	list := []endpointJSON{}
	for _, a := range all {
		list = append(list, newEndpointJSON(a))
	}

	isNew := func(e endpointJSON) bool { _, known := l.claims[e.Addr]; return !known }
	if slices.ContainsFunc(list, isNew) {
		l.readClaims(ctx)
	}
	for i, e := range list {
		claim := l.claims[e.Addr]
		list[i].Cluster, list[i].Guarded = claim.Cluster, claim.Guarded
	}
	return list
}

func printAddresses(to io.Writer, all []endpointJSON, output string) error {
	var none error
	if len(all) == 0 {
		none = WithExitCode(ExitNo, errors.New("the Service has no endpoints"))
	}
	if output != tableOutput {
		return errors.Join(printPage(to, all, output), none)
	}
	if none != nil {
		return none
	}

	table := newTable("IP", "PORT", "CLUSTER", "NAMESPACE", "POD", "SERVICE", "ZONE", "IDENTITY")
	table.keepColumns, table.whole = 3, []string{"IP"}
	known := false
	for _, a := range all {
		known = known || a.Cluster != ""
		ip, port, _ := net.SplitHostPort(a.Addr)
		table.addRow(ip, port, dash(a.Cluster)+a.guardNote(), a.Labels["namespace"], dash(a.Labels["pod"]),
			a.Labels["service"], dash(a.Labels["zone"]), dash(a.Identity))
	}

	if !known {
		table.dropColumn("CLUSTER")
	}
	return table.printTo(to)
}

// changeJSON is one message of --watch -o json.
type changeJSON struct {
	At      time.Time         `json:"at"`
	What    proxy.MessageType `json:"what"`
	Reset   bool              `json:"reset,omitempty"` // what is added replaces all addresses before
	Added   []endpointJSON    `json:"added,omitempty"`
	Removed []endpointJSON    `json:"removed,omitempty"` // as they were added
	Exists  *bool             `json:"exists,omitempty"`  // of no-endpoints
}

// watchEndpoints prints every message but heartbeats, until the server rejects the request.
func (c *replicaConn) watchEndpoints(lookup *clusterLookup) error {
	ctx, to := c.cmd.Context(), c.cmd.OutOrStdout()
	received, resumed := false, false          // by any stream, and by one before this
	added := map[netip.AddrPort]endpointJSON{} // for when they are removed

	request := proxy.Request{Authority: lookup.authority, Token: c.g.token, Reconnect: true}
	stream := proxy.Open(ctx, c, request, func(event proxy.Event) {
		if event.End != nil {
			c.observeEnd(event.End)
			resumed = received
			return
		}

		received = true
		if event.Message.Type == proxy.Heartbeat {
			return
		}
		change := newChangeJSON(event, added, lookup.describe(ctx, event.Message.Added))
		if c.g.output == tableOutput {
			printChange(to, change, resumed)
		} else {
			_ = printLine(to, change, c.g.output) // it fails when the output is closed
		}
	})

	<-stream.Done()

	if ctx.Err() == nil {
		return c.streamError(c.end)
	}

	return nil // interrupted
}

// printLine prints a page for machines, one of many.
func printLine(to io.Writer, page any, output string) error {
	if output == jsonOutput {
		b, err := json.Marshal(page)
		if err != nil {
			return err
		}
		return writeJSON(to, b)
	}
	if _, err := io.WriteString(to, "---\n"); err != nil {
		return err
	}
	return printPage(to, page, output)
}

func printChange(to io.Writer, change changeJSON, resumed bool) {
	at := change.At.Format("15:04:05.000")
	if change.Reset && resumed {
		fmt.Fprintf(to, "%s  these replace all addresses before\n", at)
	}

	printAll := func(mark string, all []endpointJSON) {
		for _, e := range all {
			text := fmt.Sprintf("%-24s %-12s %s", e.Addr, dash(e.Cluster), dash(e.Labels["pod"])) + e.guardNote()
			fmt.Fprintf(to, "%s  %s  %s\n", at, mark, Printable(text))
		}
	}
	printAll("+", change.Added)
	printAll("-", change.Removed)
	if change.Exists != nil {
		fmt.Fprintf(to, "%s  no endpoints (the service exists: %t)\n", at, *change.Exists)
	}
}

// newChangeJSON returns a message with what it adds, and keeps that in added until it is removed.
func newChangeJSON(event proxy.Event, added map[netip.AddrPort]endpointJSON, list []endpointJSON) changeJSON {
	message := event.Message
	change := changeJSON{At: event.At, What: message.Type, Reset: message.Reset, Added: list}
	if message.Reset {
		clear(added)
	}
	for i, a := range message.Added {
		added[a.Addr] = list[i]
	}

	for _, a := range message.Removed {
		gone, found := added[a]
		if !found {
			gone = endpointJSON{Addr: a.String()}
		}
		change.Removed = append(change.Removed, gone)
		delete(added, a)
	}

	if message.Type == proxy.NoEndpoints {
		change.Exists = &message.Exists
		clear(added)
	}
	return change
}

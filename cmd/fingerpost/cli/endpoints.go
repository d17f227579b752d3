package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

// quietPeriod without a message ends an answer: a large one has several messages, and the protocol does not
// mark the last one.
const quietPeriod = 200 * time.Millisecond

func endpointsCommand(version string) *cobra.Command {
	g := newGRPCCommand(version)
	cmd := &cobra.Command{
		Use:   "endpoints AUTHORITY",
		Short: "Print the endpoints of a service that a proxy gets",
		Long: `Print the endpoints of a service that a proxy gets, by a stream of its own. 'fingerpost explain' shows
what the streams of proxies were sent.

AUTHORITY is <service>.<namespace>.svc.<cluster domain>[:port]. The hostname of one instance may stand in
front of it.`,
		Example: `  fingerpost endpoints web.shop.svc.cluster.local:8080
  fingerpost endpoints web-federated.shop.svc.cluster.local:8080 --watch --token '{"nodeName":"node-1"}'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(g.output); err != nil {
				return err
			}
			request := proxy.Request{Authority: args[0], Token: g.token}
			if g.watch {
				return g.keepOpen(cmd, watchEndpoints(cmd.OutOrStdout(), request, g.output))
			}
			conn, done, err := g.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			ctx, cancel := context.WithTimeout(cmd.Context(), g.timeout)
			defer cancel()
			return g.printEndpoints(ctx, cmd.OutOrStdout(), conn, request)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	g.addGRPCFlags(cmd)
	return cmd
}

// endpointJSON is one address of -o json.
type endpointJSON struct {
	Addr      string            `json:"addr"`
	Weight    uint32            `json:"weight"`
	Identity  string            `json:"identity,omitempty"`
	Authority string            `json:"authority,omitempty"`
	Hint      string            `json:"hint,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
}

func newEndpointJSON(a proxy.Address) endpointJSON {
	tls := a.GetTlsIdentity()
	e := endpointJSON{
		Addr: a.Addr.String(), Weight: a.GetWeight(), Labels: a.Labels,
		Identity:  tls.GetDnsLikeIdentity().GetName() + tls.GetUriLikeIdentity().GetUri(),
		Authority: a.GetAuthorityOverride().GetAuthorityOverride(),
	}
	switch h := a.GetProtocolHint(); {
	case h.GetH2() != nil:
		e.Hint = "h2"
	case h.GetOpaque() != nil:
		e.Hint = "opaque"
	}
	return e
}

// printEndpoints prints the first answer, once no message has arrived for the quietPeriod.
func (g *grpcCommand) printEndpoints(
	ctx context.Context,
	to io.Writer,
	conn grpc.ClientConnInterface,
	request proxy.Request,
) error {
	var mu sync.Mutex // guards end and received, which the stream's goroutine sets
	var end *status.Status
	received := false
	events := make(chan struct{}, 1)
	stream := proxy.Open(ctx, conn, request, func(e proxy.Event) {
		if e.End == nil && e.Message.Kind == proxy.Heartbeat {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if e.End != nil {
			end = e.End
		} else {
			received = true
		}
		select {
		case events <- struct{}{}:
		default:
		}
	})
	defer stream.Close()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for done := false; !done; {
		select {
		case <-events:
			timer.Reset(quietPeriod)
		case <-stream.Done():
			done = true
		case <-timer.C:
			done = true
		case <-ctx.Done():
			return noResponseError(request.Authority)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if end != nil && (end.Code() != codes.OK || !received) {
		return g.streamError(end)
	}
	return printAddresses(to, stream.Holds(), g.output)
}

func noResponseError(authority string) error {
	return fmt.Errorf("no response about %s: a cluster may not be synced yet, see 'fingerpost clusters'",
		authority)
}

func printAddresses(to io.Writer, all []proxy.Address, output string) error {
	if output == jsonOutput {
		list := []endpointJSON{}
		for _, a := range all {
			list = append(list, newEndpointJSON(a))
		}
		return PrintJSON(to, list)
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(to, "No endpoints.")
		return err
	}
	t := newTable("IP", "PORT", "NAMESPACE", "POD", "SERVICE", "ZONE", "IDENTITY")
	t.keepColumns = 2
	for _, a := range all {
		t.addRow(
			a.Addr.Addr().String(), strconv.Itoa(int(a.Addr.Port())),
			a.Labels["namespace"], dash(a.Labels["pod"]), a.Labels["service"], dash(a.Labels["zone"]),
			dash(newEndpointJSON(a).Identity),
		)
	}
	return t.print(to)
}

// changeJSON is one message of --watch -o json.
type changeJSON struct {
	At      time.Time      `json:"at"`
	What    proxy.Kind     `json:"what"`
	Reset   bool           `json:"reset,omitempty"` // what is added replaces all addresses before
	Added   []endpointJSON `json:"added,omitempty"`
	Removed []string       `json:"removed,omitempty"`
	Exists  *bool          `json:"exists,omitempty"` // of no-endpoints
}

// watchEndpoints prints every message but heartbeats.
func watchEndpoints(to io.Writer, request proxy.Request, output string) streamFunc {
	encoder := json.NewEncoder(to)
	resumed := false // an earlier stream has received messages
	return func(ctx context.Context, conn grpc.ClientConnInterface) (end *status.Status, received bool) {
		stream := proxy.Open(ctx, conn, request, func(e proxy.Event) {
			if e.End != nil {
				end = e.End
				return
			}
			received = true
			switch {
			case e.Message.Kind == proxy.Heartbeat:
			case output == jsonOutput:
				_ = encoder.Encode(newChangeJSON(e)) // it fails when the output is closed
			default:
				printChange(to, e, resumed)
			}
		})
		<-stream.Done()
		resumed = resumed || received
		return end, received
	}
}

func printChange(to io.Writer, e proxy.Event, resumed bool) {
	at, m := e.At.Format("15:04:05.000"), e.Message
	if m.Reset && resumed {
		fmt.Fprintf(to, "%s  these replace all addresses before\n", at)
	}
	for _, a := range m.Added {
		fmt.Fprintf(to, "%s  +  %-24s %s\n", at, a.Addr, Printable(dash(a.Labels["pod"])))
	}
	for _, a := range m.Removed {
		fmt.Fprintf(to, "%s  -  %s\n", at, a)
	}
	if m.Kind == proxy.NoEndpoints {
		fmt.Fprintf(to, "%s  no endpoints (the service exists: %t)\n", at, m.Exists)
	}
}

func newChangeJSON(e proxy.Event) changeJSON {
	m := e.Message
	c := changeJSON{At: e.At, What: m.Kind, Reset: m.Reset}
	for _, a := range m.Added {
		c.Added = append(c.Added, newEndpointJSON(a))
	}
	for _, a := range m.Removed {
		c.Removed = append(c.Removed, a.String())
	}
	if m.Kind == proxy.NoEndpoints {
		c.Exists = &m.Exists
	}
	return c
}

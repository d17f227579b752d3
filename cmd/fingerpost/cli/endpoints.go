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

// quiet is how long nothing may come before an answer is taken to be complete: a large one comes in several messages.
const quietPeriod = 200 * time.Millisecond

func endpointsCommand(version string) *cobra.Command {
	a := grpcCommand{ReplicaFlags: NewReplicaFlags(version, grpcPort)}
	cmd := &cobra.Command{
		Use:   "endpoints AUTHORITY",
		Short: "Ask a server for the endpoints of a service, as a proxy would",
		Long: `Ask a server for the endpoints of a service, as a proxy would.

AUTHORITY is <service>.<namespace>.svc.<cluster domain>[:port], with the hostname of one instance in front if
need be. It opens a stream of its own; what an existing stream was sent is told by 'fingerpost explain'.`,
		Example: "  fingerpost endpoints web.shop.svc.cluster.local:8080\n  fingerpost endpoints web-federated.shop.svc.cluster.local:8080 --watch --token '{\"nodeName\":\"node-1\"}'",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := tableOrJSON(a.output); err != nil {
				return err
			}
			request := proxy.Request{Authority: args[0], Token: a.token}
			if a.watch {
				return a.keepOpen(cmd, watchEndpoints(cmd.OutOrStdout(), request, a.output))
			}
			conn, done, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
			defer cancel()
			return a.printEndpoints(ctx, cmd.OutOrStdout(), conn, request)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	a.addFlags(cmd)
	return cmd
}

// endpointJSON is one address on the output for machines.
type endpointJSON struct {
	Addr      string            `json:"addr"`
	Weight    uint32            `json:"weight"`
	Identity  string            `json:"identity,omitempty"`
	Authority string            `json:"authority,omitempty"`
	Hint      string            `json:"hint,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
}

func newEndpointJSON(a proxy.Address) endpointJSON {
	e := endpointJSON{
		Addr: a.Addr.String(), Weight: a.GetWeight(), Authority: a.GetAuthorityOverride().GetAuthorityOverride(), Labels: a.Labels,
		Identity: a.GetTlsIdentity().GetDnsLikeIdentity().GetName() + a.GetTlsIdentity().GetUriLikeIdentity().GetUri(),
	}
	switch h := a.GetProtocolHint(); {
	case h.GetH2() != nil:
		e.Hint = "h2"
	case h.GetOpaque() != nil:
		e.Hint = "opaque"
	}
	return e
}

// printEndpoints prints the first answer.
func (a *grpcCommand) printEndpoints(ctx context.Context, to io.Writer, conn grpc.ClientConnInterface, request proxy.Request) error {
	var mu sync.Mutex // guards what the stream's goroutine and this one share
	var end *status.Status
	said := false
	answered := make(chan struct{}, 1)
	stream := proxy.Open(ctx, conn, request, func(e proxy.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.End != nil {
			end = e.End
		}
		if e.End != nil || e.Message.Kind != proxy.Heartbeat {
			said = said || e.End == nil
			select {
			case answered <- struct{}{}:
			default:
			}
		}
	})
	defer stream.Close()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for done := false; !done; {
		select {
		case <-answered:
			timer.Reset(quietPeriod)
		case <-stream.Done():
			done = true
		case <-timer.C:
			done = true
		case <-ctx.Done():
			return fmt.Errorf("no answer about %s: a cluster may not have been heard yet, see 'fingerpost clusters'", request.Authority)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if end != nil && (end.Code() != codes.OK || !said) {
		return a.streamError(end)
	}
	return printAddresses(to, stream.Holds(), a.output)
}

func printAddresses(to io.Writer, all []proxy.Address, output string) error {
	if output == "json" {
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
		e := newEndpointJSON(a)
		t.addRow(a.Addr.Addr().String(), strconv.Itoa(int(a.Addr.Port())), a.Labels["namespace"], dash(a.Labels["pod"]), a.Labels["service"],
			dash(a.Labels["zone"]), dash(e.Identity))
	}
	return t.print(to)
}

// changeJSON is one message on the output for machines.
type changeJSON struct {
	At      time.Time      `json:"at"`
	What    proxy.Kind     `json:"what"`
	Reset   bool           `json:"reset,omitempty"` // what is added replaces all that was before
	Added   []endpointJSON `json:"added,omitempty"`
	Removed []string       `json:"removed,omitempty"`
	Exists  *bool          `json:"exists,omitempty"` // of no-endpoints
}

// watchEndpoints prints every message but heartbeats.
func watchEndpoints(to io.Writer, request proxy.Request, output string) streamFunc {
	encoder := json.NewEncoder(to)
	before := false // there was another stream
	return func(ctx context.Context, conn grpc.ClientConnInterface) (end *status.Status, said bool) {
		stream := proxy.Open(ctx, conn, request, func(e proxy.Event) {
			if e.End != nil {
				end = e.End
				return
			}
			said = true
			m := e.Message
			if m.Kind == proxy.Heartbeat {
				return
			}
			if output == "json" {
				_ = encoder.Encode(newChangeJSON(e)) // it fails where nobody reads any more
				return
			}
			at := e.At.Format("15:04:05.000")
			if m.Reset && before {
				fmt.Fprintf(to, "%s  what was before is replaced\n", at)
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
		})
		<-stream.Done()
		before = before || said
		return end, said
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

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

func profileCommand(version string) *cobra.Command {
	g := newGRPCCommand(version)
	cmd := &cobra.Command{
		Use:   "profile AUTHORITY|IP:PORT",
		Short: "Print the profile of a service or of a workload that a proxy gets",
		Long: `Print the profile that a proxy gets of a port of a name or of an IP, which may be a Service's or a
Pod's, by a stream of its own.

` + authorityHelp,
		Example: "  fingerpost profile web.shop:8080\n  fingerpost profile 10.20.1.7:8080 -o json",
		Args:    arguments("AUTHORITY or IP:PORT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			lookup := g.openLookup(cmd.Context())
			authority, err := g.authority(cmd.Context(), args[0], lookup.replica)
			lookup.close()
			if err != nil {
				return err
			}
			return g.printProfiles(cmd, proxy.Request{Authority: authority, Token: g.token, Reconnect: g.watch})
		},
	}

	g.addGRPCFlags(cmd)
	return cmd
}

// printProfiles prints the first profile, or each one that differs from the one before if they are watched.
func (g *grpcCommand) printProfiles(cmd *cobra.Command, request proxy.Request) error {
	conn, err := g.openConn(cmd)
	if err != nil {
		return err
	}

	defer conn.Close()
	ctx, cancel := g.streamContext(cmd.Context())
	defer cancel()

	var printErr error

	received := false
	stream := proxy.OpenProfile(ctx, conn, request, func(e proxy.Event) {
		switch {
		case e.End != nil:
			conn.observeEnd(e.End)
		case !e.Profile.Repeated && ctx.Err() == nil:
			received = true
			printErr = printProfile(cmd.OutOrStdout(), e.Profile, g.output)
			if printErr != nil || !g.watch {
				cancel() // ends the stream
			}
		}
	})

	<-stream.Done()

	switch {
	case printErr != nil || cmd.Context().Err() != nil:
		return printErr
	case received && !g.watch:
		return nil
	case conn.end != nil:
		return g.streamError(conn.end)
	default:
		return noResponseError(request.Authority)
	}
}

func printProfile(to io.Writer, p *proxy.Profile, output string) error {
	if output != tableOutput {
		b, err := protojson.Marshal(p.DestinationProfile)
		if err != nil {
			return fmt.Errorf("the server's response: %w", err)
		}
		return printPage(to, json.RawMessage(b), output)
	}

	t := newTable("WHAT", "VALUE")
	resource := p.GetProfileRef().GetResource()
	t.addRow("service", dash(p.GetFullyQualifiedName()))
	t.addRow("profile", dash(namespacedName(resource.GetNamespace(), resource.GetName())))
	t.addRow("opaque", p.GetOpaqueProtocol())

	if b := p.GetRetryBudget(); b != nil {
		t.addRow(
			"retries",
			fmt.Sprintf(
				"ratio %g, at least %d/s, over %s",
				b.GetRetryRatio(),
				b.GetMinRetriesPerSecond(),
				b.GetTtl().AsDuration(),
			),
		)
	}

	for _, route := range p.GetRoutes() {
		t.addRow("route", routeText(route))
	}
	for _, o := range p.GetDstOverrides() {
		t.addRow("override", fmt.Sprintf("%s, weight %d", o.GetAuthority(), o.GetWeight()))
	}

	if a := p.Address; a != nil {
		e := newEndpointJSON(*a)
		t.addRow("endpoint", e.Addr)
		t.addRow("pod", dash(namespacedName(e.Labels["namespace"], e.Labels["pod"])))
		t.addRow("identity", dash(e.Identity))
		t.addRow("hint", dash(e.Hint))
	}
	return t.printTo(to)
}

func namespacedName(namespace, name string) string {
	return strings.TrimPrefix(namespace+"/"+name, "/")
}

func routeText(r *pb.Route) string {
	text := r.GetMetricsLabels()["route"]
	if r.GetIsRetryable() {
		text += ", may be retried"
	}
	if d := r.GetTimeout().AsDuration(); d > 0 {
		text += ", times out after " + d.String()
	}
	if n := len(r.GetResponseClasses()); n > 0 {
		text += fmt.Sprintf(", %d response classes", n)
	}
	return dash(text)
}

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
	flags := newGRPCCommand(version)
	cmd := &cobra.Command{
		Use:   "profile AUTHORITY|IP:PORT",
		Short: "Print the profile of a service or of a workload that a proxy gets",
		Long: `Print the profile that a proxy gets of a port of a name or of an IP, which may be a Service's or a
Pod's, by a stream of its own.

` + authorityHelp,
		Example: "  fingerpost profile web.shop:8080\n  fingerpost profile 10.20.1.7:8080 -o json",
		Args:    arguments("AUTHORITY or IP:PORT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			lookup := flags.openLookup(cmd.Context())
			authority, err := flags.authority(cmd.Context(), args[0], lookup.replica)
			lookup.close()
			if err != nil {
				return err
			}
			request := proxy.Request{Authority: authority, Token: flags.token, Reconnect: flags.watch}
			return flags.printProfiles(cmd, request)
		},
	}

	flags.addGRPCFlags(cmd)
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
	if !g.watch {
		if err := conn.await(ctx); err != nil {
			return err
		}
	}

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
		return conn.streamError(conn.end)
	default:
		return conn.noMessageError(request.Authority)
	}
}

func printProfile(to io.Writer, profile *proxy.Profile, output string) error {
	if output != tableOutput {
		b, err := protojson.Marshal(profile.DestinationProfile)
		if err != nil {
			return fmt.Errorf("the server's response: %w", err)
		}
		return printPage(to, json.RawMessage(b), output)
	}

	table := newTable("WHAT", "VALUE")
	resource := profile.GetProfileRef().GetResource()
	table.addRow("service", dash(profile.GetFullyQualifiedName()))
	table.addRow("profile", dash(namespacedName(resource.GetNamespace(), resource.GetName())))
	table.addRow("opaque", profile.GetOpaqueProtocol())

	if b := profile.GetRetryBudget(); b != nil {
		table.addRow(
			"retries",
			fmt.Sprintf(
				"ratio %g, at least %d/s, over %s",
				b.GetRetryRatio(),
				b.GetMinRetriesPerSecond(),
				b.GetTtl().AsDuration(),
			),
		)
	}

	for _, route := range profile.GetRoutes() {
		table.addRow("route", routeText(route))
	}
	for _, o := range profile.GetDstOverrides() {
		table.addRow("override", fmt.Sprintf("%s, weight %d", o.GetAuthority(), o.GetWeight()))
	}

	if a := profile.Address; a != nil {
		e := newEndpointJSON(*a)
		table.addRow("endpoint", e.Addr)
		table.addRow("pod", dash(namespacedName(e.Labels["namespace"], e.Labels["pod"])))
		table.addRow("identity", dash(e.Identity))
		table.addRow("hint", dash(e.Hint))
	}
	return table.printTo(to)
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

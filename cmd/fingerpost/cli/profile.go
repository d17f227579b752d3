package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

func profileCommand(version string) *cobra.Command {
	a := grpcCommand{ReplicaFlags: NewReplicaFlags(version, grpcPort)}
	cmd := &cobra.Command{
		Use:   "profile AUTHORITY|IP:PORT",
		Short: "Ask a server for the profile of a service or of a workload, as a proxy would",
		Long: `Ask a server for the profile of a service or of a workload, as a proxy would: what it says of a port of a name
or of an IP, be it a Service's or a Pod's.`,
		Example: "  fingerpost profile web.shop.svc.cluster.local:8080\n  fingerpost profile 10.20.1.7:8080 -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := tableOrJSON(a.output); err != nil {
				return err
			}
			var failed error // to print
			run := func(ctx context.Context, conn grpc.ClientConnInterface) (end *status.Status, said bool) {
				ctx, cancel := context.WithCancel(ctx) // ends with the first answer, unless all are wanted
				defer cancel()
				stream := proxy.OpenProfile(ctx, conn, proxy.Request{Authority: args[0], Token: a.token}, func(e proxy.Event) {
					switch {
					case e.End != nil:
						end = e.End
					case !e.Profile.Repeated && ctx.Err() == nil:
						said = true
						if failed = printProfile(cmd.OutOrStdout(), e.Profile, a.output); failed != nil || !a.watch {
							cancel()
						}
					}
				})
				<-stream.Done()
				return end, said
			}
			if a.watch {
				err := a.keepOpen(cmd, run)
				return cmp.Or(failed, err)
			}
			conn, done, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
			defer cancel()
			switch end, said := run(ctx, conn); {
			case said || cmd.Context().Err() != nil:
				return failed
			case end != nil:
				return a.streamError(end)
			default:
				return fmt.Errorf("no answer about %s: the cluster may not have been heard yet, see 'fingerpost clusters'", args[0])
			}
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	a.addFlags(cmd)
	return cmd
}

func printProfile(to io.Writer, p *proxy.Profile, output string) error {
	if output == "json" {
		b, err := protojson.MarshalOptions{Multiline: true, Indent: "  "}.Marshal(p.DestinationProfile)
		if err != nil {
			return fmt.Errorf("the server's answer: %w", err)
		}
		_, err = fmt.Fprintf(to, "%s\n", b)
		return err
	}
	t := newTable("WHAT", "VALUE")
	t.addRow("service", dash(p.GetFullyQualifiedName()))
	t.addRow("profile", dash(namespacedName(p.GetProfileRef().GetResource().GetNamespace(), p.GetProfileRef().GetResource().GetName())))
	t.addRow("opaque", strconv.FormatBool(p.GetOpaqueProtocol()))
	if b := p.GetRetryBudget(); b != nil {
		t.addRow("retries", fmt.Sprintf("ratio %g, at least %d/s, over %s", b.GetRetryRatio(), b.GetMinRetriesPerSecond(), b.GetTtl().AsDuration()))
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
	return t.print(to)
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

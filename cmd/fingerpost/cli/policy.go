package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/internal/words"
)

// A policyCommand shows why a client is let in at a port.
type policyCommand struct {
	debugCommand
	from, ip string // of the client
	noTLS    bool
}

func explainPolicyCommand(version string) *cobra.Command {
	flags := policyCommand{debugCommand: newDebugCommand(version)}
	cmd := &cobra.Command{
		Use:   "policy POD:PORT",
		Short: "Explain who is let in at a port of a Pod, and why",
		Long: `Explain who is let in at a port of a Pod, and why: the Server of the port, what it lets in, and the
objects that have no effect there, with the reason.

POD is <namespace>/<name>, or a name with -n. An ExternalWorkload is external/<namespace>/<name>.

With --from the verdict about one client comes first: by which object it is let in, or what would
have to be changed for that. A client without a proxy has --no-tls. Without --from-ip its address
does not count: if it is let in from some networks only, these are named.

The objects are those of this cluster, and the replica has to serve policy (-policy-addr). The exit
code is 1 if the client is refused, also in part, and 4 if there is no such Pod.`,
		Example: `  fingerpost explain policy shop/web-7b9f-x2x4z:8080
  fingerpost explain policy shop/web-7b9f-x2x4z:8080 --from cart.till
  fingerpost explain policy shop/web-7b9f-x2x4z:8080 --from-ip 10.1.2.3 --no-tls
  fingerpost explain policy external/shop/vm-1:5432 --from cart.till -o json`,
		Args: arguments("POD:PORT"),
		RunE: func(cmd *cobra.Command, args []string) error { return flags.run(cmd, args[0]) },
	}

	flags.addAuthorityFlags(cmd)
	flags.addShowFlags(cmd)
	fs := cmd.Flags()
	fs.Lookup("namespace").Usage = "namespace of a Pod that is named without one; the default is \"default\""
	fs.StringVar(&flags.from, "from", "", "client, SERVICEACCOUNT.NAMESPACE or an identity")
	fs.StringVar(&flags.ip, "from-ip", "", "address of the client")
	fs.BoolVar(&flags.noTLS, "no-tls", false, "the client has no proxy, and so no TLS and no identity")
	return cmd
}

func (p *policyCommand) run(cmd *cobra.Command, text string) error {
	workload, port, err := p.parsePort(text)
	switch {
	case err != nil:
		return usageError(cmd, err)
	case p.noTLS && p.from != "":
		return usageError(cmd, errors.New("--from and --no-tls exclude each other: without TLS there is no identity"))
	}

	query := url.Values{"workload": {workload}, "port": {port}, "from": {p.from}, "from-ip": {p.ip}}
	if p.noTLS || p.from == "" && p.ip != "" {
		query.Set("no-tls", "true")
	}

	return show(cmd, &p.debugCommand, view[debug.PolicyPage, []replicaPolicy]{
		path: "/explain/policy?" + query.Encode(),
		merge: func(responses []Response[debug.PolicyPage]) (all []replicaPolicy) {
			for _, r := range responses {
				all = append(all, replicaPolicy{r.Replica, r.Page})
			}
			return all
		},
		print: printPolicies, check: checkPolicies,
	})
}

// parsePort reads a workload and its port, and returns the workload as proxies name it.
func (p *policyCommand) parsePort(text string) (workload, port string, err error) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return "", "", fmt.Errorf("%q has no port: give NAMESPACE/POD:PORT, such as shop/web-7b9f-x2x4z:8080", text)
	}
	name, port := text[:i], text[i+1:]
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", "", fmt.Errorf("%q is no port: a number between 1 and 65535", port)
	}

	name = strings.TrimPrefix(name, "pod/")
	rest, isExternal := strings.CutPrefix(name, "external/")
	namespace, pod, isWhole := strings.Cut(rest, "/")
	if !isWhole {
		namespace, pod = p.serviceNamespace, rest
		if namespace == "" {
			namespace = "default"
		}
	}

	if namespace == "" || pod == "" || strings.Contains(pod, "/") {
		return "", "", fmt.Errorf("%q names no Pod: give NAMESPACE/POD:PORT, or POD:PORT with -n", text)
	}
	if !isExternal {
		return namespace + ":" + pod, port, nil
	}
	object, err := json.Marshal(map[string]string{"ns": namespace, "external_workload": pod})
	return string(object), port, err
}

// A replicaPolicy is what one replica explains of a port.
type replicaPolicy struct {
	Replica string `json:"replica"`
	debug.PolicyPage
}

// checkPolicies returns an error if the client is refused.
func checkPolicies(all []replicaPolicy) error {
	for _, x := range all {
		if x.Verdict == debug.AllRefused || x.Verdict == debug.SomeAllowed {
			return WithExitCode(ExitNo, fmt.Errorf("%s is not let in everywhere", x.Client))
		}
	}
	return nil
}

// printPolicies prints the first, and names the replicas that differ from it.
func printPolicies(frame *frame, all []replicaPolicy, _ bool, _ time.Time) {
	printPolicy(frame, all[0].PolicyPage)
	for _, x := range all[1:] {
		if isOther := x.Policy != all[0].Policy || x.Verdict != all[0].Verdict; isOther {
			warnDiffer(frame, all[0].Replica, x.Replica)
		}
	}
}

func warnDiffer(frame *frame, one, other string) {
	frame.printf("")
	frame.printf("warning: replicas %s and %s differ: one may not have read the newest objects yet", one, other)
}

func printPolicy(frame *frame, page debug.PolicyPage) {
	if page.Verdict != "" {
		frame.printf("%s: %s", page.Verdict, page.Client)
	}
	frame.printf("%s, port %d: %s, protocol %s", page.Workload, page.Port, page.Policy, page.Protocol)
	if page.Limit != "" {
		frame.printf("limit: %s", page.Limit)
	}

	if len(page.Decisions) > 0 {
		printDecisions(frame, page.Decisions)
	}
	printGrants(frame, page)
	printExplained(frame, page.Explained)
}

// printDecisions prints what becomes of the client, what is refused first.
func printDecisions(frame *frame, all []debug.PolicyDecision) {
	frame.printf("")
	table := newTable("", "OF", "WHY")
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b debug.PolicyDecision) int { return debug.TrueFirst(!a.Allowed, !b.Allowed) })

	for _, decision := range all {
		addDecision(table, decision)
	}
	frame.addTable(table)
}

func addDecision(table *table, decision debug.PolicyDecision) {
	of := decision.Route
	if of == "" {
		of = "connections"
	}
	if decision.Allowed {
		why := decision.By
		if decision.FromOnly != "" {
			why += ", from " + decision.FromOnly + " only"
		}
		table.addRow("√", of, why).colours[""] = Green
		return
	}

	for i, why := range decision.Why[:min(len(decision.Why), maxReasons)] {
		if i > 0 {
			table.addRow("", "", why)
		} else {
			table.addRow("×", of, why).colours[""] = Red
		}
	}
	if more := len(decision.Why) - maxReasons; more > 0 {
		table.addRow("", "", fmt.Sprintf("and %d more, see -o json", more))
	}
}

// Bounds on what is printed of a page: -o json has all of it.
const (
	maxReasons = 10 // of a decision
	maxRows    = 40 // of a table
)

// printGrants prints what lets clients in.
func printGrants(frame *frame, page debug.PolicyPage) {
	table := newTable("AT", "BY", "LETS IN")
	for _, g := range page.Authorizations {
		table.addRow("port", g.By, g.Clients)
	}
	for _, route := range page.Routes {
		for _, g := range route.Authorizations {
			table.addRow(route.Route, g.By, g.Clients)
		}
	}

	frame.printf("")
	if len(table.rows) == 0 {
		frame.printf("Nothing lets any client in.")
		return
	}
	addRows(frame, table)
}

// addRows adds a table, of which a part is left out if it is too long.
func addRows(frame *frame, table *table) {
	more := len(table.rows) - maxRows
	table.rows = table.rows[:min(len(table.rows), maxRows)]
	frame.addTable(table)
	if more > 0 {
		frame.printf("and %d more, see -o json", more)
	}
}

// printExplained prints why an answer is what it is: what has no effect, and what is wrong with objects.
func printExplained(frame *frame, explained debug.Explained) {
	for _, note := range explained.Notes {
		frame.printf("note: %s", note)
	}

	counts, others := newTable("COUNTS", "WHY"), newTable("HAS NO EFFECT", "WHY")
	for _, o := range explained.Objects {
		if o.Counts {
			counts.addRow(o.Object, o.Why)
		} else {
			others.addRow(o.Object, o.Why)
		}
	}

	found := newTable("WRONG", "WHAT")
	for _, f := range explained.Findings {
		for _, text := range f.Lines {
			if f.Unreadable {
				text = "nothing of it counts: " + text
			}
			found.addRow(f.Object, text)
		}
	}

	for _, table := range []*table{found, others, counts} {
		if len(table.rows) > 0 {
			frame.printf("")
			addRows(frame, table)
		}
	}
	if explained.More > 0 {
		frame.printf("and %s more", words.Count(explained.More, "object"))
	}
}

// A routeCommand shows why requests go where they go.
type routeCommand struct {
	explanationCommand
	from string // namespace of the client
}

func explainRouteCommand(version string) *cobra.Command {
	flags := routeCommand{explanationCommand: explanationCommand{debugCommand: newDebugCommand(version)}}
	cmd := &cobra.Command{
		Use:   "route SERVICE:PORT|IP:PORT",
		Short: "Explain by which routes clients reach a target, and why",
		Long: `Explain by which routes clients reach a target, and why: the rules with what they match, where each
leads, whether that exists, and what fails. Then the routes that have no effect, with the reason.

A Service is named as for 'fingerpost explain': web.shop:8080, shop/web:8080, svc/web:8080 -n shop.
An address is looked up as a proxy does that has no name: it may be that of a Service, or outside of
the cluster, where an EgressNetwork of the client's namespace may decide about it.

--from is the namespace of the client. Routes in it count for its clients alone.

The objects are those of this cluster, and the replica has to serve policy (-policy-addr). The exit
code is 1 if some requests fail, and 4 if the target is nothing that clients can ask for.`,
		Example: `  fingerpost explain route web.shop:8080 --from till
  fingerpost explain route 10.96.0.17:8080 --from till
  fingerpost explain route 198.51.100.7:443 --from till -o json`,
		Args: arguments("SERVICE:PORT"),
		RunE: func(cmd *cobra.Command, args []string) error { return flags.run(cmd, args[0]) },
	}

	flags.addAuthorityFlags(cmd)
	flags.addShowFlags(cmd)
	cmd.Flags().StringVar(&flags.from, "from", "", "namespace of the client; empty for one without routes of its own")
	return cmd
}

func (r *routeCommand) run(cmd *cobra.Command, text string) error {
	target, err := r.explainedAuthority(cmd.Context(), text)
	if err != nil {
		return err
	}

	query := url.Values{"target": {target}, "from": {r.from}}
	return show(cmd, &r.debugCommand, view[debug.RoutePage, []replicaRoutes]{
		path: "/explain/route?" + query.Encode(),
		merge: func(responses []Response[debug.RoutePage]) (all []replicaRoutes) {
			for _, response := range responses {
				all = append(all, replicaRoutes{response.Replica, response.Page})
			}
			return all
		},
		print: printRoutes, check: checkRoutes,
	})
}

// replicaRoutes are what one replica explains of a target.
type replicaRoutes struct {
	Replica string `json:"replica"`
	debug.RoutePage
}

func checkRoutes(all []replicaRoutes) error {
	for _, x := range all {
		if x.Failing > 0 {
			return WithExitCode(ExitNo, errors.New("some requests fail"))
		}
	}
	return nil
}

// printRoutes prints the first, and names the replicas that differ from it.
func printRoutes(frame *frame, all []replicaRoutes, _ bool, _ time.Time) {
	printRoute(frame, all[0].RoutePage)
	for _, x := range all[1:] {
		if x.Of != all[0].Of || x.Failing != all[0].Failing || len(x.Routes) != len(all[0].Routes) {
			warnDiffer(frame, all[0].Replica, x.Replica)
		}
	}
}

func printRoute(frame *frame, page debug.RoutePage) {
	if page.Failing > 0 {
		frame.printf("%s of what follows %s (×)", words.Count(page.Failing, "part"), fails(page.Failing))
	}
	client := "clients"
	if page.Client != "" {
		client += " in " + page.Client
	}
	frame.printf("%s for %s: %s, protocol %s", page.Target, client, page.Of, page.Protocol)
	frame.printf("")

	table := newTable("", "ROUTE", "RULE", "MATCHES", "PART", "TO")
	table.optional = []string{"PART", "RULE"}
	for _, route := range page.Routes {
		addRoute(table, route)
	}
	addRows(frame, table)
	printExplained(frame, page.Explained)
}

func fails(n int) string {
	if n == 1 {
		return "fails"
	}
	return "fail"
}

// addRoute adds the rules of a route.
func addRoute(table *table, route debug.RoutedRoute) {
	name := route.Route
	if len(route.Hosts) > 0 {
		name += " for " + words.Some(route.Hosts, 3)
	}
	if route.Opaque {
		name += " (not HTTP)"
	}
	if len(route.Rules) == 0 {
		table.addRow("×", name, "-", "nothing", "", "it matches no request").colours[""] = Red
	}

	for _, rule := range route.Rules {
		number := "-"
		if rule.Number > 0 {
			number = strconv.Itoa(rule.Number)
		}
		matches := "all"
		if len(rule.Matches) > 0 {
			matches = words.Some(rule.Matches, 3)
		}

		if rule.Fails != "" {
			table.addRow("×", name, number, matches, "100%", "fails: "+rule.Fails).colours[""] = Red
			continue
		}
		addBackends(table, rule, name, number, matches)
	}
}

// addBackends adds where a rule leads.
func addBackends(table *table, rule debug.RoutedRule, name, number, matches string) {
	more := strings.Join(slices.Concat([]string{""}, rule.Filters, rule.Settings), ", ")
	for _, b := range rule.Backends {
		if b.Fails != "" {
			table.addRow("×", name, number, matches, b.Percent, b.To+" fails: "+b.Fails).colours[""] = Red
			continue
		}
		table.addRow("√", name, number, matches, b.Percent, b.To+more).colours[""] = Green
	}
}

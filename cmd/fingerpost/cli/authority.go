package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
)

// authorityHelp is for commands whose argument is an authority.
const authorityHelp = `AUTHORITY is <service>.<namespace>.svc.<cluster domain>[:port]. The hostname of one instance may
stand in front of it. Shorter forms are web.shop:8080, shop/web:8080, svc/web:8080 -n shop; of a
Service with one port they need no port.`

// lookupTimeout bounds requests that only add to an answer.
const lookupTimeout = 2 * time.Second

// A serviceName is a Service as people name it.
type serviceName struct{ namespace, name, port string }

// parseServiceName reads the short forms of an authority. Whole ones, and addresses, are not for it.
func parseServiceName(text string) (s serviceName, short bool, err error) {
	host, port, hasPort := strings.Cut(text, ":")
	isIP := func(text string) bool { _, err := netip.ParseAddr(text); return err == nil }
	if isIP(text) || isIP(host) || strings.HasPrefix(text, "[") || strings.Contains(host, ".svc.") {
		return s, false, nil
	}

	s.port = port
	kind, name, hasKind := strings.Cut(host, "/")

	labels := strings.Split(strings.TrimSuffix(host, ".svc"), ".")
	switch {
	case hasKind && slices.Contains([]string{"svc", "service", "services"}, kind):
		s.name = name
	case hasKind && kind != "":
		s.namespace, s.name = kind, name
	case hasKind:
	case len(labels) == 2:
		s.name, s.namespace = labels[0], labels[1]
	case len(labels) == 1 && host == labels[0]:
		s.name = host
	}

	bad := len(validation.IsDNS1123Label(s.name)) > 0 || hasPort && port == "" ||
		s.namespace != "" && len(validation.IsDNS1123Label(s.namespace)) > 0
	if bad {
		return s, true, fmt.Errorf("%q names no Service: give web.shop:8080, shop/web:8080, svc/web:8080 -n shop "+
			"or web.shop.svc.cluster.local:8080", text)
	}
	return s, true, nil
}

// addAuthorityFlags adds the flags of a command about a Service. There -n is the Service's namespace, as for
// kubectl.
func (r *ReplicaFlags) addAuthorityFlags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&r.serviceNamespace, "namespace", "n", "",
		"namespace of a Service that is named without one; empty for that of the kubeconfig's context")
	groupFlags(cmd.Flags(), func(fs *pflag.FlagSet) {
		fs.StringVar(&r.Namespace, "fingerpost-namespace", "", "namespace of Fingerpost's Pods; empty for all")
		r.addReplicaFlags(fs)
	})
}

// authority returns the whole authority of a Service. from is the debug server that has its ports and the
// cluster's domain; nil, or one that does not respond, for none.
func (r *ReplicaFlags) authority(ctx context.Context, text string, from *Replica) (string, error) {
	service, short, err := parseServiceName(text)
	if err != nil || !short {
		return text, WithExitCode(ExitUsage, err)
	}

	if service.namespace == "" {
		service.namespace = cmp.Or(r.serviceNamespace, r.currentNamespace())
	}

	domain := "cluster.local"
	if from != nil {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()

		var page debug.ClustersPage
		if from.Fetch(ctx, "/debug/clusters", &page) == nil { // otherwise the server reports it
			for _, c := range page.Clusters {
				if c.Local {
					domain = cmp.Or(c.ClusterDomain, domain)
				}
			}
			if err := service.completePort(ctx, from); err != nil {
				return "", err
			}
		}
	}

	authority := service.name + "." + service.namespace + ".svc." + domain
	if service.port != "" {
		authority += ":" + service.port
	}
	return authority, nil
}

// completePort sets the port of a Service that has one port only, or the number of one that is named.
func (s *serviceName) completePort(ctx context.Context, from *Replica) error {
	if _, err := strconv.ParseUint(s.port, 10, 16); err == nil {
		return nil
	}

	var page struct{ Ports []federation.ServicePort }
	err := from.Fetch(ctx, "/debug/services/"+s.namespace+"/"+s.name, &page)
	if err != nil {
		if ExitCode(err) != ExitNotFound {
			err = nil // the server reports it
		}
		return err
	}

	var numbers, ports []string
	for _, p := range page.Ports {
		number := strconv.Itoa(int(p.Number))
		if s.port != "" && s.port == p.Name {
			s.port = number
			return nil
		}
		numbers = append(numbers, number)
		ports = append(ports, strings.TrimSuffix(number+" ("+p.Name+")", " ()"))
	}

	service, all := "Service "+s.namespace+"/"+s.name, strings.Join(ports, ", ")
	switch {
	case s.port != "":
		return WithExitCode(ExitNotFound, fmt.Errorf("%s has no port %s: it has %s",
			service, s.port, cmp.Or(all, "none")))
	case len(ports) > 1:
		return WithExitCode(ExitUsage, fmt.Errorf("%s has the ports %s: name one, such as %s.%s:%s",
			service, all, s.name, s.namespace, numbers[0]))
	case len(ports) == 1:
		s.port = numbers[0]
	}
	return nil
}

// currentNamespace is the one of the kubeconfig's context.
func (k *kubeFlags) currentNamespace() string {
	namespace, _, err := k.clientConfig().Namespace()
	if err != nil {
		return "default"
	}
	return namespace
}

// A clusterLookup finds the cluster of an address, which the protocol does not have, at the debug server of a
// replica.
type clusterLookup struct {
	flags     ReplicaFlags // of debug servers
	authority string
	replica   *Replica                   // nil: none was opened
	claims    map[string]discovery.Claim // by address; those that count
}

// debugFlags returns the flags that lead to the debug servers of the same replicas; none if they are not
// known.
func (g *grpcCommand) debugFlags() (flags ReplicaFlags, known bool) {
	flags = g.ReplicaFlags
	flags.port, flags.addrs = debugPort, g.debugAddrs
	if len(g.addrs) == 0 || len(g.debugAddrs) > 0 {
		return flags, true
	}

	for _, given := range g.addrs { // at the default port of the one there is the default port of the other
		addr, err := grpcPort.parseAddress(given)
		host, isDefault := strings.CutSuffix(addr, fmt.Sprintf(":%d", grpcPort.number))
		if err == nil && isDefault {
			flags.addrs = append(flags.addrs, fmt.Sprintf("%s:%d", host, debugPort.number))
		}
	}
	return flags, len(flags.addrs) > 0
}

// openLookup opens a debug server of the replicas. Without one a lookup finds nothing, which is no error.
func (g *grpcCommand) openLookup(ctx context.Context) *clusterLookup {
	l := &clusterLookup{claims: map[string]discovery.Claim{}}
	var known bool
	if l.flags, known = g.debugFlags(); known {
		l.openReplica(ctx)
	}
	return l
}

func (l *clusterLookup) openReplica(ctx context.Context) {
	if replica, err := l.flags.openFirst(ctx); err == nil {
		l.replica = &replica
	}
}

func (l *clusterLookup) close() {
	if l.replica != nil {
		l.replica.Close()
	}
}

// readClaims reads the claims anew. If that fails, those read before stay.
func (l *clusterLookup) readClaims(ctx context.Context) {
	if l.replica == nil {
		return
	}

	request, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var x discovery.Explanation
	path := "/debug/explain?" + url.Values{"authority": {l.authority}}.Encode()
	if l.replica.Fetch(request, path, &x) != nil {
		l.close() // the Pod may have been replaced: the next change asks another one
		l.openReplica(ctx)
		return
	}

	l.claims = map[string]discovery.Claim{}
	for _, c := range x.Claims {
		if c.Kept || l.claims[c.Addr].Cluster == "" {
			l.claims[c.Addr] = c
		}
	}
}

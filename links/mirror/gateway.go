package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/internal/logs"
	"github.com/fingerpost/fingerpost/links"
)

const (
	resolveEvery   = 30 * time.Second
	resolveTimeout = 5 * time.Second
	resolveRetry   = 5 * time.Second // after a failure, and twice as long after each further one, up to resolveEvery

	maxNamedHosts = 3 // that lead nowhere, in a message

	// maxGatewayIPs is how many IP addresses of a gateway are used, whatever its names resolve to: as many as
	// Kubernetes has in Endpoints.
	maxGatewayIPs = 1000
)

// A gateway resolves and probes the gateway of one cluster.
type gateway struct {
	log     logr.Logger
	link    *links.Mirroring
	changed func()
	metrics *metrics

	resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	dial    func(ctx context.Context, network, address string) (net.Conn, error) // nil: over the network
	// probePort returns the port of the Service over which the gateway is probed; 0 if that is not known yet.
	probePort func() (int32, error)

	resolved watch.Value[resolution]
	dead     atomic.Bool
	unprobed watch.Value[string] // why it cannot be probed; empty if it can, or need not

	cancel     context.CancelFunc
	probeEnded chan struct{} // closed after the last probe
}

// A resolution is where the hosts of a gateway lead. It is immutable; the zero value is that they were not asked for
// yet.
type resolution struct {
	done       bool                    // each host was asked for
	addresses  []string                // IP addresses, sorted
	unresolved int                     // host names that lead nowhere, or whose last addresses are kept
	problem    string                  // describes them, for people; empty for none
	last       map[string][]netip.Addr // what each name led to last
}

// isOf reports whether a gateway is resolved and probed as a Link describes it.
func (g *gateway) isOf(l *links.Mirroring) bool {
	return g.link.Link == l.Link && reflect.DeepEqual(g.link.Gateway, l.Gateway) &&
		reflect.DeepEqual(g.link.Probe, l.Probe)
}

func (g *gateway) state() gatewayState {
	r, _ := g.resolved.Load()
	unprobed, _ := g.unprobed.Load()
	return gatewayState{
		addresses: r.addresses, dead: g.dead.Load(), resolving: !r.done, problem: r.problem,
		unresolved: r.unresolved, unprobed: unprobed,
	}
}

// runResolver keeps the addresses up to date until ctx ends, or for ever if there are no names to resolve.
func (g *gateway) runResolver(ctx context.Context) {
	hasName := slices.ContainsFunc(g.link.Gateway.Addresses, isName)
	for failures := 0; ; {
		old, _ := g.resolved.Load()
		next := g.resolveHosts(ctx, old)
		if ctx.Err() != nil {
			return
		}

		g.logResolution(old, next)
		g.resolved.Store(next)
		if !slices.Equal(old.addresses, next.addresses) || old.problem != next.problem || !old.done {
			g.changed()
		}

		failures++
		if next.problem == "" {
			failures = 0
		}
		if pause := pauseAfter(failures); !hasName || !sleepContext(ctx, pause+rand.N(pause/10)) {
			return
		}
	}
}

// pauseAfter returns how long names are not resolved after a number of failures in a row.
func pauseAfter(failures int) time.Duration {
	if failures == 0 || failures > 3 {
		return resolveEvery
	}
	return min(resolveRetry<<(failures-1), resolveEvery)
}

func (g *gateway) logResolution(old, next resolution) {
	switch {
	case next.problem == old.problem:
	case next.problem != "":
		g.log.Error(errors.New(next.problem), "The gateway of a cluster cannot be resolved",
			"cluster", g.link.Cluster, "addresses", len(next.addresses))
	default:
		g.log.Info("The gateway of a cluster is resolved again",
			"cluster", g.link.Cluster, "addresses", len(next.addresses))
	}
}

func isName(host string) bool {
	_, err := netip.ParseAddr(host)
	return err != nil
}

// resolveHosts returns where the hosts of the gateway lead now. A name that cannot be resolved, or only to what
// Endpoints may not hold, keeps its last addresses. Names are resolved at once: each may take resolveTimeout.
func (g *gateway) resolveHosts(ctx context.Context, old resolution) resolution {
	hosts := g.link.Gateway.Addresses
	found, problems := make([][]netip.Addr, len(hosts)), make([]error, len(hosts))
	var wg sync.WaitGroup
	for i, host := range hosts {
		if addr, err := netip.ParseAddr(host); err == nil {
			found[i] = []netip.Addr{addr}
			continue
		}
		wg.Go(func() { found[i], problems[i] = g.lookupHost(ctx, host) })
	}
	wg.Wait()

	next := resolution{done: true, last: map[string][]netip.Addr{}}
	var texts []string

	for i, host := range hosts {
		if problems[i] != nil {
			found[i] = old.last[host]
			texts = append(texts, describeUnresolved(host, problems[i], found[i]))
		}
		if isName(host) {
			next.last[host] = found[i]
		}
		for _, addr := range found[i] {
			next.addresses = append(next.addresses, addr.Unmap().String())
		}
	}

	slices.Sort(next.addresses)
	next.addresses = slices.Compact(next.addresses)
	next.addresses = next.addresses[:min(len(next.addresses), maxGatewayIPs)]
	next.unresolved = len(texts)
	if more := len(texts) - maxNamedHosts; more > 0 {
		texts = append(texts[:maxNamedHosts], fmt.Sprintf("and %d more", more))
	}
	next.problem = strings.Join(texts, "; ")
	return next
}

// describeUnresolved describes a name that leads nowhere, and which addresses are kept, for people.
func describeUnresolved(host string, problem error, kept []netip.Addr) string {
	text := fmt.Sprintf("%s in spec.gatewayAddress %s", host, problem)
	if len(kept) > 0 {
		text += ": its last addresses are kept, " + describeAddresses(kept)
	}
	return text
}

// describeAddresses lists addresses, for people; of many the first ones.
func describeAddresses[A any](all []A) string {
	var texts []string
	for _, addr := range all[:min(len(all), maxNamedHosts)] {
		texts = append(texts, fmt.Sprint(addr))
	}
	if more := len(all) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, ", ")
}

// lookupHost returns the addresses of a name that Endpoints may hold, sorted, or why there are none. The error does
// not depend on which DNS server was asked, so that it is the same as long as the reason is.
func (g *gateway) lookupHost(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()

	found, err := g.resolve(ctx, host)
	dns, isDNS := errors.AsType[*net.DNSError](err)
	switch {
	case isDNS && dns.IsNotFound:
		return nil, errors.New("cannot be resolved: there is no such host")
	case isDNS && dns.IsTimeout, ctx.Err() != nil:
		return nil, fmt.Errorf("cannot be resolved: DNS does not answer within %s", resolveTimeout)
	case isDNS:
		return nil, fmt.Errorf("cannot be resolved: %s", dns.Err)
	case err != nil:
		return nil, fmt.Errorf("cannot be resolved: %w", err)
	}

	slices.SortFunc(found, netip.Addr.Compare)
	usable := slices.DeleteFunc(slices.Clone(found), func(ip netip.Addr) bool { return !links.IsGatewayIP(ip) })
	switch {
	case len(found) == 0:
		return nil, errors.New("has no address")
	case len(usable) == 0:
		return nil, fmt.Errorf("has no address that can be that of a gateway: %s", describeAddresses(found))
	}
	return usable, nil
}

// runProbe probes the gateway once a period, plus up to a tenth of it, until ctx ends. The gateway counts as
// dead after the Link's number of consecutive failures, and as alive from the next success on. While there is no way
// to ask it, it counts as it did before.
func (g *gateway) runProbe(ctx context.Context) {
	probe := g.link.Probe
	transport := &http.Transport{DialContext: g.dial, DisableKeepAlives: true}
	client := &http.Client{
		Transport: transport, Timeout: probe.Timeout,
		// A gateway must not choose what is requested from within this Pod.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	failures := 0
	g.metrics.setAlive(g.link.Cluster, true)
	defer g.metrics.deleteGateway(g.link.Cluster)

	for sleepContext(ctx, probe.Period+rand.N(probe.Period/10+1)) {
		port, err := g.probePort()
		g.reportUnprobed(err)
		if err != nil || port == 0 {
			continue
		}
		url, began := probeURL(g.link, port), time.Now()
		err = probeOnce(ctx, client, url)
		if ctx.Err() != nil {
			return
		}

		g.metrics.observeProbe(g.link.Cluster, err == nil, time.Since(began))
		if err == nil {
			failures = 0
		} else {
			failures++
		}

		dead := failures >= probe.FailureThreshold
		if dead == g.dead.Load() {
			continue
		}

		if dead {
			logs.Warn(g.log, "A gateway fails its probes: its mirrors are not ready", "cluster", g.link.Cluster,
				"url", url, "failures", failures, "error", err.Error())
		} else {
			g.log.Info("A gateway answers its probes again", "cluster", g.link.Cluster)
		}
		g.dead.Store(dead)
		g.metrics.setAlive(g.link.Cluster, !dead)
		g.changed()
	}
}

// reportUnprobed reports why the gateway cannot be probed; nil: it can.
func (g *gateway) reportUnprobed(err error) {
	next := ""
	if err != nil {
		next = err.Error()
	}
	if old, _ := g.unprobed.Load(); old == next {
		return
	}
	if err != nil {
		g.log.Error(err, "A gateway cannot be probed: it counts as it did before", "cluster", g.link.Cluster)
	}
	g.unprobed.Store(next)
	g.changed()
}

func probeOnce(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}

	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()

	if _, err := io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the gateway answers %s", response.Status)
	}
	return nil
}

// probeURL leads over the gateway's Service, so that this Pod's sidecar uses mTLS as it does for other
// clients. A Service is asked by its own port, whatever the port of the gateway is.
func probeURL(l *links.Mirroring, port int32) string {
	service := probePrefix + l.Link.Name
	return fmt.Sprintf("http://%s.%s.svc:%d%s", service, l.Link.Namespace, port, l.Probe.Path)
}

// probedBy returns the port of a Service by which a gateway is probed, or why there is none. It is the one that
// Linkerd's chart calls mc-probe, or else the only one for TCP. Endpoints have the gateway's port under its name.
func probedBy(key api.Key, svc *corev1.Service) (corev1.ServicePort, error) {
	var all []corev1.ServicePort
	switch {
	case svc == nil:
		return corev1.ServicePort{}, fmt.Errorf("the Service %s, over which the gateway is probed, does not exist", key)
	case !isProbeService(svc):
		return corev1.ServicePort{}, fmt.Errorf("the Service %s exists already, and is not one over which a gateway "+
			"is probed: delete it, or rename the Link", key)
	}

	for _, p := range svc.Spec.Ports {
		if protocolOf(p) != corev1.ProtocolTCP {
			continue
		}
		if p.Name == probePort {
			return p, nil
		}
		all = append(all, p)
	}

	if len(all) != 1 {
		return corev1.ServicePort{}, fmt.Errorf("the Service %s, over which the gateway is probed, has %d TCP ports "+
			"and none of the name %s: name one so", key, len(all), probePort)
	}
	return all[0], nil
}

// isProbeService reports whether a Service is one over which a gateway is probed, by any creator.
func isProbeService(svc *corev1.Service) bool {
	return isOurs(svc) || svc.Labels[gatewayLabel] == "true"
}

// probePort returns the port by which the gateway of a Link is probed; 0 before Services were listed.
func (t *term) probePort(l *link) (int32, error) {
	if !watch.IsClosed(t.ready) {
		return 0, nil
	}
	k := probeService(l)
	port, err := probedBy(k, t.readLocal(k))
	return port.Port, err
}

func resolveHost(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// sleepContext returns true after d, or false when ctx ends.
func sleepContext(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

package mirror

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/links"
)

const (
	resolveEvery   = 30 * time.Second
	resolveTimeout = 5 * time.Second

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

	addresses watch.Value[[]string] // IP addresses, sorted; none as long as they are not known
	dead      atomic.Bool

	lastResolved map[string][]netip.Addr // by host name; owned by runResolver

	cancel     context.CancelFunc
	probeEnded chan struct{} // closed after the last probe
}

// isOf reports whether a gateway is resolved and probed as a Link describes it.
func (g *gateway) isOf(l *links.Mirroring) bool {
	return g.link.Link == l.Link && reflect.DeepEqual(g.link.Gateway, l.Gateway) &&
		reflect.DeepEqual(g.link.Probe, l.Probe)
}

func (g *gateway) state() gatewayState {
	addresses, _ := g.addresses.Load()
	return gatewayState{addresses: addresses, dead: g.dead.Load()}
}

// runResolver keeps the addresses up to date until ctx ends, or for ever if there are no names to resolve.
func (g *gateway) runResolver(ctx context.Context) {
	for {
		next, names := g.resolveAddresses(ctx)
		if ctx.Err() != nil {
			return
		}
		if old, _ := g.addresses.Load(); !slices.Equal(old, next) {
			g.addresses.Store(next)
			g.changed()
		}
		if !names || !sleepContext(ctx, resolveEvery+rand.N(resolveEvery/10)) {
			return
		}
	}
}

// resolveAddresses returns the sorted addresses of the gateway, and whether names are among its hosts. A name
// that cannot be resolved, or only to what Endpoints may not hold, keeps its last addresses.
func (g *gateway) resolveAddresses(ctx context.Context) (addresses []string, names bool) {
	var all []netip.Addr
	for _, host := range g.link.Gateway.Addresses {
		if addr, err := netip.ParseAddr(host); err == nil {
			all = append(all, addr)
			continue
		}
		names = true
		found, err := g.lookupHost(ctx, host)
		switch {
		case ctx.Err() != nil:
			return nil, true
		case err != nil:
			g.log.Info("The name of a gateway cannot be resolved: its last addresses are kept",
				"cluster", g.link.Cluster, "name", host, "keeping", len(g.lastResolved[host]),
				"error", err.Error())
		default:
			g.lastResolved[host] = found
		}
		all = append(all, g.lastResolved[host]...)
	}
	for _, addr := range all {
		addresses = append(addresses, addr.Unmap().String())
	}
	slices.Sort(addresses)
	addresses = slices.Compact(addresses)
	return addresses[:min(len(addresses), maxGatewayIPs)], names
}

func (g *gateway) lookupHost(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	found, err := g.resolve(ctx, host)
	usable := slices.DeleteFunc(slices.Clone(found), func(ip netip.Addr) bool { return !links.IsGatewayIP(ip) })
	if err == nil && len(usable) == 0 {
		err = fmt.Errorf("it has no address that Endpoints may hold: %v", found)
	}
	return usable, err
}

// runProbe probes the gateway once a period, plus up to a tenth of it, until ctx ends. The gateway counts as
// dead after the Link's number of consecutive failures, and as alive from the next success on.
func (g *gateway) runProbe(ctx context.Context) {
	p := g.link.Probe
	transport := &http.Transport{DialContext: g.dial, DisableKeepAlives: true}
	client := &http.Client{
		Transport: transport, Timeout: p.Timeout,
		// A gateway must not choose what is requested from within this Pod.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	url := probeURL(g.link)
	failures := 0
	g.metrics.setAlive(g.link.Cluster, true)
	defer g.metrics.deleteGateway(g.link.Cluster)
	for sleepContext(ctx, p.Period+rand.N(p.Period/10+1)) {
		began := time.Now()
		err := probeOnce(ctx, client, url)
		if ctx.Err() != nil {
			return
		}
		g.metrics.observeProbe(g.link.Cluster, err == nil, time.Since(began))
		if err == nil {
			failures = 0
		} else {
			failures++
		}
		dead := failures >= p.FailureThreshold
		if dead == g.dead.Load() {
			continue
		}
		if dead {
			g.log.Info("A gateway fails its probes: its mirrors are not ready", "cluster", g.link.Cluster,
				"url", url, "failures", failures, "error", err.Error())
		} else {
			g.log.Info("A gateway answers its probes again", "cluster", g.link.Cluster)
		}
		g.dead.Store(dead)
		g.metrics.setAlive(g.link.Cluster, !dead)
		g.changed()
	}
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
// clients.
func probeURL(l *links.Mirroring) string {
	service := probePrefix + l.Link.Name
	return fmt.Sprintf("http://%s.%s.svc:%d%s", service, l.Link.Namespace, l.Probe.Port, l.Probe.Path)
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

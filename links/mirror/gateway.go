package mirror

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/fingerpost/fingerpost/federation/watch"
	"github.com/fingerpost/fingerpost/links"
)

const (
	resolveEvery   = 30 * time.Second
	resolveTimeout = 5 * time.Second
)

// A gateway is the way into one cluster: where it is, and whether it answers.
type gateway struct {
	log     logr.Logger
	options Options
	link    *links.Mirroring
	changed func()
	metrics *metrics

	addresses watch.Value[[]string] // IP addresses, sorted; none as long as they are not known
	dead      watch.Value[bool]

	lastResolved map[string][]netip.Addr // what each name was resolved to; owned by resolve
}

func (g *gateway) state() gatewayState {
	addresses, _ := g.addresses.Load()
	dead, _ := g.dead.Load()
	return gatewayState{addresses: addresses, dead: dead}
}

// resolve keeps the addresses up to date until ctx ends. A name that cannot be resolved keeps the addresses that it had.
func (g *gateway) runResolver(ctx context.Context) {
	for {
		var all []netip.Addr
		names := false
		for _, host := range g.link.Gateway.Addresses {
			if addr, err := netip.ParseAddr(host); err == nil {
				all = append(all, addr.Unmap())
				continue
			}
			names = true
			found, err := g.lookupHost(ctx, host)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil || len(found) == 0:
				g.log.Info("The name of a gateway cannot be resolved: its last addresses are kept", "cluster", g.link.Cluster, "name", host,
					"keeping", len(g.lastResolved[host]), "error", fmt.Sprint(err))
			default:
				g.lastResolved[host] = found
			}
			all = append(all, g.lastResolved[host]...)
		}
		var next []string
		for _, addr := range all {
			next = append(next, addr.Unmap().String())
		}
		slices.Sort(next)
		next = slices.Compact(next)
		if old, _ := g.addresses.Load(); !slices.Equal(old, next) {
			g.addresses.Store(next)
			g.changed()
		}
		if !names || !sleepContext(ctx, resolveEvery+rand.N(resolveEvery/10)) {
			return
		}
	}
}

func (g *gateway) lookupHost(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	return g.options.Resolve(ctx, host)
}

// probe asks the gateway whether it is alive, each period and up to a tenth of it more, until ctx ends. It counts as alive until it
// fails as often in a row as the Link says.
func (g *gateway) runProbe(ctx context.Context) {
	p := g.link.Probe
	transport := &http.Transport{DialContext: g.options.Dial, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: p.Timeout}
	url := g.options.ProbeURL(g.link)
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
		was, _ := g.dead.Load()
		dead := failures >= p.FailureThreshold
		if was == dead {
			continue
		}
		if dead {
			g.log.Info("A gateway does not answer: its mirrors are not ready", "cluster", g.link.Cluster, "url", url, "failures", failures, "error", err.Error())
		} else {
			g.log.Info("A gateway answers again", "cluster", g.link.Cluster)
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

// probeURL asks over the Service of the gateway, so that a sidecar speaks mTLS to it as it does for everybody.
func probeURL(l *links.Mirroring) string {
	return fmt.Sprintf("http://%s%s.%s.svc:%d%s", probePrefix, l.Link.Name, l.Link.Namespace, l.Probe.Port, l.Probe.Path)
}

func resolveHost(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// pause returns true after d, and false once ctx ends.
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

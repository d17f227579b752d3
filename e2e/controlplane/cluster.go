package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/fingerpost/fingerpost/e2e/internal/spawn"
)

// A Cluster is a running control plane. It runs until Stop.
type Cluster struct {
	// Set by Start.
	name     string
	options  Options
	binaries string
	dir      *stateDir
	logs     string
	pods     netip.Prefix
	services netip.Prefix
	etcdPort *port
	peerPort *port
	tokens   map[Component]string // of the components, and of kubectl: the admin's
	spawner  *spawn.Spawner
	routed   *services // nil without Options.Services

	// changing is held while processes come and go, so for seconds.
	changing sync.Mutex
	stopped  bool

	// mu guards what follows and is held for moments only. All but proxies is
	// written by holders of changing.
	mu        sync.Mutex
	apiPort   *port
	authority *authority
	clients   *clients
	processes map[Component]*process
	proxies   map[*Proxy]struct{}
}

// errStopped is what a stopped cluster answers.
var errStopped = errors.New("the cluster is stopped")

// Name returns Options.Name or the default.
func (c *Cluster) Name() string { return c.name }

// Dir returns the state directory. It is removed by Stop, unless Options
// named it.
func (c *Cluster) Dir() string { return c.dir.path }

// Logs returns the directory with the components' logs.
func (c *Cluster) Logs() string { return c.logs }

// PodCIDR returns the range that pods get their addresses from.
func (c *Cluster) PodCIDR() netip.Prefix { return c.pods }

// ServiceCIDR returns the range that Services get their addresses from.
func (c *Cluster) ServiceCIDR() netip.Prefix { return c.services }

// URL returns where the API server listens, until the next Move.
func (c *Cluster) URL() string { return "https://" + c.address() }

// CA returns the certificate of the authority that signed the API server's
// serving certificate, in PEM, until the next ReplaceCA.
func (c *Cluster) CA() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.authority.ca
}

// AdminConfig returns a configuration with all rights that reaches the API
// server directly, not limited in its rate. It is the caller's to change, and
// good until the next Move or ReplaceCA.
func (c *Cluster) AdminConfig() *rest.Config { return c.Config(c.Admin(), "") }

// AdminKubeconfig is AdminConfig as a kubeconfig file.
func (c *Cluster) AdminKubeconfig() []byte { return c.Kubeconfig(c.Admin(), "") }

func (c *Cluster) address() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.apiPort.address()
}

func (c *Cluster) client() *clients {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clients
}

func (c *Cluster) process(component Component) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processes[component]
}

// Stop ends all processes at once, closes the proxies and removes the state
// directory. When it returns nothing is left. Further calls do nothing.
func (c *Cluster) Stop() error {
	c.changing.Lock()
	defer c.changing.Unlock()
	if c.stopped {
		return nil
	}
	c.stopped = true
	c.mu.Lock()
	proxies, processes, clients := c.proxies, c.processes, c.clients
	c.proxies = nil
	c.mu.Unlock()

	for proxy := range proxies {
		proxy.shut()
	}
	// No order and no grace: the state goes too, or, where the caller named the
	// directory, is in the page cache by now.
	for _, process := range processes {
		_ = process.command.Process.Kill()
	}
	for _, process := range processes {
		process.kill()
	}
	if clients != nil {
		clients.close()
	}
	if c.routed != nil {
		c.routed.shut()
	}
	if c.spawner != nil {
		c.spawner.Close()
	}
	for _, port := range []*port{c.etcdPort, c.peerPort, c.apiPort} {
		if port != nil {
			port.release()
		}
	}
	addressRanges.giveBack(c.pods)
	addressRanges.giveBack(c.services)
	if c.dir == nil {
		return nil
	}
	if err := c.dir.remove(); err != nil {
		return fmt.Errorf("stop cluster %q: %w", c.name, err)
	}
	return nil
}

// write puts a file into the state directory.
func (c *Cluster) write(name string, content []byte) error {
	// Renamed into place, because a running component may read it at any time.
	temporary := c.file(name + ".new")
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, c.file(name))
}

// change runs a change of the processes, one at a time.
func (c *Cluster) change(ctx context.Context, what string, change func(context.Context) error) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	if c.stopped {
		return fmt.Errorf("%s cluster %q: %w", what, c.name, errStopped)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := change(ctx); err != nil {
		return fmt.Errorf("%s cluster %q: %w", what, c.name, err)
	}
	return nil
}

func (c *Cluster) logDir() (string, error) {
	dir := c.options.Logs
	if dir == "" {
		dir = c.file("logs")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o700)
}

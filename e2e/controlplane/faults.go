package controlplane

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Pause freezes components (SIGSTOP), kube-apiserver if none is named: they
// hold their connections and answer nothing. Pausing etcd freezes what the API
// server reads and writes, but not what it serves from its cache. Pausing kwok
// makes the nodes not Ready after the 50 s that the control plane grants them.
func (c *Cluster) Pause(components ...Component) error {
	return c.signal("pause", syscall.SIGSTOP, components)
}

// Continue ends a Pause.
func (c *Cluster) Continue(components ...Component) error {
	return c.signal("continue", syscall.SIGCONT, components)
}

func (c *Cluster) signal(what string, signal syscall.Signal, components []Component) error {
	for _, component := range orAPIServer(components) {
		p := c.process(component)
		if p == nil {
			return fmt.Errorf("%s %s of cluster %q: it was never started", what, component, c.name)
		}
		if err := p.signal(signal); err != nil {
			return fmt.Errorf("%s %s of cluster %q: %w", what, component, c.name, err)
		}
	}
	return nil
}

// Kill ends components at once (SIGKILL), kube-apiserver if none is named:
// connections are reset and new ones refused, until Restart.
func (c *Cluster) Kill(components ...Component) error {
	c.changing.Lock() // or a change would find a component gone that it counts on
	defer c.changing.Unlock()
	for _, component := range orAPIServer(components) {
		p := c.process(component)
		if p == nil {
			return fmt.Errorf("kill %s of cluster %q: it was never started", component, c.name)
		}
		p.kill()
	}
	return nil
}

func orAPIServer(components []Component) []Component {
	if len(components) == 0 {
		return []Component{APIServer}
	}
	return components
}

// Restart starts every component that has ended, by Kill or otherwise, as it
// was, and returns when the cluster is ready again. If none has ended it
// restarts kube-apiserver.
func (c *Cluster) Restart(ctx context.Context) error {
	return c.change(ctx, "restart", func(ctx context.Context) error {
		if c.ended() == nil {
			c.process(APIServer).kill()
		}
		if !c.running(Etcd) {
			if err := c.startEtcd(ctx); err != nil {
				return err
			}
		}
		if p := c.process(APIServer); p.running() {
			if err := c.awaitAPIServer(ctx, p); err != nil {
				return err
			}
		} else if err := c.startAPIServer(ctx); err != nil {
			return err
		}
		if c.options.Light {
			return nil
		}
		if err := c.startControllers(ctx); err != nil {
			return err
		}
		return c.awaitNodes(ctx)
	})
}

func (c *Cluster) running(component Component) bool {
	p := c.process(component)
	return p != nil && p.running()
}

// ended returns which components have ended and how; nil if all run.
func (c *Cluster) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ended []error
	for _, p := range c.processes {
		if !p.running() {
			ended = append(ended, p.failure())
		}
	}
	return errors.Join(ended...)
}

// Move restarts kube-apiserver on another port. Proxies follow; who goes to
// the API server directly needs the new URL.
func (c *Cluster) Move(ctx context.Context) error {
	return c.change(ctx, "move", func(ctx context.Context) error {
		to, err := newPort()
		if err != nil {
			return err
		}
		return c.replaceAPIServer(ctx, func() {
			c.apiPort.release()
			c.apiPort = to
		})
	})
}

// ReplaceCA restarts kube-apiserver with a serving certificate of a new
// authority: who trusts only the old one is refused by its own TLS. Tokens
// stay good.
func (c *Cluster) ReplaceCA(ctx context.Context) error {
	return c.change(ctx, "replace the CA of", func(ctx context.Context) error {
		next, err := newAuthority(c.name)
		if err != nil {
			return err
		}
		return c.replaceAPIServer(ctx, func() { c.authority = next })
	})
}

// replaceAPIServer makes the change while the API server is down. The other
// components read their kubeconfig once, so they are restarted too.
func (c *Cluster) replaceAPIServer(ctx context.Context, change func()) error {
	c.process(APIServer).kill()
	c.mu.Lock()
	change()
	c.mu.Unlock()
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	if c.options.Light {
		return nil
	}
	for _, component := range []Component{ControllerManager, Scheduler, Kwok} {
		if p := c.process(component); p != nil {
			p.kill()
		}
	}
	if err := c.startControllers(ctx); err != nil {
		return err
	}
	return c.awaitNodes(ctx)
}

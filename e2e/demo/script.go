package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/links"
)

// stepLimit is how long a step may take before it counts as failed.
const stepLimit = 45 * time.Second

// play is the script with the stage it is played on.
type play struct {
	mesh   *mesh.Mesh
	stream *mesh.Watch // of a proxy that follows the federated Service, once it is open
}

// A step says what it does and what is seen, does it, and returns an error if that is not what is seen.
type step struct {
	does, seen string
	run        func(context.Context) error
}

func (p *play) steps() []step {
	west, north := p.mesh.Remotes[0], p.mesh.Remotes[1]
	return []step{
		{
			"link west and north: a Link and a Secret with a kubeconfig each",
			"both are Live within moments; the Links' conditions say so",
			func(ctx context.Context) error {
				return errors.Join(p.mesh.Link(ctx, west), p.mesh.Link(ctx, north), p.state(ctx, west, "Live"),
					p.state(ctx, north, "Live"),
					p.connected(ctx, west), p.connected(ctx, north))
			},
		},
		{
			"a proxy asks for web-federated",
			"its first message is one Add with the union of three clusters",
			func(ctx context.Context) (err error) {
				if p.stream, err = p.mesh.Watch(context.WithoutCancel(ctx),
					p.mesh.Authority(mesh.Federated)); err != nil {
					return err
				}
				if err := p.holds(ctx, 2, 2); err != nil {
					return err
				}
				return p.told(0, 6, 0)
			},
		},
		{
			"scale web in west from two Pods to four",
			"two addresses are added, nothing else is said",
			p.change(2, 0, func(ctx context.Context) error {
				return errors.Join(west.Scale(ctx, p.mesh.Namespace, mesh.Service, 4), p.holds(ctx, 4, 2))
			}),
		},
		{
			"rotate west's token, and revoke the old one",
			"no message: the new token was tried before the old one was let go",
			p.change(0, 0, func(ctx context.Context) error {
				old, err := p.mesh.Rotate(ctx, west)
				if err != nil {
					return err
				}
				return errors.Join(west.Revoke(ctx, old), p.state(ctx, west, "Live"))
			}),
		},
		{
			"cut north off from the network, and scale it there from two Pods to three",
			"north is Suspect, then Stale; not one endpoint is withdrawn",
			p.change(0, 0, func(ctx context.Context) error {
				err := errors.Join(north.Proxy.Silence(), north.Scale(ctx, p.mesh.Namespace, mesh.Service, 3))
				return errors.Join(err, p.state(ctx, north, "Suspect"), p.state(ctx, north, "Stale"))
			}),
		},
		{
			"heal the network",
			"north is Live again, and the Pod that was missed arrives as one address",
			p.change(1, 0, func(ctx context.Context) error {
				return errors.Join(north.Proxy.Pass(), p.holds(ctx, 4, 3), p.state(ctx, north, "Live"))
			}),
		},
		{
			"unlink north",
			"exactly its three addresses are removed",
			p.change(0, 3, func(ctx context.Context) error {
				return errors.Join(p.mesh.Unlink(ctx, north), p.holds(ctx, 4, 0))
			}),
		},
		{
			"link north again",
			"its three addresses are added",
			p.change(3, 0, func(ctx context.Context) error {
				return errors.Join(p.mesh.Link(ctx, north), p.holds(ctx, 4, 3), p.state(ctx, north, "Live"))
			}),
		},
	}
}

// change wraps a step: what the proxy is told in it must be exactly so many addresses more and so many less.
func (p *play) change(added, removed int, do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		events, _ := p.stream.Events()
		return errors.Join(do(ctx), p.told(len(events), added, removed))
	}
}

// told checks what the proxy was told from an event on.
func (p *play) told(from, added, removed int) error {
	events, _ := p.stream.Events()
	a, r := 0, 0
	for _, e := range events[from:] {
		if e.End != nil {
			return fmt.Errorf("the stream has ended: %s", mesh.Line(e))
		}
		a, r = a+len(e.Message.Added), r+len(e.Message.Removed)
	}
	if from == 0 && (len(events) != 1 || events[0].Message.Kind != proxy.Add) {
		return fmt.Errorf("the first answer is not one Add:\n%s", p.stream.Transcript(0))
	}
	if a != added || r != removed {
		return fmt.Errorf("%d addresses were added and %d removed, want %d and %d:\n%s", a, r, added, removed,
			p.stream.Transcript(from))
	}
	return p.stream.Violations()
}

// holds waits until the proxy holds two addresses of east, and so many of west and north.
func (p *play) holds(ctx context.Context, west, north int) error {
	want := map[*mesh.Site]int{p.mesh.Local: 2, p.mesh.Remotes[0]: west, p.mesh.Remotes[1]: north}
	return p.stream.Until(ctx, fmt.Sprintf("2 addresses of east, %d of west, %d of north", west, north),
		func(s *mesh.Watch) bool {
			held := s.Held()
			for site, n := range want {
				if mesh.HoldsOf(held, site) != n {
					return false
				}
			}
			return true
		})
}

// state waits until a cluster is in a state.
func (p *play) state(ctx context.Context, site *mesh.Site, state string) error {
	return mesh.Eventually(ctx, func(ctx context.Context) error {
		c, err := p.mesh.Server.Cluster(ctx, site.Name)
		if err == nil && c.State != state {
			err = fmt.Errorf("%s is %q, want %s: %s %s", site.Name, c.State, state, c.Contact, c.Credentials)
		}
		return err
	})
}

// connected waits until a Link says that its cluster is.
func (p *play) connected(ctx context.Context, site *mesh.Site) error {
	return mesh.Eventually(ctx, func(ctx context.Context) error {
		condition, err := p.mesh.Condition(ctx, site, links.Connected)
		if err == nil && !strings.HasPrefix(condition, "True ") {
			err = fmt.Errorf("the Link %s is Connected=%q", site.Name, condition)
		}
		return err
	})
}

// once plays all steps, one line each.
func (p *play) once(ctx context.Context, say func(string, ...any)) error {
	for i, s := range p.steps() {
		took, err := p.play(ctx, s)
		if err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, s.does, err)
		}
		say("%d. %s: %s (%s)", i+1, s.does, s.seen, took.Round(10*time.Millisecond))
	}
	return nil
}

func (p *play) play(ctx context.Context, s step) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	began := time.Now()
	err := s.run(ctx)
	return time.Since(began), err
}

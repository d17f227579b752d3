package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/links"
)

// stepLimit is how long a step may take before it counts as failed.
const stepLimit = 45 * time.Second

// play is the script with the stage it is played on.
type play struct {
	stage
	stream atomic.Pointer[mesh.Watch] // of a proxy that follows the federated Service, once it is open
}

// A step names what it does and what is seen, does it, and returns an error if that is not what is seen; and
// what else there is to see.
type step struct {
	does, seen string
	run        func(context.Context) (output string, err error)
}

func (p *play) steps() []step {
	return []step{
		{
			"inject a Pod in each cluster, and have its proxy ask for a certificate",
			"containers are added, and three issuers certify under one anchor",
			p.certify,
		},
		{
			"link west and north: a Link and a Secret with a kubeconfig each",
			"both are Live within moments; the Links' conditions report it",
			p.quiet(func(ctx context.Context) error {
				return errors.Join(p.Link(ctx, west), p.Link(ctx, north), p.state(ctx, west, "Live"),
					p.state(ctx, north, "Live"), p.connected(ctx, west), p.connected(ctx, north))
			}),
		},
		{
			"a proxy asks for web-federated",
			"its first message is one Add with the union of three clusters",
			p.quiet(func(ctx context.Context) error {
				stream, err := mesh.Open(context.WithoutCancel(ctx), p.Server().Addr, authority)
				if err != nil {
					return err
				}
				p.stream.Store(stream)
				return errors.Join(p.holds(ctx, 2, 2), p.received(0, 6, 0))
			}),
		},
		{
			"read the EndpointSlices of web-federated in east, for clients without a proxy",
			"one slice for each cluster, kept up to date by Fingerpost",
			p.slices,
		},
		{
			"scale web in west from two Pods to four",
			"two addresses are added, and nothing else is sent",
			p.change(2, 0, func(ctx context.Context) error {
				return errors.Join(p.Scale(ctx, west, 4), p.holds(ctx, 4, 2))
			}),
		},
		{
			"rotate west's token, and revoke the old one",
			"no message: the new token was tried before the old one was dropped",
			p.change(0, 0, func(ctx context.Context) error {
				return errors.Join(p.Rotate(ctx, west), p.state(ctx, west, "Live"))
			}),
		},
		{
			"cut north off from the network, and scale it there from two Pods to three",
			"north is Suspect, then Stale; not one endpoint is withdrawn",
			p.change(0, 0, func(ctx context.Context) error {
				return errors.Join(p.Cut(north, true), p.Scale(ctx, north, 3), p.state(ctx, north, "Suspect"),
					p.state(ctx, north, "Stale"))
			}),
		},
		{
			"run fingerpost explain " + authority,
			"each address, whether a client gets it, and why; north's are kept",
			p.explain,
		},
		{
			"heal the network",
			"north is Live again, and the Pod that was missed arrives as one address",
			p.change(1, 0, func(ctx context.Context) error {
				return errors.Join(p.Cut(north, false), p.holds(ctx, 4, 3), p.state(ctx, north, "Live"))
			}),
		},
		{
			"unlink north",
			"exactly its three addresses are removed",
			p.change(0, 3, func(ctx context.Context) error {
				return errors.Join(p.Unlink(ctx, north), p.holds(ctx, 4, 0))
			}),
		},
		{
			"link north again",
			"its three addresses are added",
			p.change(3, 0, func(ctx context.Context) error {
				return errors.Join(p.Link(ctx, north), p.holds(ctx, 4, 3), p.state(ctx, north, "Live"))
			}),
		},
	}
}

// quiet makes a step of what has no output.
func (p *play) quiet(do func(context.Context) error) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) { return "", do(ctx) }
}

// change wraps a step: what the proxy receives in it must be exactly so many addresses more and so many less.
// Its output is the messages.
func (p *play) change(added, removed int, do func(context.Context) error) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		events, _ := p.stream.Load().Events()
		err := errors.Join(do(ctx), p.received(len(events), added, removed))
		return p.stream.Load().Transcript(len(events)), err
	}
}

// received checks what the proxy has received from an event on. An address may be added more than once: its owner
// comes on another watch than its slice, and replaces what is known of it.
func (p *play) received(from, added, removed int) error {
	stream := p.stream.Load()
	events, _ := stream.Events()
	all, r := map[netip.AddrPort]bool{}, 0
	for _, e := range events[from:] {
		if e.End != nil {
			return fmt.Errorf("the stream has ended: %s", mesh.Line(e))
		}
		for _, address := range e.Message.Added {
			all[address.Addr] = true
		}
		r += len(e.Message.Removed)
	}
	if from == 0 && (len(events) != 1 || events[0].Message.Type != proxy.Add) {
		return fmt.Errorf("the first answer is not one Add:\n%s", stream.Transcript(0))
	}
	if a := len(all); a != added || r != removed {
		return fmt.Errorf("%d addresses were added and %d removed, want %d and %d:\n%s", a, r, added, removed,
			stream.Transcript(from))
	}
	return stream.Violations()
}

// holds waits until the proxy holds two addresses of east, and so many of west and north.
func (p *play) holds(ctx context.Context, inWest, inNorth int) error {
	want := map[string]int{east: 2, west: inWest, north: inNorth}
	return p.stream.Load().Until(ctx, fmt.Sprintf("2 addresses of east, %d of west, %d of north", inWest, inNorth),
		func(s *mesh.Watch) bool {
			for cluster, n := range p.held(s) {
				if want[cluster] != n {
					return false
				}
			}
			return true
		})
}

// held returns how many addresses of each cluster a proxy holds.
func (p *play) held(s *mesh.Watch) map[string]int {
	held := map[string]int{}
	for _, cluster := range clusters {
		held[cluster] = 0
		for _, a := range s.Held() {
			if p.Pods(cluster).Contains(a.Addr()) {
				held[cluster]++
			}
		}
	}
	return held
}

// state waits until a cluster is in a state.
func (p *play) state(ctx context.Context, cluster, state string) error {
	return mesh.Eventually(ctx, func(ctx context.Context) error {
		c, err := p.Server().Cluster(ctx, cluster)
		if err == nil && c.State != state {
			err = fmt.Errorf("%s is %q, want %s: %s %s", cluster, c.State, state, c.Contact, c.Credentials)
		}
		return err
	})
}

// connected waits until a Link reports that its cluster is.
func (p *play) connected(ctx context.Context, cluster string) error {
	return mesh.Eventually(ctx, func(ctx context.Context) error {
		condition, err := p.Condition(ctx, cluster, links.Connected)
		if err == nil && !strings.HasPrefix(condition, "True ") {
			err = fmt.Errorf("the Link %s is Connected=%q", cluster, condition)
		}
		return err
	})
}

// slices waits until east has the addresses of all clusters in EndpointSlices, and shows them as kubectl does.
func (p *play) slices(ctx context.Context) (output string, err error) {
	err = mesh.Eventually(ctx, func(ctx context.Context) error {
		all, err := p.Slices(ctx)
		if err != nil {
			return err
		}
		var b strings.Builder
		total := 0
		for _, s := range all {
			var addresses []string
			for _, e := range s.Endpoints {
				addresses = append(addresses, e.Addresses...)
			}
			total += len(addresses)
			fmt.Fprintf(&b, "%-28s from %-6s %s\n", s.Name, s.Labels["federation.fingerpost.io/source-cluster"],
				strings.Join(addresses, " "))
		}
		if output = b.String(); total != len(clusters)*replicas {
			return fmt.Errorf("want 6 addresses in the slices:\n%s", output)
		}
		return nil
	})
	return output, err
}

// explain runs the command of that name.
func (p *play) explain(ctx context.Context) (string, error) {
	out, err := command(ctx, "", "explain", authority, "--debug-addr", p.Server().Debug)
	if err == nil && !strings.Contains(out, north) {
		err = fmt.Errorf("the explanation does not name north:\n%s", out)
	}
	return out, err
}

// once plays all steps, and reports each.
func (p *play) once(ctx context.Context, report func(string, ...any)) error {
	for i, s := range p.steps() {
		if err := p.do(ctx, i+1, s, report); err != nil {
			return err
		}
	}
	return nil
}

// do plays one step, and reports it.
func (p *play) do(ctx context.Context, number int, s step, report func(string, ...any)) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	began := time.Now()
	output, err := s.run(ctx)
	if err != nil {
		return fmt.Errorf("step %d, %s: %w", number, s.does, err)
	}
	took := time.Since(began).Round(10 * time.Millisecond)
	report("%d. %s: %s (%s)%s", number, s.does, s.seen, took, indented(output))
	return nil
}

// indented returns text on lines of its own.
func indented(text string) string {
	if text = strings.TrimRight(text, "\n"); text == "" {
		return ""
	}
	return "\n      " + strings.ReplaceAll(text, "\n", "\n      ")
}

// close ends the stream of the proxy, and the stage.
func (p *play) close() error {
	if stream := p.stream.Load(); stream != nil {
		stream.Close()
	}
	return p.Close()
}

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// What a terminal understands.
const (
	enter  = "\x1b[?1049h\x1b[?25l" // another screen, without a cursor
	leave  = "\x1b[?25h\x1b[?1049l"
	home   = "\x1b[H"
	toEnd  = "\x1b[K"
	below  = "\x1b[J"
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	plain  = "\x1b[0m"
)

const (
	readingTime = 5 * time.Second // between two steps
	frame       = 200 * time.Millisecond
)

// scene is what the view shows besides what it looks up itself.
type scene struct {
	mu         sync.Mutex
	number, of int
	step       step
	seen       bool // the step has been played
	over       bool
}

// watched plays the steps on a terminal, with time to read, and then goes on showing what is until ctx ends.
func (p *play) watched(ctx context.Context) error {
	fmt.Print(enter)
	defer fmt.Print(leave)
	sc := &scene{}
	view, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	var streamOpen sync.Mutex // guards p.stream between the script and the view
	wg.Go(func() {
		ticker := time.NewTicker(frame)
		defer ticker.Stop()
		for {
			clusters, _ := p.mesh.Server.Clusters(view) // none while it is busy
			streamOpen.Lock()
			stream := p.stream
			streamOpen.Unlock()
			width, height, err := term.GetSize(int(os.Stdout.Fd()))
			if err != nil {
				width, height = 100, 40
			}
			fmt.Print(render(sc, p.mesh, clusters, stream, width, height))
			select {
			case <-ticker.C:
			case <-view.Done():
				return
			}
		}
	})
	steps := p.steps()
	for i, s := range steps {
		sc.set(i+1, len(steps), s, false)
		streamOpen.Lock()
		opens := p.stream == nil
		if !opens {
			streamOpen.Unlock()
		}
		_, err := p.play(ctx, s)
		if opens {
			streamOpen.Unlock()
		}
		if err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, s.does, err)
		}
		sc.set(i+1, len(steps), s, true)
		if err := pause(ctx, readingTime); err != nil {
			return err
		}
	}
	sc.finish()
	<-ctx.Done()
	return ctx.Err()
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *scene) set(number, of int, st step, seen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number, s.of, s.step, s.seen = number, of, st, seen
}

func (s *scene) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}

// render draws the whole screen.
func render(sc *scene, m *mesh.Mesh, clusters []fingerpost.Cluster, stream *mesh.Watch, width, height int) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	add("%sFingerpost%s   three clusters, one answer   %sCtrl-C stops everything%s", bold, plain, dim, plain)
	add("%s%s%s", dim, shortNote, plain)
	add("")
	add("%s%-14s %-11s %-14s %s%s", bold, "CLUSTER", "STATE", "LAST CONTACT", "NOTE", plain)
	for _, site := range append([]*mesh.Site{m.Local}, m.Remotes...) {
		add("%s", clusterLine(site, m, clusters))
	}
	add("")
	add("%s%s%s", bold, m.Authority(mesh.Federated), plain)
	for _, site := range append([]*mesh.Site{m.Local}, m.Remotes...) {
		var held []string
		if stream != nil {
			for _, a := range stream.Held() {
				if site.PodCIDR().Contains(a.Addr()) {
					held = append(held, a.String())
				}
			}
		}
		add("  %-6s %d   %s", site.Name, len(held), strings.Join(held, " "))
	}
	add("")
	add("%sWHAT A PROXY IS TOLD%s", bold, plain)
	footer := footer(sc)
	lines = append(lines, messages(stream, height-len(lines)-len(footer)-1)...)
	for len(lines) < height-len(footer)-1 {
		lines = append(lines, "")
	}
	lines = append(lines, footer...)

	var b strings.Builder
	b.WriteString(home)
	for i, line := range lines[:min(len(lines), height-1)] {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(cut(line, width) + plain + toEnd)
	}
	b.WriteString(below)
	return b.String()
}

func clusterLine(site *mesh.Site, m *mesh.Mesh, clusters []fingerpost.Cluster) string {
	name := site.Name
	if site == m.Local {
		name += " (local)"
	}
	for _, c := range clusters {
		if c.Name != site.Name {
			continue
		}
		colour := map[string]string{"Live": green, "Suspect": yellow, "Stale": red}[c.State]
		contact := "never"
		if c.LastContact != nil {
			contact = fmt.Sprintf("%.0f s ago", time.Since(*c.LastContact).Seconds())
		}
		note := c.Contact
		if note == "" {
			note = c.Credentials
		}
		return fmt.Sprintf("%-14s %s%-11s%s %-14s %s%s", name, colour, c.State, plain, contact, dim, note)
	}
	return fmt.Sprintf("%-14s %s%s", name, dim, "not linked")
}

// messages returns the last messages, as many lines as there is room for.
func messages(stream *mesh.Watch, room int) []string {
	if stream == nil {
		return []string{dim + "  nobody has asked yet"}
	}
	events, _ := stream.Events()
	var lines []string
	for _, e := range events {
		colour := dim
		if e.Message != nil {
			colour = map[proxy.Kind]string{proxy.Add: green, proxy.Remove: red}[e.Message.Kind]
		}
		lines = append(lines, "  "+colour+mesh.Line(e))
	}
	return lines[max(0, len(lines)-max(room, 1)):]
}

func footer(sc *scene) []string {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if sc.over {
		return []string{bold + "The script is over." + plain + " Everything goes on until Ctrl-C."}
	}
	if sc.of == 0 {
		return nil
	}
	seen := dim + "waiting to see: " + sc.step.seen
	if sc.seen {
		seen = green + "seen: " + plain + sc.step.seen
	}
	return []string{fmt.Sprintf("%sStep %d of %d:%s %s", bold, sc.number, sc.of, plain, sc.step.does), "  " + seen}
}

// cut shortens a line to what fits, not counting what only colours.
func cut(line string, width int) string {
	var b strings.Builder
	shown, escape := 0, false
	for _, r := range line {
		switch {
		case r == 0x1b:
			escape = true
		case escape:
			escape = r != 'm'
		case shown == width:
			continue
		default:
			shown++
		}
		b.WriteRune(r)
	}
	return b.String()
}

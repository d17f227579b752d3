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

const (
	readingTime = 8 * time.Second // between two steps
	frame       = 200 * time.Millisecond
)

// A scene is what the screen shows.
type scene struct {
	label    string // of the stage
	page     string // the status page's URL
	clusters []fingerpost.Cluster
	held     map[string]int // addresses of each cluster that the proxy holds
	messages []string       // that the proxy has received
	output   string         // of the step
	number   int
	of       int
	step     step
	seen     bool   // the step has been played
	over     bool   // so have all of them
	next     string // what is under way besides
}

// watched plays the steps on a terminal, with time to read, and then shows the clusters until done is closed,
// if it is not nil.
func (p *play) watched(ctx context.Context, t *terminal, label string, report func(string, ...any), next fmt.Stringer,
	done <-chan struct{},
) error {
	fmt.Fprint(t, enter)
	defer fmt.Fprint(t, leave)
	var mu sync.Mutex
	sc := scene{label: label, page: "http://" + p.Server().Debug + "/"}
	change := func(do func(*scene)) {
		mu.Lock()
		defer mu.Unlock()
		do(&sc)
	}
	view, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() {
		ticker := time.NewTicker(frame)
		defer ticker.Stop()
		for {
			clusters, _ := p.Server().Clusters(view) // none while it is busy
			var shown scene
			change(func(sc *scene) { shown = *sc })
			shown.clusters, shown.next = clusters, next.String()
			if stream := p.stream.Load(); stream != nil {
				shown.held, shown.messages = p.held(stream), messages(stream)
			}
			width, height, err := term.GetSize(int(os.Stdout.Fd()))
			if err != nil {
				width, height = 100, 40
			}
			fmt.Fprint(t, draw(shown.lines(height), width, height))
			select {
			case <-ticker.C:
			case <-view.Done():
				return
			}
		}
	})
	steps := p.steps()
	for i, s := range steps {
		change(func(sc *scene) { sc.number, sc.of, sc.step, sc.seen, sc.output = i+1, len(steps), s, false, "" })
		output := ""
		shown := s
		shown.run = func(ctx context.Context) (string, error) {
			var err error
			output, err = s.run(ctx)
			return output, err
		}
		if err := p.do(ctx, i+1, shown, report); err != nil {
			return err
		}
		change(func(sc *scene) { sc.seen, sc.output = true, output })
		if err := t.pause(ctx, readingTime); err != nil {
			return err
		}
	}
	change(func(sc *scene) { sc.over, sc.output = true, "" })
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// messages returns what a proxy has received, one line a message.
func messages(stream *mesh.Watch) (lines []string) {
	events, _ := stream.Events()
	for _, e := range events {
		colour := dim
		if e.Message != nil {
			colour = map[proxy.MessageType]string{proxy.Add: green, proxy.Remove: red}[e.Message.Type]
		}
		lines = append(lines, "  "+colour+mesh.Line(e))
	}
	return lines
}

// lines returns the whole screen.
func (sc *scene) lines(height int) []string {
	lines := []string{
		bold + "Fingerpost" + plain + "   three clusters, one answer   " + yellow + sc.label,
		dim + shortNote,
		"status page: " + sc.page,
		"",
		sc.drawing(),
		"",
		fmt.Sprintf("%s%-14s %-11s %-14s %-18s %s", bold, "CLUSTER", "STATE", "LAST CONTACT", "ENDPOINTS", "NOTE"),
	}
	for _, cluster := range clusters {
		lines = append(lines, sc.row(cluster))
	}
	footer := sc.footer()
	title, body := "MESSAGES TO A PROXY OF "+authority, sc.messages
	if len(body) == 0 {
		body = []string{dim + "  no proxy has asked yet"}
	}
	if sc.output != "" && !strings.Contains(sc.output, " add ") && !strings.Contains(sc.output, " remove ") {
		title = "OUTPUT"
		body = strings.Split("  "+strings.ReplaceAll(strings.TrimRight(sc.output, "\n"), "\n", "\n  "), "\n")
	}
	lines = append(lines, "", bold+title)
	room := max(1, height-len(lines)-len(footer)-2)
	if title == "OUTPUT" {
		body = body[:min(len(body), room)]
	} else {
		body = body[max(0, len(body)-room):]
	}
	lines = append(lines, body...)
	for len(lines) < height-len(footer)-1 {
		lines = append(lines, "")
	}
	return append(lines, footer...)
}

// find returns what the server reports of a cluster, and nil of one that is not linked.
func (sc *scene) find(cluster string) *fingerpost.Cluster {
	for i := range sc.clusters {
		if sc.clusters[i].Name == cluster {
			return &sc.clusters[i]
		}
	}
	return nil
}

func colour(state string) string {
	return map[string]string{"Live": green, "Suspect": yellow, "Stale": red}[state]
}

// drawing is the map: east between the two others, and how it reaches them.
func (sc *scene) drawing() string {
	line := func(cluster string) string {
		switch c := sc.find(cluster); {
		case c == nil:
			return dim + "           " + plain
		case c.State == "Live":
			return green + "━━━━━━━━━━━" + plain
		default:
			return colour(c.State) + "╌╌╌╌╌╳╌╌╌╌╌" + plain
		}
	}
	return fmt.Sprintf("  %[1]s[ west ]%[2]s %[3]s %[1]s[ east: fingerpost ]%[2]s %[4]s %[1]s[ north ]", bold, plain,
		line(west), line(north))
}

// row is one cluster of the table.
func (sc *scene) row(cluster string) string {
	name := cluster
	if cluster == east {
		name += " (local)"
	}
	c := sc.find(cluster)
	if c == nil {
		return fmt.Sprintf("%-14s %snot linked", name, dim)
	}
	contact := "never"
	if c.LastContact != nil {
		contact = fmt.Sprintf("%.0f s ago", time.Since(*c.LastContact).Seconds())
	}
	note := c.Contact
	if note == "" {
		note = c.Credentials
	}
	bar := fmt.Sprintf("%s %d", strings.Repeat("█", min(10, sc.held[cluster])), sc.held[cluster])
	if c.State != "Live" {
		bar += " kept"
	}
	return fmt.Sprintf("%-14s %s%-11s%s %-14s %s%-18s%s %s%s", name, colour(c.State), c.State, plain, contact,
		colour(c.State), bar, plain, dim, note)
}

func (sc *scene) footer() []string {
	keys := dim + "Enter: go on   p: pause   q: stop"
	if sc.next != "" {
		keys = yellow + sc.next + plain + "   " + keys
	}
	switch {
	case sc.over && sc.next != "":
		return []string{bold + "The script is over. Real control planes are next, once they are built.", "", keys}
	case sc.over:
		return []string{bold + "The script is over." + plain + " Everything goes on until q or Ctrl-C.", "", keys}
	case sc.of == 0:
		return []string{keys}
	}
	seen := dim + "expected: " + sc.step.seen
	if sc.seen {
		seen = green + "seen: " + plain + sc.step.seen
	}
	step := fmt.Sprintf("%sStep %d of %d:%s %s", bold, sc.number, sc.of, plain, sc.step.does)
	return []string{step, "  " + seen, keys}
}

// draw returns what shows lines on a terminal.
func draw(lines []string, width, height int) string {
	var b strings.Builder
	b.WriteString(home)
	for i, line := range lines[:min(len(lines), height-1)] {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(cut(line, width) + plain + toEnd)
	}
	b.WriteString(below)
	return b.String()
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

package debug

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/federation"
)

// Charts are inline SVG whose numbers are attributes: the policy of the page allows no styles of elements.

const (
	sparkSteps  = 60 // bars of a sparkline, each of several steps of the history
	sparkHeight = 16.0
)

// A sparkline is the probes of a cluster: a bar for each response, which is higher the longer it took, on a
// logarithmic scale to 1 s, and a full one for each failure.
type sparkline struct {
	Answered, Failed string // paths in a box of 180 by 16
	Last             string // the last response; empty if there is none, or the last probe failed
	Label            string
}

func newSparkline(probes []cluster.Probe) (s sparkline) {
	var answered, failed strings.Builder
	var last cluster.Probe
	var slowest time.Duration
	failures := 0
	step := max((len(probes)+sparkSteps-1)/sparkSteps, 1)
	for i := 0; i < len(probes); i += step {
		var bar cluster.Probe
		for _, p := range probes[i:min(i+step, len(probes))] {
			if p.Failed {
				failures++
			}
			if p != (cluster.Probe{}) {
				last = p
			}
			bar.Failed, bar.RTT = bar.Failed || p.Failed, max(bar.RTT, p.RTT)
		}
		slowest = max(slowest, bar.RTT)
		switch x := float64(i) + float64(step)/2; {
		case bar.Failed:
			fmt.Fprintf(&failed, "M%.1f 16V0", x)
		case bar.RTT > 0:
			height := 2 + (sparkHeight-2)*min(math.Log10(1+float64(bar.RTT)/float64(time.Millisecond))/3, 1)
			fmt.Fprintf(&answered, "M%.1f 16V%.1f", x, sparkHeight-height)
		}
	}
	s.Answered, s.Failed = answered.String(), failed.String()
	if last.RTT > 0 {
		s.Last = RTTText(last.RTT)
	}
	switch {
	case slowest == 0 && failures == 0:
		s.Label = "no probe in the last 15 minutes"
	case failures == 0:
		s.Label = "each probe of the last 15 minutes was answered, the slowest after " + RTTText(slowest)
	default:
		seconds := failures * int(cluster.ProbeStep/time.Second)
		s.Label = fmt.Sprintf("out of contact for about %s of the last 15 minutes", time.Duration(seconds)*time.Second)
	}
	return s
}

// RTTText returns the time until a response, for people.
func RTTText(d time.Duration) string {
	if ms := float64(d) / float64(time.Millisecond); ms < 10 {
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}

const (
	barColours = 6
	barWidth   = 280 // pixels of a wide screen, which decide what fits
	barParts   = 8   // the others are summed up
	charWidth  = 7
)

// A bar is the shares of one Service, beside each other.
type bar struct {
	Parts []barPart
	Label string
}

type barPart struct {
	share

	X, Width, Middle string // percent
	Text             string // as much as fits
}

func newBar(shares []share) (b bar) {
	total := 0
	for _, s := range shares {
		total += s.Ready
	}
	if total == 0 {
		b.Label = "no ready endpoint"
		return b
	}
	if more := shares[min(len(shares), barParts-1):]; len(more) > 1 {
		rest := share{Cluster: fmt.Sprintf("%d others", len(more)), Colour: barColours - 1}
		for _, s := range more {
			rest.Ready += s.Ready
		}
		shares = append(slices.Clone(shares[:barParts-1]), rest)
	}
	var labels []string
	percent := func(n float64) string { return strconv.FormatFloat(100*n/float64(total), 'f', 1, 64) }
	before := 0
	for _, s := range shares {
		label := fmt.Sprintf("%s: %d ready", s.Cluster, s.Ready)
		if s.Stale {
			label += ", as of the last contact"
		}
		if labels = append(labels, label); s.Ready == 0 {
			continue
		}
		ready := float64(s.Ready)
		part := barPart{
			share: s, X: percent(float64(before)), Width: percent(ready), Middle: percent(float64(before) + ready/2),
		}
		for _, text := range []string{fmt.Sprintf("%s %d", s.Cluster, s.Ready), fmt.Sprint(s.Ready)} {
			width := float64(charWidth * (utf8.RuneCountInString(text) + 1))
			if part.Text == "" && width < barWidth*ready/float64(total) {
				part.Text = text
			}
		}
		b.Parts = append(b.Parts, part)
		before += s.Ready
	}
	b.Label = strings.Join(labels, "; ")
	return b
}

// A starMap draws the linked clusters around the local one.
type starMap struct {
	MinY, Height float64 // of its box, which is 420 wide
	Label        string
	Nodes        []starNode // the local cluster comes last, on top of the lines
}

type starNode struct {
	clusterRow

	X, Y, Radius   float64
	Away           bool    // out of contact
	Width          float64 // of the line to the middle; 0 for the local cluster
	TextX, TextY   float64 // of Contact, at the line, and of the box behind it
	LabelX, LabelY float64
	LabelWidth     float64
	Short, Inside  string
	NameY, InsideY float64
	Contact, Title string
}

const (
	mapWidth   = 420.0
	mapRadiusX = 158.0
	mapRadiusY = 104.0
)

func newStarMap(rows []clusterRow) *starMap {
	m, most := &starMap{}, 1
	var middle starNode
	var linked []starNode
	for _, r := range rows {
		n := starNode{
			clusterRow: r, Radius: 19, Short: Shorten(r.Name, 14), Inside: shortCount(r.Ready),
			Away: r.State != federation.Live, Contact: r.Probes.Last,
		}
		n.Title = fmt.Sprintf("%s: %s, %s", r.Name, r.State, countText(r.Ready, "ready endpoint"))
		if n.Away {
			n.Contact = string(r.State)
		}
		if r.Local {
			n.Radius, n.Short, n.Contact, n.NameY, n.InsideY = 31, Shorten(r.Name, 8), "", -2, 13
			middle = n
			continue
		}
		linked, most = append(linked, n), max(most, r.Ready)
	}
	var labels []string
	for i := range linked {
		n := &linked[i]
		angle := 2*math.Pi*float64(i)/float64(len(linked)) - math.Pi/2
		if len(linked) <= 2 { // beside it, which is lower
			angle = math.Pi * float64(i)
		}
		n.X, n.Y = mapRadiusX*math.Cos(angle), mapRadiusY*math.Sin(angle)
		n.Width = 1.5 + 5*math.Sqrt(float64(n.Ready)/float64(most))
		n.TextX, n.TextY = 0.58*n.X, 0.58*n.Y+4
		n.LabelWidth = float64(charWidth*utf8.RuneCountInString(n.Contact)) + 4
		n.LabelX, n.LabelY = n.TextX-n.LabelWidth/2, n.TextY-11.5
		n.InsideY, n.NameY = n.Y+4, n.Y+n.Radius+14
		if n.Y < 0 { // its line is below it
			n.NameY = n.Y - n.Radius - 6
		}
		labels = append(labels, n.Title)
	}
	m.Nodes = slices.Concat(linked, []starNode{middle})
	top, bottom := 0.0, 0.0
	for i := range m.Nodes {
		n := m.Nodes[i]
		top, bottom = min(top, n.Y-n.Radius, n.NameY-10), max(bottom, n.Y+n.Radius, n.NameY)
	}
	m.MinY, m.Height = top-6, bottom-top+12
	m.Label = "Map of clusters around " + middle.Title + ". " + strings.Join(labels, "; ")
	return m
}

// shortCount writes a large number in few characters.
func shortCount(n int) string {
	switch {
	case n < 1000:
		return fmt.Sprint(n)
	case n < 10_000:
		return fmt.Sprintf("%.1fk", math.Floor(float64(n)/100)/10)
	case n < 1_000_000:
		return fmt.Sprintf("%dk", n/1000)
	default:
		return fmt.Sprintf("%.1fM", math.Floor(float64(n)/100_000)/10)
	}
}

// Shorten cuts a name in the middle, because names have the same beginnings.
func Shorten(name string, most int) string {
	runes := []rune(name)
	if len(runes) <= most {
		return name
	}
	return string(runes[:most/2]) + "…" + string(runes[len(runes)-(most-1)/2:])
}

package debug

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/federation"
	"github.com/fingerpost/fingerpost/internal/words"
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

	for first := 0; first < len(probes); first += step {
		var bar cluster.Probe
		for _, p := range probes[first:min(first+step, len(probes))] {
			if p.Failed {
				failures++
			}
			if p != (cluster.Probe{}) {
				last = p
			}
			bar.Failed, bar.RTT = bar.Failed || p.Failed, max(bar.RTT, p.RTT)
		}

		slowest = max(slowest, bar.RTT)
		switch x := float64(first) + float64(step)/2; {
		case bar.Failed:
			fmt.Fprintf(&failed, "M%.1f 16V0", x)
		case bar.RTT > 0:
			height := 2 + (sparkHeight-2)*min(math.Log10(1+float64(bar.RTT)/float64(time.Millisecond))/3, 1)
			fmt.Fprintf(&answered, "M%.1f 16V%.1f", x, sparkHeight-height)
		}
	}

	s.Answered, s.Failed = answered.String(), failed.String()
	if last.RTT > 0 {
		s.Last = rttText(last.RTT)
	}

	switch {
	case slowest == 0 && failures == 0:
		s.Label = "no probe in the last 15 minutes"
	case failures == 0:
		s.Label = "each probe of the last 15 minutes was answered, the slowest after " + rttText(slowest)
	default:
		seconds := failures * int(cluster.ProbeStep/time.Second)
		s.Label = fmt.Sprintf("out of contact for about %s of the last 15 minutes", time.Duration(seconds)*time.Second)
	}
	return s
}

// rttText returns the time until a response, for people.
func rttText(d time.Duration) string {
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
	size float64
	note string // that follows the size in the label

	X, Width, Middle string // percent
	Size             string // as text
	Text             string // as much as fits
}

// newBar draws how many endpoints of each cluster are ready.
func newBar(shares []share) bar {
	parts := make([]barPart, 0, len(shares))
	for _, s := range shares {
		p := barPart{share: s, size: float64(s.Ready), note: " ready"}
		if s.Stale {
			p.note += ", as of the last contact"
		}
		parts = append(parts, p)
	}
	count := func(n float64) string { return strconv.Itoa(int(n)) }
	return drawBar(parts, count, " ready", "no ready endpoint")
}

// newTrafficBar draws what part of the traffic each cluster gets, the largest first; nil for no shares. The clusters
// look as in the bar of their ready endpoints.
func newTrafficBar(of []discovery.ClusterShare, ready []share) *bar {
	if of == nil {
		return nil
	}
	looks := map[string]share{}
	for _, s := range ready {
		looks[s.Cluster] = s
	}

	parts := make([]barPart, 0, len(of))
	for _, s := range of {
		look := looks[s.Cluster]
		look.Cluster = s.Cluster
		parts = append(parts, barPart{share: look, size: s.Share, note: ", " + s.Why})
	}

	slices.SortStableFunc(parts, func(a, b barPart) int { return cmp.Compare(b.size, a.size) })
	percent := func(n float64) string { return strconv.FormatFloat(n, 'g', 3, 64) + "%" }
	b := drawBar(parts, percent, "", "nothing is ready")
	return &b
}

// drawBar draws parts in their order, with their sizes as text. The last note is of those that are summed up, and the
// empty label for a bar of nothing.
func drawBar(parts []barPart, text func(size float64) string, restNote, empty string) (b bar) {
	total := 0.0
	for _, p := range parts {
		total += p.size
	}
	if total == 0 {
		b.Label = empty
		return b
	}

	if more := parts[min(len(parts), barParts-1):]; len(more) > 1 {
		others := share{Cluster: words.Count(len(more), "other"), Colour: barColours - 1}
		rest := barPart{share: others, note: restNote}
		for _, p := range more {
			rest.size += p.size
		}
		parts = append(parts[:barParts-1], rest)
	}

	var labels []string
	percent := func(n float64) string { return strconv.FormatFloat(100*n/total, 'f', 1, 64) }
	before := 0.0

	for _, part := range parts {
		part.Size = text(part.size)
		labels = append(labels, part.Cluster+": "+part.Size+part.note)
		if part.size == 0 {
			continue
		}

		part.X, part.Width, part.Middle = percent(before), percent(part.size), percent(before+part.size/2)
		for _, text := range []string{part.Cluster + " " + part.Size, part.Size} {
			width := float64(charWidth * (utf8.RuneCountInString(text) + 1))
			if part.Text == "" && width < barWidth*part.size/total {
				part.Text = text
			}
		}
		b.Parts = append(b.Parts, part)
		before += part.size
	}

	b.Label = strings.Join(labels, "; ")
	return b
}

// A starMap draws the linked clusters around the local one, which is at 0, 0: the first at the top and the others
// clockwise on an ellipse; one or two are beside it. The name of a cluster is below its circle, or above it in the
// upper half, so that the line to the middle does not cross it. The last response, or the state of a cluster that is
// away, is on the line. That is wider the more ready endpoints there are, by their square root, so that a small cluster
// can be seen beside a large one.
type starMap struct {
	MinY, Height float64 // of its box, which is 420 wide, and as high as the circles and names need
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
	mapRadiusX = 158.0
	mapRadiusY = 104.0
)

func newStarMap(rows []clusterRow) *starMap {
	starMap, most := &starMap{}, 1
	var middle starNode
	var linked []starNode

	for _, row := range rows {
		node := starNode{
			clusterRow: row, Radius: 19, Short: Shorten(row.Name, 14), Inside: shortCount(row.Ready),
			Away: row.State != federation.Live, Contact: row.Probes.Last,
		}
		node.Title = fmt.Sprintf("%s: %s, %s", row.Name, row.State, words.Count(row.Ready, "ready endpoint"))
		if node.Away {
			node.Contact = string(row.State)
		}

		if row.Local {
			node.Radius, node.Short, node.Contact, node.NameY, node.InsideY = 31, Shorten(row.Name, 8), "", -2, 13
			middle = node
			continue
		}
		linked, most = append(linked, node), max(most, row.Ready)
	}

	var labels []string
	for i := range linked {
		node := &linked[i]
		angle := 2*math.Pi*float64(i)/float64(len(linked)) - math.Pi/2
		if len(linked) <= 2 { // beside it, which is lower
			angle = math.Pi * float64(i)
		}

		node.X, node.Y = mapRadiusX*math.Cos(angle), mapRadiusY*math.Sin(angle)
		node.Width = 1.5 + 5*math.Sqrt(float64(node.Ready)/float64(most))
		node.TextX, node.TextY = 0.58*node.X, 0.58*node.Y+4
		node.LabelWidth = float64(charWidth*utf8.RuneCountInString(node.Contact)) + 4
		node.LabelX, node.LabelY = node.TextX-node.LabelWidth/2, node.TextY-11.5
		node.InsideY, node.NameY = node.Y+4, node.Y+node.Radius+14
		if node.Y < 0 { // its line is below it
			node.NameY = node.Y - node.Radius - 6
		}
		labels = append(labels, node.Title)
	}

	starMap.Nodes = slices.Concat(linked, []starNode{middle})
	top, bottom := 0.0, 0.0
	for i := range starMap.Nodes {
		n := starMap.Nodes[i]
		top, bottom = min(top, n.Y-n.Radius, n.NameY-10), max(bottom, n.Y+n.Radius, n.NameY)
	}
	starMap.MinY, starMap.Height = top-6, bottom-top+12
	starMap.Label = "Map of clusters around " + middle.Title + ". " + strings.Join(labels, "; ")
	return starMap
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

package debug

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/discovery"
	"github.com/fingerpost/fingerpost/internal/words"
)

// Ago returns how long ago something was, for people; the zero time is never.
func Ago(at, now time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return Age(at, now) + " ago"
}

// Age returns how old something is, for people. What is in the future, by another clock, is 0s old.
func Age(at, now time.Time) string {
	switch d := now.Sub(at); {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// DrainText returns how far a cluster is drained, for people; empty if it is not.
func DrainText(drain cluster.Drain) string {
	switch {
	case drain.Percent == 0:
		return ""
	case drain.Percent < 100:
		return fmt.Sprintf("drained %d%%", drain.Percent)
	default:
		return "drained"
	}
}

// LagText describes how far a stream is behind, each part after a comma; it is empty for one that is not
// behind.
func LagText(s discovery.StreamStatus, now time.Time) string {
	text := ""
	if s.Behind != nil {
		adds, removes := words.Count(s.Behind.Adds, "add"), words.Count(s.Behind.Removes, "remove")
		text += fmt.Sprintf(", %s and %s behind", adds, removes)
	}
	if s.Sending != nil {
		text += fmt.Sprintf(", has not read for %s", Age(*s.Sending, now))
	}
	return text
}

// CompareStreams puts slow streams first: those whose client has not read for the longest time, then those
// with the most changes to send.
func CompareStreams(one, other discovery.StreamStatus) int {
	lastRead := func(s discovery.StreamStatus) int64 {
		if s.Sending == nil {
			return math.MaxInt64
		}
		return s.Sending.UnixNano()
	}

	pending := func(s discovery.StreamStatus) int {
		if s.Behind == nil {
			return 0
		}
		return s.Behind.Adds + s.Behind.Removes
	}
	return cmp.Or(cmp.Compare(lastRead(one), lastRead(other)), cmp.Compare(pending(other), pending(one)))
}

// TrueFirst orders what is so before what is not.
func TrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

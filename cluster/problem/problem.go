// Package problem has what an operator should know of: one list, which the conditions of Links, Events, metrics, the
// status page and the command line render. None of them finds out by itself what is wrong.
//
// A [Problem] is made where its cause is known: package cluster has those of a cluster, links those of a Link, and
// cmd/fingerpost/debug those of Services and of the process. What it is called, what to do, and which page of the docs
// has more follows from its Class, in texts.go.
package problem

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A Problem is one thing that is wrong, or not as others may expect it to be.
type Problem struct {
	Class    Class    `json:"class"`
	Reason   string   `json:"reason"` // a finer cause, as a condition has it; the Class if there is none
	Severity Severity `json:"severity"`
	Object   Object   `json:"object"`            // that has the Problem
	Cluster  string   `json:"cluster,omitempty"` // that it is about; empty for one of all clusters

	Title    string    `json:"title"`              // such as "west is Stale"
	Text     string    `json:"text"`               // why, in the words of the other side; it can be read alone
	Affected string    `json:"affected,omitempty"` // what follows from it
	Remedy   string    `json:"remedy,omitempty"`   // what to do; empty if Text has it, or if it depends
	Since    time.Time `json:"since,omitzero"`     // zero if that is not known

	Command string `json:"command"` // that shows more, or is the first step
	Runbook string `json:"runbook"` // page and heading, in docs

	// Repeats is whether another Problem of the same object has the same cause. Lists for people leave it out.
	Repeats bool `json:"repeats,omitempty"`
}

// A Severity is how urgent a Problem is.
type Severity string

// The severities, the worst first.
const (
	Urgent      Severity = "Urgent"      // an operator must act
	Warning     Severity = "Warning"     // it may pass, or nothing fails yet
	Information Severity = "Information" // it is meant to be so, or another Problem is the one to look at
)

var severities = []Severity{Urgent, Warning, Information}

// An Object is what has a Problem.
type Object struct {
	Kind      string `json:"kind"` // such as Cluster, Link or Service
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// OfCluster returns a Problem of a cluster.
func OfCluster(name string, class Class, severity Severity, text string) Problem {
	p := New(Object{Kind: "Cluster", Name: name}, class, severity, text)
	p.Cluster = name
	return p
}

// New returns a Problem of an object. The Class has its title, what to do, and where to read on.
func New(object Object, class Class, severity Severity, text string) Problem {
	known := infoOf(class)
	full := object.Name
	if object.Namespace != "" {
		full = object.Namespace + "/" + full
	}
	fill := strings.NewReplacer(
		"{class}", string(class), "{kind}", object.Kind, "{full}", full, "{name}", object.Name,
		"{quoted name}", Quote(object.Name), "{quoted namespace}", Quote(object.Namespace),
	)

	return Problem{
		Class: class, Reason: string(class), Severity: severity, Object: object, Text: text,
		Title: fill.Replace(known.title), Remedy: fill.Replace(known.remedy),
		Command: fill.Replace(known.command), Runbook: class.Runbook(),
	}
}

// Message returns all that is known of a Problem, for readers who do not see the rest: why, what follows, what to do.
func (p Problem) Message() string {
	parts := []string{p.Text, p.Affected, p.Remedy}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), "; ")
}

// IsContact reports whether Problems of a Class are that a cluster is out of contact.
func IsContact(c Class) bool { return c == Connecting || c == Suspect || c == Stale }

// IsUrgent reports whether an operator must act.
func (p Problem) IsUrgent() bool { return p.Severity == Urgent }

// Sort sorts Problems, the worst first. Of the same severity those stay in their order.
func Sort(all []Problem) {
	slices.SortStableFunc(all, func(a, b Problem) int {
		return cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity))
	})
}

// Of returns those of some classes, in their order.
func Of(all []Problem, classes ...Class) (found []Problem) {
	for _, p := range all {
		if slices.Contains(classes, p.Class) {
			found = append(found, p)
		}
	}
	return found
}

// Has reports whether there is one of some classes.
func Has(all []Problem, classes ...Class) bool { return len(Of(all, classes...)) > 0 }

// ToLook returns those that an operator should look at: neither information nor what another one has already.
func ToLook(all []Problem) (found []Problem) {
	for _, p := range all {
		if p.Severity != Information && !p.Repeats {
			found = append(found, p)
		}
	}
	return found
}

// IsSame reports whether both are one Problem, whose text and severity may have changed meanwhile.
func (p Problem) IsSame(o Problem) bool {
	return p.Class == o.Class && p.Reason == o.Reason && p.Object == o.Object
}

// KeepSince takes over since when Problems last that there were before. New ones begin now, unless it is known when.
func KeepSince(before, all []Problem, now time.Time) {
	for i := range all {
		p := &all[i]
		if !p.Since.IsZero() {
			continue
		}

		p.Since = now
		if old := slices.IndexFunc(before, p.IsSame); old >= 0 {
			p.Since = before[old].Since
		}
	}
}

var plainWord = regexp.MustCompile(`^[\w.:/][\w.:/-]*$`)

// Quote returns a word as a shell takes it.
func Quote(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

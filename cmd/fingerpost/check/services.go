package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/internal/words"
)

// maxNamed is how many objects a check names.
const maxNamed = 10

// firstOf returns the first of many lines, and how many there are more.
func firstOf(lines []string) []string {
	if len(lines) <= maxNamed {
		return lines
	}
	return append(slices.Clone(lines[:maxNamed]), fmt.Sprintf("and %d more", len(lines)-maxNamed))
}

// mergeProblems returns the problems that replicas report, each once, the worst first.
func mergeProblems(pages []cli.Response[debug.ProblemsPage]) (all debug.ProblemsPage) {
	merged := map[debug.ServiceProblem]int{} // indices in all, by problems without their streams
	for _, page := range pages {
		for _, p := range page.Page {
			streams := p.Streams
			p.Streams = 0
			i, found := merged[p]
			if !found {
				i = len(all)
				merged[p], all = i, append(all, p)
			}
			all[i].Streams += streams
		}
	}

	all.Sort()
	return all
}

// serviceChecks check mirrored and federated Services, and the annotations of all.
func (k *knownReplicas) serviceChecks() []check {
	of := func(s subject, description string, result func(string) error) check {
		return s.retried(description, func(context.Context) error {
			if text, class := k.problemText(s); text != "" {
				return failing{result(text), class}
			}
			return nil
		})
	}

	fails := errors.New
	warns := func(text string) error { return permanentWarningf("%s", text) }
	return []check{
		of(notMalformed, "no mirrored or federated Service is malformed", fails),
		of(hasReady, "every mirrored and federated Service has a ready endpoint", fails),
		of(membersLinked, "the clusters of all members are linked", fails),
		of(membersExist, "every member exists and has the ports of its Service", warns),
		of(annotations, "annotations of Services are valid", warns),
	}
}

// problemText returns a line for each Service with a Problem that fails a subject, and the class of the first one;
// empty for none.
func (k *knownReplicas) problemText(s subject) (text string, first problem.Class) {
	var lines []string

	for _, p := range k.problems {
		if !slices.Contains(s.info().classes, p.Reason) {
			continue
		}
		first = cmp.Or(first, p.Reason)

		clients := ""
		if p.Streams > 0 {
			clients = fmt.Sprintf(" (%s)", words.Count(p.Streams, "stream"))
		}
		lines = append(lines, fmt.Sprintf("%s%s: %s", p.Service, clients, p.Message))
	}
	return strings.Join(firstOf(lines), "\n"), first
}

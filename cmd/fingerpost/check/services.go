package check

import (
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
	of := func(
		description, anchor string, result func(string) error, reasons ...problem.Class,
	) check {
		return serviceCategory.retried(description, anchor, func(context.Context) error {
			if text := k.problemText(reasons); text != "" {
				return result(text)
			}
			return nil
		})
	}

	fails := errors.New
	warns := func(text string) error { return permanentWarningf("%s", text) }
	return []check{
		of("no mirrored or federated Service is malformed", "no-service-is-malformed", fails, problem.Malformed),
		of("every mirrored and federated Service has a ready endpoint", "a-service-has-a-ready-endpoint", fails,
			problem.NoneReady),
		of("the clusters of all members are linked", "the-clusters-of-members-are-linked", fails, problem.NotLinked),
		of("every member exists and has the ports of its Service", "a-member-has-the-ports", warns,
			problem.NoService, problem.NoPort),
		of("annotations of Services are valid", "annotations-are-valid", warns,
			problem.InvalidAnnotation, problem.UnknownCluster, problem.UnknownRegion),
	}
}

// problemText returns a line for each Service with a problem of these reasons; empty for none.
func (k *knownReplicas) problemText(reasons []problem.Class) string {
	var lines []string
	for _, p := range k.problems {
		if slices.Contains(reasons, p.Reason) {
			clients := ""
			if p.Streams > 0 {
				clients = fmt.Sprintf(" (%s)", words.Count(p.Streams, "stream"))
			}
			lines = append(lines, fmt.Sprintf("%s%s: %s", p.Service, clients, p.Message))
		}
	}
	return strings.Join(firstOf(lines), "\n")
}

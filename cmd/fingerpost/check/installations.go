package check

import (
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/fingerpost/fingerpost/cluster/apply"
)

// maxForeignLeases is how many Leases are looked at, of which everybody may create some in a namespace of his own.
const maxForeignLeases = 500

// installationChecks check which installations write in this cluster.
func (e *environment) installationChecks(known *knownReplicas) []check {
	return []check{
		noSourceLeft.decided("no source is left to another installation",
			known.checkLeftTo),
		leasesCount.decided("every Lease of an installation counts",
			e.asking(func(ctx context.Context) error { return e.checkForeignLeases(ctx, known) })),
	}
}

// checkLeftTo reports clusters whose endpoints another installation writes into slices of the local one.
func (k *knownReplicas) checkLeftTo(context.Context) error {
	return k.checkProblems(noSourceLeft.has, plainText)
}

// checkForeignLeases reports Leases that are marked as those of installations and count for nothing: each installation
// may write what the other one writes, or a user tries to keep ours from writing.
func (e *environment) checkForeignLeases(ctx context.Context, known *knownReplicas) error {
	var counts []string
	for _, page := range known.pages {
		counts = append(counts, page.Page.LeaseNamespaces...)
	}
	list, err := e.client.CoordinationV1().Leases(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		LabelSelector: apply.InstallationLabel, Limit: maxForeignLeases,
	})
	if err != nil || len(counts) == 0 {
		return errSkipped // an account that may not list them cannot know
	}

	namespaces := sets.New[string]()
	for _, l := range list.Items {
		if !slices.Contains(counts, l.Namespace) {
			namespaces.Insert(l.Namespace)
		}
	}
	if namespaces.Len() == 0 {
		return nil
	}

	return permanentWarningf("Leases of installations in these namespaces count for nothing: %s: have "+
		"-installation-namespaces name those of other control planes that write into the same clusters, and delete "+
		"the others", strings.Join(firstOf(sets.List(namespaces)), ", "))
}

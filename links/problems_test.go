package links

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/api"
	"github.com/fingerpost/fingerpost/cluster/problem"
	"github.com/fingerpost/fingerpost/federation"
)

// Each thing that can be wrong with a Link is one Problem to look at, which names the Link and its cluster. What its
// cluster has is not the Link's own.
func TestLinkProblems(t *testing.T) {
	now := time.Unix(1e9, 0)
	live := cluster.Status{
		Name: "west", State: federation.Live, Synced: true, Source: "Secret west", OverBudget: "much",
	}
	mirror := func(reason string, missing ...string) func(*LinkStatus) {
		return func(s *LinkStatus) {
			condition := metav1.Condition{
				Type: Mirrors, Status: metav1.ConditionFalse, Reason: reason, Message: "because",
			}
			s.Mirror = &MirrorReport{Condition: condition, NotMirrored: missing}
		}
	}

	for name, c := range map[string]struct {
		link   Link
		out    outcome
		change func(*LinkStatus)
		want   string
	}{
		"nothing":    {},
		"misread":    {link: Link{misread: "what?"}, want: "Warning InvalidAnnotation: what?"},
		"not a name": {link: Link{refusal: problem.Invalid, refused: "no name"}, want: "Urgent Invalid: no name"},
		"two of them": {
			out: outcome{winner: &Link{key: api.Key{Name: "old"}}}, want: "Urgent Conflict: Link old links",
		},
		"credentials": {
			out: outcome{rejection: errors.New("exec")}, want: "Urgent Refused: exec; Secret west is in use",
		},
		"deleted": {
			change: func(s *LinkStatus) { s.Held = "all were" }, want: "Urgent LinkDeleted: all were; the cluster",
		},
		"a gateway":    {change: mirror(GatewayUnresolved), want: "Warning Gateway: because"},
		"a permission": {change: mirror("Forbidden"), want: "Warning Mirroring: because"},
		"not mirrored": {change: mirror("Forbidden", "shop/web"), want: "Warning NotMirrored: shop/web"},
		"by Linkerd":   {change: mirror(LeftToLinkerd)},
	} {
		link := c.link
		link.key, link.clusterName = api.Key{Namespace: "linkerd", Name: "w"}, "west"
		if c.out.winner == nil {
			c.out.winner = &link
		}
		status := LinkStatus{
			Namespace: "linkerd", Name: "w", Cluster: "west", Own: own(problemsFor(&link, c.out, live, true, now)),
		}
		if c.change != nil {
			c.change(&status)
		}

		var got []string
		for _, p := range problem.ToLook(status.Problems()) {
			got = append(got, fmt.Sprintf("%s %s: %s", p.Severity, p.Class, p.Message()))
			if p.Cluster != "west" || p.Object.Kind != "Link" || !strings.Contains(p.Title, "linkerd/w") {
				t.Errorf("%s: no Link in %+v", name, p)
			}
		}
		if text := strings.Join(got, "\n"); !strings.HasPrefix(text, c.want) || c.want == "" && text != "" {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

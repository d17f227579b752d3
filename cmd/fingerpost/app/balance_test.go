package app_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/fingerpost/fingerpost/discovery/proxy"
)

// sender is a client of a crowd that sends requests as linkerd2-proxy does.
type sender struct {
	*proxy.Balancer
	held    func() []proxy.Address
	random  *rand.Rand
	pending []response // in the order in which they come
}

type response struct {
	of            netip.AddrPort
	sent, arrives time.Time
}

// senders are the clients of a crowd, always the same ones.
func (s *scenario) senders(crowd string) (all []*sender) {
	for bucket, st := range s.crowds[crowd] {
		all = append(all, &sender{
			Balancer: proxy.NewBalancer(uint64(bucket)), held: st.Holds,
			random: rand.New(rand.NewPCG(uint64(bucket), 1)),
		})
	}
	return all
}

// send has each client send a request each 10 ms for a time, and returns which part of them went to each cluster, and
// how many found no endpoint. Responses take 5 to 35 ms.
func (s *scenario) send(clients []*sender, d time.Duration) (parts map[string]float64, lost int) {
	s.t.Helper()
	owner, _ := s.owners()
	parts = map[string]float64{}
	total := 0
	for end := time.Now().Add(d); time.Now().Before(end); elapse(10 * time.Millisecond) {
		now := time.Now()
		for _, c := range clients {
			for len(c.pending) > 0 && !c.pending[0].arrives.After(now) {
				c.Done(c.pending[0].of, c.pending[0].sent, c.pending[0].arrives)
				c.pending = c.pending[1:]
			}
			total++
			to, sent := c.Send(c.held(), now)
			if !sent {
				lost++
				continue
			}
			parts[owner[to]]++
			took := 5*time.Millisecond + time.Duration(c.random.Int64N(int64(30*time.Millisecond)))
			c.pending = append(c.pending, response{to, now, now.Add(took)})
			slices.SortFunc(c.pending, func(a, b response) int { return a.arrives.Compare(b.arrives) })
		}
	}
	for cluster := range parts {
		parts[cluster] /= float64(total)
	}
	return parts, lost
}

// played plays verbs in a scenario without writers, and then the rest of a test.
func played(t *testing.T, verbs []string, test func(s *scenario)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newScenario(t, &txtar.Archive{})
		defer s.end()
		s.start("replica-1")
		elapse(settle)
		for _, verb := range verbs {
			args := words(t, verb)
			s.do(args[0], args[1:])
			elapse(settle)
		}
		defer func() {
			for _, st := range s.streams {
				st.Close()
				if err := st.Violations(); err != nil {
					t.Error(err)
				}
			}
		}()
		test(s)
	})
}

const splitTolerance = 0.03

var numbersOf = regexp.MustCompile(`(\w+) (\d+)`)

// The requests of 16 clients, one of each bucket, go to clusters by their shares, although each client balances as
// linkerd2-proxy does and knows no share.
func TestSplitOfRequests(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		weights, endpoints string
		want               map[string]float64
	}{
		{"east=80,west=20", "east 7, west 13", map[string]float64{"east": .80, "west": .20}},
		{"east=90,west=10", "east 12, west 3", map[string]float64{"east": .90, "west": .10}},
		{"east=99,west=1", "east 20, west 5", map[string]float64{"east": .99, "west": .01}},
		{
			"east=50,west=30,north=20", "east 7, west 12, north 4",
			map[string]float64{"east": .50, "west": .30, "north": .20},
		},
	} {
		t.Run(c.weights, func(t *testing.T) {
			t.Parallel()
			var verbs []string
			members := ""
			for _, cluster := range sortedKeys(c.want) {
				members += ",web@" + cluster
			}
			for _, of := range numbersOf.FindAllStringSubmatch(c.endpoints, -1) {
				verbs = append(verbs, fmt.Sprintf("endpoints %s shop/web 1-%s", of[1], of[2]), "link "+of[1])
			}
			verbs = append(verbs, "endpoints local shop/all",
				fmt.Sprintf("annotate local Service shop/all members=%s weights=%s", members[1:], c.weights),
				"crowd c all.shop.svc.mycluster.local:80")
			played(t, verbs, func(s *scenario) {
				parts, lost := s.send(s.senders("c"), 20*time.Second)
				if lost > 0 {
					t.Errorf("%d requests found no endpoint", lost)
				}
				for cluster, want := range c.want {
					if math.Abs(parts[cluster]-want) > splitTolerance || parts[cluster] == 0 {
						t.Errorf("%s gets %.3f of the requests, want %.2f", cluster, parts[cluster], want)
					}
				}
				t.Log(parts)
			})
		})
	}
}

// A cluster of two that is drained over a minute gets fewer requests from step to step, and none in the end. No request
// is lost.
func TestDrainOfRequests(t *testing.T) {
	t.Parallel()
	played(t, []string{
		"endpoints local shop/web 1-10", "endpoints west shop/web 1-10", "apply local fleet/west-link.yaml",
		"apply local traffic/local-west.yaml", "crowd c all.shop.svc.mycluster.local:80",
	}, func(s *scenario) {
		const over, step = time.Minute, 3 * time.Second
		clients := s.senders("c")
		begin := time.Now().Add(2 * time.Second).UTC()
		drain := "drain=" + begin.Format(time.RFC3339Nano) + "/" + over.String()
		s.do("annotate", []string{home, "Link", "mc/west", drain})
		elapse(time.Until(begin))
		// Without weights each ready endpoint counts, those of west as far as it is left.
		share := func(at time.Duration) float64 {
			left := 1 - float64(max(0, min(at, over)))/float64(over)
			return left / (1 + left)
		}
		for at := time.Duration(0); at < over+2*step; at += step {
			parts, lost := s.send(clients, step)
			if lost > 0 {
				t.Errorf("%s: %d requests found no endpoint", at, lost)
			}
			least, most := share(at+2*step)-splitTolerance, share(at-step)+splitTolerance
			if got := parts["west"]; got < least || got > most {
				t.Errorf("%s: west gets %.3f of the requests, want %.3f to %.3f", at, got, least, most)
			}
			if at >= over+step && parts["west"] > 0 {
				t.Errorf("%s: west is drained, and gets %.3f of the requests", at, parts["west"])
			}
		}
	})
}

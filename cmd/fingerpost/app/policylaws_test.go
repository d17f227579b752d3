package app_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"pgregory.net/rapid"
)

// TestCases are the contract cases that are laws: they hold for all objects of policy, and for all events; and those
// of the process that injects.
func TestCases(t *testing.T) {
	t.Run("PZ01", testProxiesTakeAll)
	t.Run("PZ02", testOrderOfEvents)
	t.Run("PZ04", testSilence)
	t.Run("IJ06", testWithoutValues)
	t.Run("IJ07", testBadValues)
	t.Run("IJ10", testBadNetworks)
	t.Run("IJ12", testNewCertificate)
}

// policyAsked are the ports and the targets that a history asks for, as the verbs of a scenario have them.
var policyAsked = []struct{ stream, call, about string }{
	{"inbound", "get-port", "shop:p 8080"},
	{"inbound", "get-port", "shop:p 4191"},
	{"inbound", "get-port", `"{\"ns\":\"shop\",\"external_workload\":\"w\"}" 80`},
	{"outbound", "get-policy", "shop:client 10.96.0.10:8080"},
	{"outbound", "get-policy", "other:client 10.96.0.10:80"},
	{"outbound", "get-policy", "shop:client 203.0.113.10:80"},
	{"outbound", "get-policy", "shop:client 1.1.1.1:443"},
	{"outbound", "get-policy", "other:client [2606:4700::1]:443"},
	{"outbound", "get-policy", "shop:client a.shop.svc.cluster.local:8080"},
	{"outbound", "get-policy", "other:client b.other.svc.cluster.local:80"},
}

const askedWorkload = `
apiVersion: workload.linkerd.io/v1beta1
kind: ExternalWorkload
metadata: {name: w, namespace: shop, labels: {app: w}}
spec: {meshTLS: {identity: i, serverName: s}, ports: [{name: http, port: 80}]}
`

// A policyHistory is the objects of policy that there are, in the order in which they are created, and what becomes of
// some of them afterwards.
type policyHistory struct {
	objects []string // in YAML, no two of one name
	edits   []string // verbs
	flags   []string // besides those of most cases

	seen map[string]int // what the model has met; nil: it is not counted
}

// play plays a history, the objects in that order, and returns what streams got, and what calls did at the end. It
// fails where a proxy would not take an answer, and where one is not that of the model.
func (h policyHistory) play(t *testing.T, order []int) (streams, calls string) {
	t.Helper()
	flags := strings.TrimSpace("flags P0/flags -policy-status " + strings.Join(h.flags, " "))
	script := []string{flags, "apply local P0/P.yaml w.yaml"}
	archive := &txtar.Archive{Files: []txtar.File{{Name: "w.yaml", Data: []byte(askedWorkload)}}}

	for i, asked := range policyAsked {
		script = append(script, fmt.Sprintf("%s s%d %s", asked.stream, i, asked.about))
	}
	for _, i := range order {
		archive.Files = append(archive.Files, txtar.File{Name: fileOf(i), Data: []byte(h.objects[i])})
		script = append(script, "apply local "+fileOf(i))
	}

	const compare = "compare-policy"
	script = append(script, "advance 10s", compare)
	for i, edit := range h.edits {
		script = append(script, edit)
		if i%4 == 3 {
			script = append(script, "advance 10s", compare)
		}
	}
	script = append(script, "advance 10s", compare, "ready replica-1")
	for _, asked := range policyAsked {
		script = append(script, asked.call+" "+asked.about)
	}

	archive.Comment = []byte(strings.Join(script, "\n") + "\n")
	synctest.Test(t, func(t *testing.T) {
		s := newScenario(t, archive)
		s.policySeen = h.seen
		transcript := s.play()
		streams, calls, _ = strings.Cut(transcript, "> ready replica-1\n")
		if strings.Contains(transcript, otherwise) {
			t.Error("an answer is not that of the model")
		}
		if t.Failed() {
			t.Logf("%s%s", txtar.Format(archive), transcript)
		}
	})
	return streams, calls
}

// Random histories of policy beside those of TestSim, some for each of these. One that fails is printed as a scenario.
func TestSimPolicy(t *testing.T) {
	if testing.Short() {
		t.Skip("the laws have some")
	}
	first := *simSeed
	if first == 0 {
		first = rand.Uint64N(1e9) + 1
	}
	seen := map[string]int{}
	for i := range uint64(*simHistories) {
		for n := range uint64(policyHistories) {
			h := drawPolicy(int((first+i)*policyHistories + n))
			h.seen = seen
			h.play(t, upTo(len(h.objects)))
		}
		if t.Failed() {
			t.Fatalf("to replay it: make sim ARGS='-seed %d -histories 1'", first+i)
		}
	}

	if *simHistories < enoughHistories {
		return
	}
	for _, what := range policyMet {
		if seen[what] == 0 {
			t.Errorf("no answer of %d histories has had %s", *simHistories*policyHistories, what)
		}
	}
}

// enoughHistories are as many as have everything that the model can meet.
const enoughHistories = 200

const policyHistories = 5 // for each one of the whole system

// policyRounds is how many histories a law is checked with.
func policyRounds() int {
	if testing.Short() {
		return 10
	}
	return 100
}

// drawPolicy returns the history of a number.
func drawPolicy(number int) policyHistory { return rapid.Custom(drawPolicyHistory).Example(number) }

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// PZ01: whatever objects there are, a proxy takes each message. The scenario fails otherwise.
func testProxiesTakeAll(t *testing.T) {
	var all strings.Builder
	for number := range policyRounds() {
		h := drawPolicy(number)
		streams, calls := h.play(t, upTo(len(h.objects)))
		all.WriteString(streams + calls)
	}
	if testing.Short() {
		return // too few to have seen everything
	}

	for _, seen := range []string{
		"filter fail", "filter redirect", "filter response-headers", "random 2 ", " forward ", "retry=[", "accrual",
		"route gateway.networking.k8s.io/HTTPRoute/", "route gateway.networking.k8s.io/GRPCRoute/",
		"route gateway.networking.k8s.io/TLSRoute/", "route gateway.networking.k8s.io/TCPRoute/",
		"route policy.linkerd.io/HTTPRoute//", "limit policy.linkerd.io/",
		"allow policy.linkerd.io/authorizationpolicy", "allow policy.linkerd.io/serverauthorization",
	} {
		if !strings.Contains(all.String(), seen) {
			t.Errorf("no history has had %q", seen)
		}
	}
}

// PZ02: objects may be created in any order.
func testOrderOfEvents(t *testing.T) {
	for number := range policyRounds() {
		h := drawPolicy(1000 + number)
		one := upTo(len(h.objects))
		other := rapid.Permutation(one).Example(number)
		_, first := h.play(t, one)
		_, second := h.play(t, other)
		if diff := cmp.Diff(strings.Split(first, "\n"), strings.Split(second, "\n")); diff != "" {
			t.Fatalf("in another order, %v, objects give other answers:\n%s\n%s", other, diff,
				strings.Join(h.objects, "---\n"))
		}
	}
}

// PZ04: what changes no answer has no message sent. What clients hold is what a call gets.
func testSilence(t *testing.T) {
	for number := range policyRounds() {
		h := drawPolicy(2000 + number)
		streams, calls := h.play(t, upTo(len(h.objects)))
		if i := strings.Index(streams, "policy repeated"); i >= 0 {
			t.Fatalf("a message is sent again:\n%s", streams[:i+len("policy repeated")])
		}

		answers := strings.Split(calls, "> get-")[1:]
		for i, held := range heldAt(streams) {
			_, answer, _ := strings.Cut(answers[i], "answer ")
			if held != "" && !strings.HasPrefix(answer, "end NotFound") && answer != held {
				t.Fatalf("a client that asks for %s holds\n%s\nand a call gets\n%s", policyAsked[i].about, held, answer)
			}
		}
	}
}

// heldAt returns the last message of each stream in a transcript; nothing of one that has ended.
func heldAt(transcript string) []string {
	held := make([]string, len(policyAsked))
	about := -1
	for line := range strings.Lines(transcript) {
		var i int
		var rest string
		switch n, _ := fmt.Sscanf(line, "s%d ", &i); {
		case n == 1:
			_, rest, _ = strings.Cut(line, " ")
			about, held[i] = i, rest
			if strings.HasPrefix(rest, "end ") {
				held[i] = ""
			}
		case strings.HasPrefix(line, "  ") && about >= 0:
			held[about] += line
		default:
			about = -1
		}
	}
	return held
}

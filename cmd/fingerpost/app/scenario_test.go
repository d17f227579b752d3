package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"html"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"golang.org/x/tools/txtar"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cluster/apitest"
	"github.com/fingerpost/fingerpost/cluster/changes"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/check"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
	"github.com/fingerpost/fingerpost/discovery/proxy"
	"github.com/fingerpost/fingerpost/links"
)

var update = flag.Bool("update", false, "rewrite the transcripts of the scenarios, except those of contract cases")

const (
	home   = "local"           // the cluster that Fingerpost runs in
	settle = time.Second / 2   // of virtual time after each verb
	stream = "stream"          // the section that holds the transcript
	ours   = "linkerd"         // controller namespace
	domain = "mycluster.local" // of home
	trust  = "trust.domain"    // of home
	opaque = "25,443,587,3306,5432,11211"
)

func TestScenarios(t *testing.T) {
	run := func(t *testing.T, file string) {
		t.Helper()
		t.Parallel()
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == stream })
		if i < 0 {
			t.Fatal("no -- stream -- section")
		}
		var got string
		synctest.Test(t, func(t *testing.T) { got = newScenario(t, archive).play() })
		isCase := filepath.Base(filepath.Dir(file)) == "cases"
		want := string(archive.Files[i].Data)
		if isCase && !tells(want) {
			t.Error("the transcript of a case must hold an expected message or status")
		}
		diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(loosen(want, got), "\n"))
		if diff == "" {
			return
		}
		if *update && !isCase {
			archive.Files[i].Data = []byte(got)
			if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		t.Errorf("the transcript differs (-want +got):\n%s", diff)
	}
	var files []string
	for _, pattern := range []string{"testdata/*.txtar", "testdata/cases/*.txtar"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) == 0 {
		t.Fatal("no scenarios")
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		if testing.Short() && strings.HasPrefix(name, "drills-") {
			continue // they are long, and tools/chart plays them
		}
		t.Run(name, func(t *testing.T) { run(t, file) })
	}
}

// tells reports whether a transcript holds more than the script.
func tells(transcript string) bool {
	for line := range strings.Lines(transcript) {
		if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "> ") {
			return true
		}
	}
	return false
}

// loosen cuts the message off each status in got where want has the code alone, and puts the addresses of a message
// into the order in which want has them: it means nothing to proxies.
func loosen(want, got string) string {
	wanted, lines := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i, line := range lines {
		if i == len(wanted) {
			break
		}
		endsSo := strings.Contains(wanted[i], " end ") && strings.HasPrefix(line, wanted[i]+":")
		if endsSo || strings.Contains(line, " add ") && sameWords(line, wanted[i]) {
			lines[i] = wanted[i]
		}
	}
	return strings.Join(lines, "\n")
}

func sameWords(a, b string) bool {
	sorted := func(line string) []string { return slices.Sorted(slices.Values(strings.Fields(line))) }
	return slices.Equal(sorted(a), sorted(b))
}

// scenario is one run: the whole of Fingerpost between API servers in memory and model proxies.
type scenario struct {
	t       *testing.T
	archive *txtar.Archive
	out     bytes.Buffer

	network  *apitest.Network
	flags    []string
	conns    map[string]*grpc.ClientConn // of clients, by the server and the replica that they prefer
	ended    []<-chan struct{}           // closed when a replica has ended
	tokens   map[string]string           // of clusters
	anew     map[string]bool             // clusters whose kubeconfig names the server in another way
	hosts    sync.Map                    // addresses of host names, []netip.Addr
	show     []string
	stateDir string // of all replicas, a folder each

	inPlaceOfPeers *bufconn.Listener // what answers replicas that ask each other; nil for themselves
	damaged        map[string]bool   // replicas that find it damaged when they are started next
	killed         map[string]int
	streams        map[string]lookup
	crowds         map[string][]*proxy.Stream // by bucket
	opened         []string                   // names of streams, in order

	recorder     *recorder                    // nil for none
	watch        *watch                       // of a random history; nil in a scenario
	unlinked     map[string]time.Time         // when the Link or the Secret of a cluster was deleted last
	heldLinks    map[string]map[string]string // those that were deleted with their CRD, and are not created again yet
	backups      map[string]func()            // of API servers
	sliceNames   sliceNames
	policySeen   map[string]int       // what the model of policy has met; nil: it is not counted
	shownChanges map[string]time.Time // by what they are about
	written      map[string]int       // by cluster, verb and resource: how often it was asked for when it was printed

	mu       sync.Mutex
	replicas []*replica          // that run, in the order in which they have started
	seen     map[string][]string // lines by stream since the last verb

	logMu  sync.Mutex
	logged []string // lines
}

// lookup is a stream of either kind.
type lookup interface {
	Request() proxy.Request
	Stall()
	Resume()
	Close()
	Violations() error
}

func newScenario(t *testing.T, archive *txtar.Archive) *scenario {
	t.Helper()
	return &scenario{
		t: t, archive: archive, network: apitest.NewNetwork(), tokens: map[string]string{},
		conns: map[string]*grpc.ClientConn{}, streams: map[string]lookup{}, seen: map[string][]string{},
		killed: map[string]int{}, crowds: map[string][]*proxy.Stream{}, anew: map[string]bool{},
		damaged: map[string]bool{}, heldLinks: map[string]map[string]string{}, backups: map[string]func(){},
		written: map[string]int{}, sliceNames: sliceNames{map[types.UID]string{}, map[string]int{}},
	}
}

// play runs the script and returns the transcript.
func (s *scenario) play() string {
	var script [][]string
	var lines []string
	for line := range strings.Lines(string(s.archive.Comment)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		script, lines = append(script, words(s.t, line)), append(lines, line)
	}
	if len(script) > 0 && script[0][0] == "flags" {
		s.flags = s.flagsOf(script[0][1:])
	}
	defer s.end()
	s.start("replica-1")
	if *record != "" && slices.ContainsFunc(script, func(args []string) bool { return args[0] == "alerts" }) {
		recorder, stop := newRecorder(s)
		defer func() {
			stop()
			if err := recorder.write(*record, s.t.Name()); err != nil {
				s.t.Error(err)
			}
		}()
		s.recorder = recorder
	}
	elapse(settle)
	for i, args := range script {
		fmt.Fprintf(&s.out, "> %s\n", lines[i])
		if args[0] == "+" {
			args = args[1:]
		}
		for i, arg := range args {
			args[i] = s.expand(arg)
		}
		s.do(args[0], args[1:])
		if s.watch != nil && !s.watch.observe(s, args[0], args[1:]) {
			break
		}
		if i+1 < len(script) && script[i+1][0] == "+" {
			continue
		}
		elapse(settle)
		s.flush()
	}
	var violations []error
	for name, st := range s.streams { // those of crowds, too
		st.Close()
		if err := st.Violations(); err != nil {
			violations = append(violations, fmt.Errorf("stream %s: %w", name, err))
		}
	}
	for _, v := range violations {
		if s.watch != nil {
			s.watch.violations = append(s.watch.violations, v.Error())
			continue
		}
		s.t.Error(v)
	}
	return s.out.String()
}

// end stops everything that runs, also where the script has failed.
func (s *scenario) end() {
	for _, conn := range s.conns {
		conn.Close()
	}
	for len(s.replicas) > 0 {
		s.stop(s.replicas[0].name)
	}
	for _, ended := range s.ended {
		<-ended
	}
	s.network.Close()
}

// elapse lets virtual time pass, until nothing more can happen at its end.
func elapse(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // virtual time
	synctest.Wait()
}

// words splits a line at spaces. A part in quotes, as Go writes them, is one word, or the value in one.
func words(t *testing.T, line string) []string {
	t.Helper()
	var all []string
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		quote := regexp.MustCompile(`^([^\s"]*=)?("(?:[^"\\]|\\.)*")(\s|$)`).FindStringSubmatch(line)
		if quote == nil {
			word, rest, _ := strings.Cut(line, " ")
			all, line = append(all, word), rest
			continue
		}
		text, err := strconv.Unquote(quote[2])
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all, line = append(all, quote[1]+text), line[len(quote[0]):]
	}
	return all
}

func (s *scenario) token(name string) string {
	if s.tokens[name] == "" {
		s.tokens[name] = s.network.Server(name).Token()
	}
	return s.tokens[name]
}

// path returns a path to the API server of a cluster: CLUSTER is the server's own, NAME.CLUSTER another one.
func (s *scenario) path(of string) *apitest.Path {
	name, _, other := strings.Cut(of, ".")
	if !other {
		name = ""
	}
	return s.network.Path(clusterOfPath(of), name)
}

func clusterOfPath(of string) string { return of[strings.LastIndex(of, ".")+1:] }

// kubeconfig returns credentials for a cluster over a path.
func (s *scenario) kubeconfig(name, token string) string {
	text := s.path(name).Kubeconfig(token)
	if s.anew[name] { // the same server, as far as it answers, and another access by its fields
		text = strings.Replace(text, `"server":`, fmt.Sprintf(`"tls-server-name":"%s.test","server":`, name), 1)
	}
	return text
}

// needs fails a scenario unless what a verb needs was there. In a random history the deed that makes it may be left
// out, and the verb does nothing.
func (s *scenario) needs(there bool, format string, args ...any) {
	s.t.Helper()
	if !there && s.watch == nil {
		s.t.Fatalf(format, args...)
	}
}

// credentials returns the Secret of a linked cluster, or nil in a random history.
func (s *scenario) credentials(cluster string) *unstructured.Unstructured {
	s.t.Helper()
	secret := s.network.Server(home).Get("secrets", ours, "cluster-credentials-"+cluster)
	if secret == nil {
		secret = s.network.Server(home).Get("secrets", "mc", cluster)
	}
	s.needs(secret != nil, "cluster %s is not linked", cluster)
	return secret
}

// setCredentials replaces those in the Secret of a linked cluster.
func (s *scenario) setCredentials(cluster, kubeconfig string) {
	s.t.Helper()
	if secret := s.credentials(cluster); secret != nil {
		secret.Object["stringData"] = map[string]any{"kubeconfig": kubeconfig}
		s.network.Server(home).Apply(secret)
	}
}

// spoil replaces the credentials of a linked cluster by some that do not work: with a token that is unknown, that
// lacks a right, or with the address of another cluster; or wholly by what cannot be read.
func (s *scenario) spoil(cluster string, how []string) {
	s.t.Helper()
	kubeconfig := s.kubeconfig(cluster, "unknown")
	switch {
	case len(how) == 2 && how[0] == "without":
		kubeconfig = s.kubeconfig(cluster, s.network.Server(cluster).TokenWithout(how[1]))
	case len(how) == 2 && how[0] == "as":
		kubeconfig = s.kubeconfig(how[1], s.token(cluster))
	case len(how) == 1 && how[0] == "wholly":
		kubeconfig = "no kubeconfig"
	case len(how) > 0:
		s.t.Fatalf("spoil: unknown argument %s", how[0])
	}
	s.setCredentials(cluster, kubeconfig)
}

// access returns the access to a cluster.
func (s *scenario) access(name string) *rest.Config {
	s.t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(s.kubeconfig(name, s.token(name))))
	if err != nil {
		s.t.Fatal(err)
	}
	return config
}

// do plays one verb.
func (s *scenario) do(verb string, args []string) {
	s.t.Helper()
	at := func(i int) string {
		if i >= len(args) {
			s.t.Fatalf("%s: too few arguments", verb)
		}
		return args[i]
	}
	switch verb {
	case "flags": // see play
	case "show":
		s.show = args
	case "apply":
		for _, name := range args[1:] {
			for _, o := range s.objects(name) {
				s.network.Server(at(0)).Apply(o)
				synctest.Wait() // so that the first one is published before the second is written, in each run
			}
		}
	case "delete":
		if at(1) == "CustomResourceDefinition" {
			if s.watch != nil && at(2) == linkResource {
				s.heldLinks = s.readModel().links
			}
			s.network.Server(at(0)).DeleteKind(at(2))
			break
		}
		namespace, name := namespaced(at(2))
		deleted := s.network.Server(at(0)).Delete(at(1), namespace, s.objectName(at(0), namespace, name))
		s.needs(deleted, "delete: cluster %s has no %s %s", args[0], args[1], args[2])
		if args[1] == "Link" {
			s.noteUnlinked(name)
		}
		if s.watch != nil && args[1] == "Service" {
			s.endpointsOnly(args[0], namespace, name, nil)
		}
	case "misreport":
		for _, name := range args[2:] {
			namespace, name := namespaced(name)
			s.network.Server(at(0)).SendDeleted(at(1), namespace, name)
		}
	case "patch":
		s.patch(at(0), at(1), at(2), at(3))
	case "annotate":
		s.annotate(at(0), at(1), at(2), args[3:])
	case "crowd":
		s.crowd(at(0), at(1), args[2:])
	case "lose":
		s.lose(at(0), at(1), at(2))
	case "equal":
		s.equal(at(0), at(1))
	case "until":
		s.until(at(0))
	case "explain":
		s.explain(at(0), args[1:])
	case "explain-port":
		s.explainPort(at(0), at(1))
	case "traffic":
		s.traffic(at(0), args[1:])
	case "spread":
		s.spread(at(0), args[1:])
	case "link":
		s.link(at(0), args[1:])
	case "unlink":
		deleted := s.network.Server(home).Delete("Secret", ours, "cluster-credentials-"+at(0))
		s.needs(deleted, "unlink: cluster %s is not linked", args[0])
		s.noteUnlinked(args[0])
	case "rotate":
		if s.credentials(at(0)) == nil {
			break
		}
		old := s.tokens[at(0)]
		s.tokens[args[0]] = ""
		if len(args) > 1 && args[1] == "anew" {
			s.anew[args[0]] = !s.anew[args[0]]
		}
		s.setCredentials(args[0], s.kubeconfig(args[0], s.token(args[0])))
		elapse(settle)
		s.network.Server(args[0]).Revoke(old)
	case "spoil":
		s.spoil(at(0), args[1:])
	case "backup":
		s.backups[at(0)] = s.network.Server(args[0]).Backup()
	case "restore":
		restore := s.backups[at(0)]
		if restore == nil {
			s.t.Fatalf("restore: there is no backup of %s", args[0])
		}
		// A watch that has delivered half of a change, such as that an address left one of two slices, would never
		// deliver the other half. What it has delivered was so: no client can know better.
		synctest.Wait()
		restore()
	case "require-letters":
		s.network.Server(at(0)).RequireLetters(true)
	case "mirror-endpoints":
		s.network.Server(at(0)).MirrorEndpoints()
	case "unstream":
		s.network.Server(at(0)).Stream(false)
	case "multiplex":
		s.network.Server(at(0)).Multiplex()
	case "get":
		s.get(at(0), at(1), args[2:])
	case "requests":
		s.requests(at(0), at(1), at(2), at(3), args[4:])
	case "profile":
		s.profile(at(0), at(1), args[2:])
	case "inbound":
		s.inbound(at(0), at(1), at(2), args[3:])
	case "get-port":
		s.getPort(at(0), at(1), args[2:])
	case "outbound":
		s.outbound(at(0), at(1), at(2), args[3:])
	case "get-policy":
		s.getPolicy(at(0), at(1), args[2:])
	case "statuses":
		s.printStatuses(at(0), at(1), at(2), args[3:])
	case "ready":
		s.printReady(s.mustRun(at(0)))
	case "close":
		s.open(at(0)).Close()
	case "stall":
		s.open(at(0)).Stall()
	case "resume":
		s.open(at(0)).Resume()
	case "set":
		addresses, ok := s.open(at(0)).(*proxy.Stream)
		if !ok {
			s.t.Fatalf("set: stream %s is for a profile", args[0])
		}
		line := "holds nothing"
		if held := addresses.Holds(); len(held) > 0 {
			line = "holds"
			for _, a := range held {
				line += " " + a.Addr.String()
			}
		}
		s.saw(args[0], line)
	case "partition":
		how := apitest.Silence
		if len(args) > 1 && args[1] == "refuse" {
			how = apitest.Refuse
		}
		s.path(at(0)).Cut(how)
	case "heal":
		s.path(at(0)).Cut(apitest.None)
		if len(args) > 1 {
			s.advance(args[1])
		}
	case "forbid", "allow":
		s.network.Server(at(0)).Forbid(at(1), verb == "forbid")
		if len(args) > 2 {
			s.advance(args[2])
		}
	case "deny", "grant":
		s.network.Server(at(0)).Deny(at(1), at(2), verb == "deny")
		if len(args) > 3 {
			s.advance(args[3])
		}
	case "reject", "admit":
		s.reject(args, verb == "reject")
	case "token":
		s.tokens[at(0)] = s.network.Server(at(0)).TokenUntil(time.Now().Add(s.duration(at(1))))
	case "revoke":
		s.network.Server(at(0)).Revoke(s.token(at(0)))
	case "resolve":
		s.resolve(at(0), args[1:])
	case "skew":
		s.network.Server(at(0)).Skew(s.duration(at(1)))
	case "check":
		s.check(args)
	case "page":
		s.page()
	case "changes":
		s.printChanges(args)
	case "troubleshoot":
		s.troubleshoot(at(0))
	case "alerts":
		if s.recorder != nil {
			s.recorder.expect(args)
		}
	case "serve":
		s.network.Server(at(0)).Serve(at(1), args[2:]...)
	case "advance":
		s.advance(at(0))
	case "start":
		if len(args) > 1 {
			s.startIn(args[0], args[1])
			break
		}
		s.start(at(0))
	case "stop":
		s.stop(at(0))
	case "kill":
		s.kill(at(0))
	case "isolate", "rejoin":
		to, do := []string{anywhere}, s.mustRun(at(0)).toServer.lose
		if verb == "rejoin" {
			do = s.mustRun(at(0)).toServer.restore
		}
		if len(args) > 1 {
			to = nil
		}
		for _, name := range args[1:] {
			to = append(to, s.path(name).Addr())
		}
		for _, address := range to {
			do(address)
		}
	case "endpoints":
		namespace, name := splitName(at(1))
		s.endpoints(at(0), namespace, name, args[2:])
	case "publish":
		namespace, name := splitName(at(1))
		s.publish(at(0), namespace, name, args[2:])
	case "fail":
		code, _ := strconv.Atoi(at(2)) // 0 ends it
		retryAfter, _ := strconv.Atoi(strings.Join(args[3:], ""))
		s.network.Server(at(0)).Fail(at(1), code, retryAfter)
	case "delay":
		s.network.Server(at(0)).Delay(strings.Join(args[2:], ""), s.duration(at(1)))
	case "expire":
		s.network.Server(at(0)).Expire()
	case "stall-watches", "resume-watches":
		s.network.Server(at(0)).SilenceWatches(at(1), verb == "stall-watches")
	case "replace-answers", "restore-answers":
		instead := map[string]http.HandlerFunc{"replace-answers": loginPage}
		s.network.Server(at(0)).Answer(at(1), instead[verb])
	case "depose":
		for _, l := range s.network.Server(at(0)).List(leaseResource) {
			s.network.Server(args[0]).Delete("Lease", l.GetNamespace(), l.GetName())
		}
	case "compare":
		for _, difference := range s.differences() {
			fmt.Fprintln(&s.out, difference)
		}
	case "compare-policy":
		for _, difference := range s.policyDifferences() {
			fmt.Fprintln(&s.out, difference)
		}
	case "disk":
		s.disk(at(0), at(1))
	case "drain":
		s.first().Serving.Drain(0)
	case "clusters":
		statuses, _ := s.first().Registry.Statuses()
		for _, name := range sortedKeys(statuses) {
			fmt.Fprintf(&s.out, "%s %s\n", name, statuses[name].State)
		}
	case "cluster":
		s.printCluster(at(0), args[1:])
	case "logged":
		s.printLogged(at(0))
	case "message":
		s.message(at(0), at(1))
	case "conditions":
		s.conditions(at(0), args[1:])
	case "events":
		s.printEvents(at(0))
	case "status":
		s.printStatus(at(0))
	case "slices":
		s.printSlices(at(0), at(1), args[2:])
	case "mirrors":
		s.printMirrors(at(0), args[1:])
	case "holders":
		s.printHolders(at(0), strings.Join(args[1:], ""))
	case "watches":
		all := 0
		watches := s.network.Server(at(0)).Watches()
		for _, resource := range sortedKeys(watches) {
			fmt.Fprintf(&s.out, "%d %s\n", watches[resource], resource)
			all += watches[resource]
		}
		fmt.Fprintf(&s.out, "%d in all\n", all)
	case "count":
		for _, resource := range args[1:] {
			s.writes(at(0), resource)
		}
	case "writes":
		for _, resource := range args[1:] {
			fmt.Fprintln(&s.out, resource+s.writes(at(0), resource))
		}
	case "lists":
		s.printLists(at(0), at(1))
	case "print":
		s.printObject(at(0), at(1), at(2), args[3:])
	case "streams":
		names := slices.Clone(s.opened) // in the order in which the server knows the streams
		for _, st := range s.first().Discovery.Streams() {
			i := slices.IndexFunc(names,
				func(name string) bool { return s.streams[name].Request().Authority == st.Authority })
			if i < 0 {
				s.t.Fatalf("streams: nobody has opened %s", st.Authority)
			}
			s.saw(names[i], fmt.Sprintf("%s ns=%s node=%s pod=%s", st.Authority, st.Namespace, st.Node, st.Pod))
			names = slices.Delete(names, i, i+1)
		}
	case "metrics":
		s.printMetrics(at(0), args[1:])
	default:
		s.t.Fatalf("unknown verb %q", verb)
	}
}

// reject has requests rejected, or no more: CLUSTER VERB RESOURCE [NAMESPACE, or all [WHY]].
func (s *scenario) reject(args []string, rejected bool) {
	why, namespace := "", ""
	if len(args) > 3 && args[3] != "all" {
		namespace = args[3]
	}
	if rejected {
		why = "exceeded quota"
	}
	if rejected && len(args) > 4 {
		why = strings.Join(args[4:], " ")
	}
	s.network.Server(args[0]).Reject(args[1], args[2], namespace, why)
}

func (s *scenario) advance(by string) { elapse(s.duration(by)) }

func (s *scenario) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// check prints what does not succeed of 'fingerpost check', in some of its categories or all.
func (s *scenario) check(categories []string) {
	config := s.access(home)
	config.Dial, config.QPS = s.network.Dial, -1
	var all []cli.Replica
	for _, r := range s.replicas {
		all = append(all, cli.Replica{Name: r.name, Addr: r.name, Transport: debugTransport{s, r.name}})
	}
	lines := check.Once(s.t.Context(), config, ours, all)
	if len(lines) == 0 {
		fmt.Fprintln(&s.out, "√")
	}
	for _, line := range lines {
		result, rest, _ := strings.Cut(line, " fingerpost-")
		category, text, _ := strings.Cut(rest, ": ")
		if len(categories) == 0 || slices.Contains(categories, category) {
			text = ages.ReplaceAllString(text, "$1…$2") // they depend on when the last probe was
			text = sums.ReplaceAllString(text, "$1…")   // certificates are made anew for each run
			if before, _, found := strings.Cut(text, s.stateDir+"/"); found && s.stateDir != "" {
				text = before + "…" // why it cannot be used depends on the operating system
			}
			fmt.Fprintf(&s.out, "%s %s: %s\n", map[string]string{"error": "×", "warning": "‼"}[result], category, text)
		}
	}
}

// debugTransport sends requests to the debug server of a replica.
type debugTransport struct {
	s       *scenario
	replica string
}

func (d debugTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response := httptest.NewRecorder()
	d.s.mustRun(d.replica).Pages.ServeHTTP(response, r)
	return response.Result(), nil
}

// fetch returns what the debug server of a replica answers.
func (s *scenario) fetch(ctx context.Context, replica, path string) []byte {
	response := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)
	s.mustRun(replica).Pages.ServeHTTP(response, request)
	return response.Body.Bytes()
}

var (
	verdict     = regexp.MustCompile(`<h1>(.*)</h1>`)
	problemLine = regexp.MustCompile(`<li class="(\w+)"><p><strong>(.*)</strong>`)
)

// page prints what the status page of the first replica shows: the verdict, and what is wrong.
func (s *scenario) page() {
	page := html.UnescapeString(string(s.fetch(s.t.Context(), s.first().name, "/")))
	fmt.Fprintf(&s.out, "page: %s\n", verdict.FindStringSubmatch(page)[1])
	for _, p := range problemLine.FindAllStringSubmatch(page, -1) {
		fmt.Fprintf(&s.out, "page %s %s\n", map[string]string{"bad": "×", "warn": "‼"}[p[1]], p[2])
	}
}

// noteUnlinked keeps when a cluster was unlinked.
func (s *scenario) noteUnlinked(cluster string) {
	if s.unlinked == nil {
		s.unlinked = map[string]time.Time{}
	}
	s.unlinked[cluster] = time.Now()
}

// troubleshoot prints the steps of the first replica's way to a cluster, without what differs from run to run.
func (s *scenario) troubleshoot(name string) {
	s.t.Helper()
	var all []cluster.Diagnosis
	if err := json.Unmarshal(s.fetch(s.t.Context(), s.first().name, "/debug/troubleshoot/"+name), &all); err != nil {
		s.t.Fatal(err)
	}
	for _, d := range all {
		var passed []string
		fmt.Fprintf(&s.out, "with %s\n", d.Source)
		for _, step := range d.Steps {
			if step.OK {
				passed = append(passed, step.Name)
			} else {
				fmt.Fprintf(&s.out, "× %s: %s: %s\n", step.Name, step.Reason, step.Text)
			}
		}
		if passed != nil {
			fmt.Fprintf(&s.out, "√ %s\n", strings.Join(passed, ", "))
		}
	}
}

// printChanges prints what has changed since the first replica was asked last about the same, second by second.
func (s *scenario) printChanges(about []string) {
	s.t.Helper()
	path := "/debug/changes"
	for _, name := range about {
		key := "cluster"
		if strings.Contains(name, "/") {
			key = "service"
		}
		path += "?" + key + "=" + name
	}

	var page debug.ChangesPage
	if err := json.Unmarshal(s.fetch(s.t.Context(), s.first().name, path), &page); err != nil {
		s.t.Fatal(err)
	}
	if s.shownChanges == nil {
		s.shownChanges = map[string]time.Time{}
	}
	line := func(c changes.Change) string {
		return fmt.Sprintf("changed %s %s: %s\n", strings.TrimSpace(c.Cluster+" "+c.Service), c.What, c.Text)
	}
	slices.SortFunc(page.Changes, func(a, b changes.Change) int { // within a second their order is not given
		if second := a.At.Truncate(time.Second).Compare(b.At.Truncate(time.Second)); second != 0 {
			return second
		}
		return strings.Compare(line(a), line(b))
	})
	for _, c := range page.Changes {
		if c.At.After(s.shownChanges[path]) {
			s.out.WriteString(line(c))
		}
	}
	s.shownChanges[path] = time.Now()
}

// printCluster prints fields of a cluster as /debug/clusters has it.
func (s *scenario) printCluster(name string, paths []string) {
	s.t.Helper()
	var page struct {
		Clusters []map[string]any `json:"clusters"`
	}
	if err := json.Unmarshal(s.fetch(s.t.Context(), s.first().name, "/debug/clusters"), &page); err != nil {
		s.t.Fatal(err)
	}
	for _, c := range page.Clusters {
		if c["name"] == name {
			s.printFields(c, paths)
		}
	}
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (s *scenario) open(name string) lookup {
	st := s.streams[name]
	if st == nil {
		s.t.Fatalf("no stream %s", name)
	}
	return st
}

// text returns a file of the archive or, as FIXTURE/FILE, of a fixture.
func (s *scenario) text(name string) string {
	archive := s.archive
	if fixture, file, ok := strings.Cut(name, "/"); ok {
		var err error
		if archive, err = txtar.ParseFile("testdata/fixtures/" + fixture + ".txtar"); err != nil {
			s.t.Fatal(err)
		}
		name = file
	}
	for _, f := range archive.Files {
		if f.Name == name {
			return s.expand(string(f.Data))
		}
	}
	s.t.Fatal(fmt.Errorf("file %s: %w", name, fs.ErrNotExist))
	return ""
}

var (
	repeated   = regexp.MustCompile(`(?m)^\$\{(\d+)-(\d+)\} (.*\n)`)
	kubeconfig = regexp.MustCompile(`\$\{kubeconfig:([^}]+)\}`)
	ages       = regexp.MustCompile(`( )[0-9hms]+( ago)`)
	sums       = regexp.MustCompile(`(sha256 )[0-9a-f]{12}`)
	uid        = regexp.MustCompile(`\$\{uid:([^/}]+)/([^/}]+)/([^/}]*)/([^/}]+)\}`)
)

// expand replaces placeholders: ${kubeconfig:PATH}, ${uid:CLUSTER/KIND/NAMESPACE/NAME}, and in front of a
// line ${FIRST-LAST}, which repeats it with each number as ${n}.
func (s *scenario) expand(text string) string {
	s.t.Helper()
	text = repeated.ReplaceAllStringFunc(text, func(line string) (lines string) {
		m := repeated.FindStringSubmatch(line)
		first, _ := strconv.Atoi(m[1]) // it has digits only
		last, _ := strconv.Atoi(m[2])
		for n := first; n <= last; n++ {
			lines += strings.ReplaceAll(m[3], "${n}", strconv.Itoa(n))
		}
		return lines
	})
	text = uid.ReplaceAllStringFunc(text, func(p string) string {
		m := uid.FindStringSubmatch(p)
		o := s.network.Server(m[1]).Find(m[2], m[3], m[4])
		if o == nil {
			s.t.Fatalf("%s: no such object", p)
		}
		return string(o.GetUID())
	})
	return kubeconfig.ReplaceAllStringFunc(text, func(p string) string {
		path := kubeconfig.FindStringSubmatch(p)[1]
		return s.kubeconfig(path, s.token(clusterOfPath(path)))
	})
}

// objects returns the objects of a file.
func (s *scenario) objects(name string) (all []*unstructured.Unstructured) {
	s.t.Helper()
	for doc := range strings.SplitSeq("\n"+s.text(name), "\n---") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
			s.t.Fatalf("%s: %v", name, err)
		}
		if object != nil {
			all = append(all, &unstructured.Unstructured{Object: object})
		}
	}
	return all
}

func (s *scenario) link(name string, args []string) {
	with := map[string]string{"trust-domain": "cluster.local", "cluster-domain": "cluster.local", "path": name}
	for _, arg := range args {
		k, v, _ := strings.Cut(arg, "=")
		with[k] = v
	}
	s.network.Server(home).Apply(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": string(links.SecretType),
		"metadata": map[string]any{
			"name": "cluster-credentials-" + name, "namespace": ours,
			"labels": map[string]any{"multicluster.linkerd.io/cluster-name": name},
			"annotations": map[string]any{
				"multicluster.linkerd.io/trust-domain":   with["trust-domain"],
				"multicluster.linkerd.io/cluster-domain": with["cluster-domain"],
			},
		},
		"stringData": map[string]any{"kubeconfig": s.expand("${kubeconfig:" + with["path"] + "}")},
	}})
}

func (s *scenario) get(name, authority string, args []string) {
	request, via := s.request("get", authority, args)
	s.opens(name)
	s.streams[name] = proxy.Open(s.t.Context(), s.connect(via), request, s.observer(name, request))
}

// requests opens a stream and sends requests over what it holds. One that finds no endpoint waits for one for as
// long as the queue of linkerd2-proxy lets it.
func (s *scenario) requests(name, authority, count, interval string, args []string) {
	const patience = 3 * time.Second
	n, err := strconv.Atoi(count)
	if err != nil {
		s.t.Fatal(err)
	}
	s.get(name, authority, args)
	addresses := s.streams[name].(*proxy.Stream)
	var waiting []time.Time // since when each does
	lost := 0
	for sent := 0; sent < n || len(waiting) > 0; s.advance(interval) {
		if sent < n {
			waiting, sent = append(waiting, time.Now()), sent+1
		}
		if addresses.Len() > 0 {
			waiting = nil
		}
		if len(waiting) > 0 && time.Since(waiting[0]) >= patience {
			waiting, lost = waiting[1:], lost+1
		}
	}
	s.saw(name, fmt.Sprintf("lost %d of %d requests", lost, n))
}

func (s *scenario) profile(name, authority string, args []string) {
	request, via := s.request("profile", authority, args)
	s.opens(name)
	s.streams[name] = proxy.OpenProfile(s.t.Context(), s.connect(via), request, s.observer(name, request))
}

// request returns what a stream asks for, and the replica that it prefers.
func (s *scenario) request(verb, authority string, args []string) (request proxy.Request, via string) {
	request.Authority = authority
	for _, arg := range args {
		switch k, v, _ := strings.Cut(arg, "="); k {
		case "token":
			request.Token = v
		case "scheme":
			request.Scheme = v
		case "via":
			via, request.Reconnect = v, true
		default:
			s.t.Fatalf("%s: unknown argument %s", verb, arg)
		}
	}
	return request, via
}

func (s *scenario) opens(name string) {
	if s.streams[name] != nil {
		s.t.Fatalf("stream %s is open already", name)
	}
	s.opened = append(s.opened, name)
}

func (s *scenario) observer(name string, request proxy.Request) func(proxy.Event) {
	return func(e proxy.Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen[name] = append(s.seen[name], s.lines(name, e)...)
		if s.watch != nil && !inDepot(request.Authority) {
			s.watch.event(name, e, s.factsIn(serviceOf(request.Authority), e))
		}
	}
}

func (s *scenario) saw(name, line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[name] = append(s.seen[name], strings.TrimSpace(name+" "+line))
}

func (s *scenario) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range sortedKeys(s.seen) {
		for _, line := range s.seen[name] {
			fmt.Fprintln(&s.out, line)
		}
	}
	clear(s.seen)
}

// conditions prints the conditions of a Link, or those of some types.
func (s *scenario) conditions(name string, kinds []string) {
	s.t.Helper()
	o := s.linkObject(name)
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		c := c.(map[string]any)
		if kind, _ := c["type"].(string); len(kinds) == 0 || slices.Contains(kinds, kind) {
			fmt.Fprintf(&s.out, "%s=%s %s\n", kind, c["status"], c["reason"])
		}
	}
}

// message prints the message of a condition of a Link.
func (s *scenario) message(name, kind string) {
	s.t.Helper()
	conditions, _, _ := unstructured.NestedSlice(s.linkObject(name).Object, "status", "conditions")
	for _, c := range conditions {
		if c := c.(map[string]any); c["type"] == kind {
			fmt.Fprintln(&s.out, c["message"])
		}
	}
}

func (s *scenario) printMetrics(name string, labels []string) {
	families, err := s.first().Metrics.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		var text bytes.Buffer
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			s.t.Fatal(err)
		}
		for line := range strings.Lines(text.String()) {
			lacks := func(label string) bool { return !strings.Contains(line, label) }
			if !strings.HasPrefix(line, "#") && !slices.ContainsFunc(labels, lacks) {
				s.out.WriteString(line)
			}
		}
	}
}

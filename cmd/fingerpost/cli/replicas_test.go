package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/fingerpost/fingerpost/cluster"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
	"github.com/fingerpost/fingerpost/cmd/fingerpost/debug"
)

// apiServer is as much of an API server and of a kubelet as lists Pods and forwards ports: those of every Pod
// lead to target.
type apiServer struct {
	t      *testing.T
	target string
	broken string           // Pod to which no port can be forwarded
	hangs  http.HandlerFunc // what becomes of a port-forward instead, if not nil

	mu    sync.Mutex
	pods  []corev1.Pod
	asked []string
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.asked = append(a.asked, r.Method+" "+r.URL.Path+"?"+r.URL.Query().Get("labelSelector"))
	pods := slices.Clone(a.pods)
	a.mu.Unlock()
	switch {
	case a.broken != "" && strings.HasSuffix(r.URL.Path, "/"+a.broken+"/portforward"):
		http.Error(w, "its node is gone", http.StatusBadGateway)
	case a.hangs != nil && strings.HasSuffix(r.URL.Path, "/portforward"):
		a.hangs(w, r)
	case strings.HasSuffix(r.URL.Path, "/portforward") && r.Method == http.MethodPost:
		a.forward(w, r)
	case strings.HasSuffix(r.URL.Path, "/portforward"):
		http.Error(w, "no websockets here", http.StatusBadRequest) // an old API server
	case strings.HasSuffix(r.URL.Path, "/pods"):
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
		for _, pod := range pods {
			if key, value, _ := strings.Cut(r.URL.Query().Get("labelSelector"), "="); pod.Labels[key] == value {
				list.Items = append(list.Items, pod)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	default:
		http.NotFound(w, r)
	}
}

func (a *apiServer) forward(w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		a.t.Error(err)
		return
	}
	streams, done := make(chan httpstream.Stream, 2), make(chan struct{})
	defer close(done)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		select {
		case streams <- s:
		case <-done: // the connection has ended: without this its goroutine would stay
		}
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-conn.CloseChan():
			return
		case s := <-streams:
			if s.Headers().Get("streamType") != "data" {
				_ = s.Close() // of errors there are none
				continue
			}
			a.mu.Lock()
			a.asked = append(a.asked, "port "+s.Headers().Get("port"))
			a.mu.Unlock()
			wg.Go(func() {
				to, err := net.Dial("tcp", a.target)
				if err != nil {
					a.t.Error(err)
					return
				}
				defer to.Close()
				wg.Go(func() { _, _ = io.Copy(to, s); _ = to.(*net.TCPConn).CloseWrite() })
				_, _ = io.Copy(s, to)
				_ = s.Reset()
			})
		}
	}
}

// pod is one of ours: ready or not, with arguments that move its ports.
func pod(name, label string, ready bool, args ...string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "linkerd", Labels: map[string]string{}}}
	key, value, _ := strings.Cut(label, "=")
	p.Labels[key] = value
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	p.Spec.Containers = []corev1.Container{{Name: "proxy"}, {Name: "destination", Args: args}}
	return p
}

// command returns a command line of this package, as the binary has it.
func command(args ...string) *cobra.Command {
	root := cmdtest.Root(Commands("test"), args...)
	Prepare(root, "fingerpost")
	return root
}

// fingerpost runs a command of this package.
func fingerpost(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return cmdtest.Execute(t, command(args...))
}

// Without an address a port is forwarded to each ready Pod: to the one where its arguments have put the
// server.
func TestPortForward(t *testing.T) {
	debug := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/debug/clusters" && r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, `{"clusters":[{"name":"east","local":true,"state":"Live"}]}`)
	}))
	defer debug.Close()
	api := &apiServer{t: t, target: debug.Listener.Addr().String(), pods: []corev1.Pod{
		pod("destination-a", podSelectors[1], false, "destination"),
		pod("destination-b", podSelectors[1], true, "destination", "-debug-addr=:7777"),
		pod("destination-c", podSelectors[1], true, "destination"),
	}}
	server := httptest.NewServer(api)
	defer server.Close()
	kubeconfig := cmdtest.WriteKubeconfig(t, server.URL)
	out, err := fingerpost(t, "clusters", "--kubeconfig", kubeconfig)
	if err != nil || !strings.Contains(strings.Join(rows(out), "\n"), "east (local) Live 2/2") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = fingerpost(t, "clusters", "-o", "wide", "--kubeconfig", kubeconfig)
	if flat := strings.Join(rows(out), "\n"); err != nil ||
		!strings.Contains(flat, "east (local) destination-b Live") ||
		!strings.Contains(flat, "east (local) destination-c Live") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = fingerpost(t, "metrics", "--kubeconfig", kubeconfig)
	if err != nil || strings.Count(out, "# POD destination-") != 2 {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = fingerpost(t, "__complete", "clusters", "--kubeconfig", kubeconfig, "")
	if err != nil || !strings.HasPrefix(out, "east\n") {
		t.Errorf("completion: %v\n%s", err, out)
	}
	api.mu.Lock()
	asked := strings.Join(api.asked, "\n")
	api.mu.Unlock()
	for _, want := range []string{
		"GET /api/v1/pods?" + podSelectors[0], "POST /api/v1/namespaces/linkerd/pods/destination-b/portforward?",
		"port 7777",
		"POST /api/v1/namespaces/linkerd/pods/destination-c/portforward?", "port 9998", "port 9996",
	} {
		if !strings.Contains(asked, want) {
			t.Errorf("no request is %s:\n%s", want, asked)
		}
	}

	api.broken = "destination-b"
	out, err = fingerpost(t, "clusters", "-A", "-o", "wide", "--kubeconfig", kubeconfig)
	if err == nil || !strings.HasPrefix(err.Error(), "destination-b: forward a port to Pod linkerd/destination-b") ||
		strings.Contains(err.Error(), "destination-c") ||
		!strings.Contains(out, "destination-c  Live") ||
		strings.Contains(out, "destination-b") {
		t.Errorf("one Pod cannot be reached: %v\n%s", err, out)
	}
	out, err = fingerpost(t, "metrics", "--kubeconfig", kubeconfig)
	if err == nil || !strings.HasPrefix(err.Error(), "destination-b: forward") ||
		!strings.Contains(out, "# POD destination-c (2 of 2)") {
		t.Errorf("metrics of one Pod: %v\n%s", err, out)
	}

	out, err = fingerpost(t, "__complete", "clusters", "--kubeconfig", kubeconfig, "")
	if err != nil || !strings.HasPrefix(out, "east\n") {
		t.Errorf("completion by the second Pod: %v\n%s", err, out)
	}
	out, err = fingerpost(t, "__complete", "clusters", "--debug-addr", "127.0.0.1:1,"+api.target, "")
	if err != nil || !strings.HasPrefix(out, "east\n") {
		t.Errorf("completion by the second address: %v\n%s", err, out)
	}

	api.pods = api.pods[:1]
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no Pod is ready": {
			[]string{"--kubeconfig", kubeconfig},
			"1 Pod " + podSelectors[1] + " in any namespace is not ready",
		},
		"no Pod": {
			[]string{"--kubeconfig", kubeconfig, "-l", "a=b", "-n", "here"},
			"there is no Pod a=b in namespace here",
		},
		"no kubeconfig": {
			[]string{"--kubeconfig", "/nowhere"},
			"no --debug-addr is given, and which cluster?",
		},
		"no server":              {[]string{"--debug-addr", "127.0.0.1:1"}, "no response from 127.0.0.1:1"},
		"another form of output": {[]string{"-o", "xml"}, "it is table, json, yaml, wide or name"},
	} {
		if out, err := fingerpost(t, append([]string{"clusters"}, c.args...)...); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// A Pod that cannot be reached is tried again while a page is watched: after a rollout there are others.
func TestWatchAfterRollout(t *testing.T) {
	debug := cmdtest.DebugServer(
		t,
		map[string]any{
			"/debug/clusters": debug.ClustersPage{
				Clusters: []debug.ClusterEntry{{Status: cluster.Status{Name: "east", State: "Live"}}},
			},
		},
	)
	api := &apiServer{
		t:      t,
		target: debug,
		pods:   []corev1.Pod{pod("old", podSelectors[1], true), pod("stays", podSelectors[1], true)},
		broken: "old",
	}
	server := httptest.NewServer(api)
	defer server.Close()
	w := watch(t, "clusters", "--watch", "-o", "wide", "--kubeconfig", cmdtest.WriteKubeconfig(t, server.URL))
	w.until("east stays Live", "forward a port to Pod linkerd/old")
	api.mu.Lock()
	api.pods[0] = pod("new", podSelectors[1], true)
	api.mu.Unlock()
	w.until("east new Live")
	api.mu.Lock()
	api.pods = append(api.pods, pod("third", podSelectors[1], true))
	api.mu.Unlock()
	w.until("east third Live") // although all others answer
}

// A Pod that does not respond is named, not our end of what is forwarded to it.
func TestPodThatFails(t *testing.T) {
	debug := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/debug/clusters" {
			panic(http.ErrAbortHandler)
		}
	}))
	defer debug.Close()
	server := httptest.NewServer(
		&apiServer{
			t:      t,
			target: debug.Listener.Addr().String(),
			pods:   []corev1.Pod{pod("a", podSelectors[1], true)},
		},
	)
	defer server.Close()
	_, err := fingerpost(t, "clusters", "--kubeconfig", cmdtest.WriteKubeconfig(t, server.URL))
	if err == nil || !strings.HasPrefix(err.Error(), "no response from Pod linkerd/a, port 9998: ") ||
		strings.Contains(err.Error(), "127.0.0.1") {
		t.Error(err)
	}
}

// A port-forward that hangs ends with its context.
func TestPortForwardThatHangs(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	released := make(chan struct{})
	server := httptest.NewServer(
		&apiServer{
			t:    t,
			pods: []corev1.Pod{pod("a", podSelectors[1], true)},
			hangs: func(http.ResponseWriter, *http.Request) {
				cancel()
				<-released
			},
		},
	)
	defer server.Close()
	cmd := command("clusters", "--kubeconfig", cmdtest.WriteKubeconfig(t, server.URL))
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	timer := time.NewTimer(10 * time.Second)
	defer timer.Stop()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		close(released)
	case <-timer.C:
		close(released)
		t.Errorf("it hangs: %v", <-ended)
	}
}

func TestPortOfAPod(t *testing.T) {
	for _, c := range []struct {
		args []string
		want uint16
		err  string
	}{
		{[]string{"serve"}, 9998, ""},
		{[]string{"serve", "-debug-addr=:1", "--debug-addr=127.0.0.1:2"}, 2, ""},
		{[]string{"serve", "-debug-addr", ":7777"}, 7777, ""},
		{[]string{"serve", "--debug-addr", "[::1]:7777", "-addr=:1"}, 7777, ""},
		{[]string{"serve", "debug-addr=:1", "-not-debug-addr=:2"}, 9998, ""},
		{
			[]string{"serve", "-debug-addr=:1", "-debug-addr="},
			0,
			"it has no debug server: its arguments have -debug-addr=",
		},
		{[]string{"serve", "-debug-addr="}, 0, "it has no debug server"},
		{[]string{"serve", "-debug-addr", ""}, 0, "it has no debug server"},
		{[]string{"serve", "-debug-addr=127.0.0.1"}, 0, "-debug-addr=127.0.0.1, which names no port"},
		{[]string{"serve", "-debug-addr=:0"}, 0, "names no port"},
		{[]string{"proxy", "-debug-addr="}, 9998, ""},
	} {
		p := pod("a", podSelectors[0], true, c.args...)
		if got, err := debugPort.numberIn(&p); got != c.want || (err != nil) != (c.err != "") ||
			err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %d %v", c.args, got, err)
		}
	}
	server := httptest.NewServer(
		&apiServer{t: t, pods: []corev1.Pod{pod("a", podSelectors[1], true, "serve", "-debug-addr=")}},
	)
	defer server.Close()
	if _, err := fingerpost(t, "clusters", "--kubeconfig", cmdtest.WriteKubeconfig(t, server.URL)); err == nil ||
		!strings.Contains(err.Error(), "Pod linkerd/a: it has no debug server") {
		t.Error(err)
	}
}

// Groups come as 'linkerd check' hands them on, too.
func TestGroups(t *testing.T) {
	for given, want := range map[string][]string{
		"": {""}, "a": {"a"}, "a,b": {"a,b"}, "[]": nil, "[a]": {"a"},
		"[a,b]": {"a", "b"}, `["a,b",c]`: {"a,b", "c"}, "[a": {"[a"},
	} {
		if got := parseGroups([]string{given}); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", given, got, want)
		}
	}
	if got := parseGroups([]string{"a", "[]", "[b]"}); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%q", got)
	}
}

// A watched page is shown again when it has changed, although another replica does not respond.
func TestWatch(t *testing.T) {
	var mu sync.Mutex
	state := "Live"
	debug := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(w, `{"clusters":[{"name":"east","state":%q}]}`, state)
	}))
	defer debug.Close()
	w := watch(t, "clusters", "--watch", "--debug-addr", "127.0.0.1:1,"+debug.Listener.Addr().String())
	w.until("Live", "fingerpost: 127.0.0.1:1: no response")
	mu.Lock()
	state = "Stale"
	mu.Unlock()
	w.until("Stale")
}

// A watched is a command that goes on, and what it has printed.
type watched struct {
	t      *testing.T
	reader *io.PipeReader
	seen   strings.Builder
}

// watch runs the command line until the end of the test.
func watch(t *testing.T, args ...string) *watched {
	t.Helper()
	reader, writer := io.Pipe()
	cmd := command(args...)
	cmd.SetOut(writer)
	cmd.SetErr(writer)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = writer.CloseWithError(cmd.ExecuteContext(ctx))
	}()
	timer := time.AfterFunc(20*time.Second, func() { _ = reader.CloseWithError(os.ErrDeadlineExceeded) })
	t.Cleanup(func() {
		timer.Stop()
		cancel()
		_ = reader.Close()
		<-ended
	})
	return &watched{t: t, reader: reader}
}

// until waits until all of this was printed, with any blanks.
func (w *watched) until(all ...string) {
	w.t.Helper()
	buffer := make([]byte, 1024)
	for {
		flat := strings.Join(strings.Fields(w.seen.String()), " ")
		if !slices.ContainsFunc(all, func(s string) bool { return !strings.Contains(flat, s) }) {
			return
		}
		n, err := w.reader.Read(buffer)
		if err != nil {
			w.t.Fatalf("%v\n%s", err, w.seen.String())
		}
		w.seen.Write(buffer[:n])
	}
}

// client-go logs why a port leads nowhere, and not that a command has closed it.
func TestClosedStreamsAreNotLogged(t *testing.T) {
	var logged []string
	handlers := withoutClosedStreams([]utilruntime.ErrorHandler{
		func(_ context.Context, err error, msg string, _ ...any) {
			logged = append(logged, fmt.Sprint(msg, err))
		},
	})
	for _, text := range []string{"refused", "error copying from remote stream to local connection: EOF"} {
		handlers[0](t.Context(), errors.New(text), "")
	}
	handlers[0](t.Context(), nil, "only a message")
	if want := []string{"refused", "only a message<nil>"}; !slices.Equal(logged, want) {
		t.Errorf("logged is %q, want %q", logged, want)
	}
}

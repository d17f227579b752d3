package cli

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/fingerpost/fingerpost/internal/words"
)

const (
	dialTimeout    = 3 * time.Second
	forwardTimeout = 30 * time.Second
)

// kubeFlags name the cluster that a command reads, as they do for kubectl. They are four flags on client-go's
// clientcmd: the ConfigFlags of k8s.io/cli-runtime would add 22 modules to the binary for them.
type kubeFlags struct {
	version   string // of the binary
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

func (k *kubeFlags) addKubeFlags(fs *pflag.FlagSet) {
	k.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	fs.StringVar(&k.rules.ExplicitPath, "kubeconfig", "",
		"kubeconfig of the cluster (default $KUBECONFIG, or ~/.kube/config)")
	fs.StringVar(&k.overrides.CurrentContext, "context", "",
		"context of the kubeconfig; empty for the current one")
	fs.StringVar(&k.overrides.AuthInfo.Impersonate, "as", "", "user to impersonate")
	fs.StringArrayVar(&k.overrides.AuthInfo.ImpersonateGroups, "as-group", nil,
		"group to impersonate; may be repeated")
}

// RESTConfig returns the access to the API server. It does not limit the rate of requests.
func (k *kubeFlags) RESTConfig() (*rest.Config, error) {
	groups := &k.overrides.AuthInfo.ImpersonateGroups
	*groups = parseGroups(*groups)
	config, err := k.clientConfig().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("which cluster? name a --kubeconfig or a --context: %w", err)
	}
	config.UserAgent = "fingerpost/" + k.version
	config.QPS = -1
	return config, nil
}

func (k *kubeFlags) clientConfig() clientcmd.ClientConfig {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(k.rules, &k.overrides)
}

// parseGroups flattens groups that are lists in brackets: 'linkerd check' passes its own flag as such a list,
// [] for none.
func parseGroups(groups []string) (all []string) {
	for _, group := range groups {
		list, opened := strings.CutPrefix(group, "[")
		list, closed := strings.CutSuffix(list, "]")
		if !opened || !closed {
			all = append(all, group)
			continue
		}
		names, _ := csv.NewReader(strings.NewReader(list)).Read() // an invalid list names no group
		all = append(all, slices.DeleteFunc(names, func(name string) bool { return name == "" })...)
	}
	return all
}

// A serverPort is a port of a replica.
type serverPort struct {
	flag    string // that moves it
	number  uint16 // without the flag
	purpose string
}

var (
	grpcPort  = serverPort{"addr", 8086, "gRPC server"}
	adminPort = serverPort{"metrics-addr", 9996, "admin server"}
	debugPort = serverPort{"debug-addr", 9998, "debug server"}
)

// podSelectors find the Pods of Fingerpost; the first selector with Pods counts. They are those of our chart,
// and those of Linkerd's destination, in which our image may replace a container.
var podSelectors = []string{
	"app.kubernetes.io/name=fingerpost,app.kubernetes.io/component=destination",
	"linkerd.io/control-plane-component=destination",
}

// ReplicaFlags name the replicas that a command reads: by addresses, or else as ready Pods, to which it
// forwards a port.
type ReplicaFlags struct {
	kubeFlags
	port      serverPort
	addrs     []string
	Namespace string
	selector  string

	serviceNamespace string        // of a Service that is named without one
	patience         time.Duration // with a page of a replica; 0 for pageTimeout
	serverAddrs      []string      // of gRPC servers, for a command that reads debug servers
}

// NewReplicaFlags returns the flags of a command that reads the debug servers of replicas.
func NewReplicaFlags(version string) ReplicaFlags { return newReplicaFlags(version, debugPort) }

func newReplicaFlags(version string, p serverPort) ReplicaFlags {
	return ReplicaFlags{kubeFlags: kubeFlags{version: version}, port: p}
}

// InContext returns the same flags for the cluster of another context.
func (r *ReplicaFlags) InContext(name string) *ReplicaFlags {
	other := *r
	other.overrides.CurrentContext = name
	return &other
}

// AddFlags adds the flags to a command.
func (r *ReplicaFlags) AddFlags(cmd *cobra.Command) {
	groupFlags(cmd.Flags(), func(fs *pflag.FlagSet) {
		fs.StringVarP(&r.Namespace, "namespace", "n", "", "namespace of Fingerpost's Pods; empty for all")
		r.addReplicaFlags(fs)
	})
}

// addReplicaFlags adds all but the namespace.
func (r *ReplicaFlags) addReplicaFlags(fs *pflag.FlagSet) {
	fs.BoolFuncP("all-namespaces", "A", "find Pods in all namespaces, the default", func(string) error {
		r.Namespace = ""
		return nil
	})
	fs.StringSliceVar(&r.addrs, r.port.flag, nil, "address of the "+r.port.purpose+
		", or several addresses; empty to forward ports to ready Pods of Fingerpost, through the API server")
	fs.StringVarP(&r.selector, "selector", "l", "",
		"label selector of Fingerpost's Pods, instead of those of its chart and of Linkerd's destination")
	r.addKubeFlags(fs)
}

// Direct reports whether the addresses of replicas are given, so that they are found without an API server.
func (r *ReplicaFlags) Direct() bool { return len(r.addrs) > 0 }

// givenReplicas returns the replicas whose addresses are given.
func (r *ReplicaFlags) givenReplicas() (all []Replica, err error) {
	for _, text := range r.addrs {
		addr, err := r.port.parseAddress(text)
		if err != nil {
			return nil, WithExitCode(ExitUsage, fmt.Errorf("--%s %q: %w", r.port.flag, text, err))
		}
		replica := replicaAt(addr)
		replica.Patience = r.patience
		all = append(all, replica)
	}
	return all, nil
}

func replicaAt(addr string) Replica { return Replica{Name: addr, Addr: addr, target: addr} }

// parseAddress returns host:port of an address, which may be a URL without a path or have no port.
func (p serverPort) parseAddress(given string) (string, error) {
	if strings.HasPrefix(given, "https://") {
		return "", errors.New("replicas serve no https: give host:port")
	}
	addr := strings.TrimSuffix(strings.TrimPrefix(given, "http://"), "/")
	host, number, err := net.SplitHostPort(addr)
	if err != nil { // there is no port
		host, number = strings.Trim(addr, "[]"), strconv.Itoa(int(p.number))
	}
	if _, err := strconv.ParseUint(number, 10, 16); err != nil || strings.ContainsAny(host, "/[] ") {
		return "", fmt.Errorf("it is not host:port, such as 127.0.0.1:%d", p.number)
	}
	return net.JoinHostPort(host, number), nil
}

// A Replica is one server that a command can read, until Close.
type Replica struct {
	Name      string // of the Pod, or the address that was given
	Addr      string
	Err       error             // why there is no connection to it
	Transport http.RoundTripper // of requests to it; nil for TCP
	Patience  time.Duration     // with a page; 0 for pageTimeout

	target string      // what Addr leads to, for people
	end    func()      // ends the forwarded port; nil if there is none
	pod    *corev1.Pod // nil if the address was given
	pods   readyPods   // among which it was found
}

// Close closes the way to the replica.
func (r *Replica) Close() {
	if r.end != nil {
		r.end()
		r.end = nil
	}
}

// CloseAll closes the ways to replicas.
func CloseAll(replicas []Replica) {
	for i := range replicas {
		replicas[i].Close()
	}
}

// openFirst returns the first replica that accepts a connection.
func (r *ReplicaFlags) openFirst(ctx context.Context) (Replica, error) {
	given, err := r.givenReplicas()
	if err != nil {
		return Replica{}, err
	}

	var errs []error
	for _, replica := range given {
		if len(given) > 1 { // try the next one if this one does not listen
			dialer := net.Dialer{Timeout: dialTimeout}
			conn, err := dialer.DialContext(ctx, "tcp", replica.Addr)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			conn.Close()
		}
		return replica, nil
	}

	if len(given) > 0 {
		return Replica{}, errors.Join(errs...)
	}

	pods, err := r.findPods(ctx)
	if err != nil {
		return Replica{}, err
	}

	for _, pod := range pods.ready {
		replica := r.forwardTo(ctx, pods, pod)
		if replica.Err == nil {
			return replica, nil
		}
		errs = append(errs, replica.Err)
	}
	return Replica{}, errors.Join(errs...)
}

// Open returns all replicas, at least one. One without a connection has an error, and the others can be read.
func (r *ReplicaFlags) Open(ctx context.Context) ([]Replica, error) {
	if r.Direct() {
		return r.givenReplicas()
	}

	pods, err := r.findPods(ctx)
	if err != nil {
		return nil, err
	}

	all := make([]Replica, len(pods.ready))
	var wg sync.WaitGroup
	for i, pod := range pods.ready {
		wg.Go(func() { all[i] = r.forwardTo(ctx, pods, pod) })
	}
	wg.Wait()
	return all, nil
}

// podsChanged reports whether other Pods are ready now than those that were opened.
func (r *ReplicaFlags) podsChanged(ctx context.Context, opened []Replica) bool {
	if r.Direct() {
		return false
	}
	pods, err := r.findPods(ctx)
	return err == nil &&
		!slices.EqualFunc(pods.ready, opened, func(pod *corev1.Pod, r Replica) bool { return pod.Name == r.Name })
}

// readyPods are the Pods of Fingerpost in a cluster, sorted by name.
type readyPods struct {
	config *rest.Config
	client kubernetes.Interface
	ready  []*corev1.Pod // at least one
}

func (r *ReplicaFlags) findPods(ctx context.Context) (pods readyPods, err error) {
	if pods.config, err = r.RESTConfig(); err != nil {
		return pods, fmt.Errorf("no --%s is given, and %w", r.port.flag, err)
	}
	if pods.client, err = kubernetes.NewForConfig(pods.config); err != nil {
		return pods, err
	}
	pods.ready, err = r.listReadyPods(ctx, pods.client)
	return pods, err
}

func (r *ReplicaFlags) listReadyPods(ctx context.Context, client kubernetes.Interface) ([]*corev1.Pod, error) {
	selectors := podSelectors
	if r.selector != "" {
		selectors = []string{r.selector}
	}

	for _, selector := range selectors {
		list, err := client.CoreV1().Pods(r.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return nil, fmt.Errorf("list Pods in %s: %w", r.scope(), err)
		}
		var ready []*corev1.Pod
		for i := range list.Items {
			if isReady(&list.Items[i]) {
				ready = append(ready, &list.Items[i])
			}
		}

		slices.SortFunc(ready, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
		switch {
		case len(ready) > 0:
			return ready, nil
		case len(list.Items) > 0:
			return nil, fmt.Errorf("%s %s in %s %s not ready",
				words.Count(len(list.Items), "Pod"), selector, r.scope(), words.Are(len(list.Items)))
		}
	}

	return nil, fmt.Errorf("there is no Pod %s in %s: set -n and -l to where Fingerpost runs, or name a --%s",
		strings.Join(selectors, " or "), r.scope(), r.port.flag)
}

// scope names the namespaces in which Pods are listed.
func (r *ReplicaFlags) scope() string {
	if r.Namespace == "" {
		return "any namespace"
	}
	return "namespace " + r.Namespace
}

func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil &&
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

// forwardTo forwards a port to a Pod.
func (r *ReplicaFlags) forwardTo(ctx context.Context, pods readyPods, pod *corev1.Pod) Replica {
	replica := Replica{Name: pod.Name, Patience: r.patience, pod: pod, pods: pods}
	number, err := r.port.numberIn(pod)
	if err == nil {
		replica.target = fmt.Sprintf("Pod %s/%s, port %d", pod.Namespace, pod.Name, number)
		replica.Addr, replica.end, err = pods.forwardPort(ctx, pod, number)
	}
	if err != nil {
		replica.Err = fmt.Errorf("forward a port to Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return replica
}

// numberIn returns the number of the port in a Pod: of the flags in its arguments that move it, the last one
// counts.
func (p serverPort) numberIn(pod *corev1.Pod) (uint16, error) {
	for i := range pod.Spec.Containers {
		args := argumentsOf(&pod.Spec.Containers[i])
		if !serves(args) {
			continue
		}

		addr, set := flagIn(args, p.flag)
		if !set {
			continue
		}
		if addr == "" {
			return 0, fmt.Errorf("it has no %s: its arguments have -%s=", p.purpose, p.flag)
		}

		_, digits, _ := net.SplitHostPort(addr) // an address without a port has no digits
		number, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || number == 0 {
			return 0, fmt.Errorf("its arguments have -%s=%s, which names no port", p.flag, addr)
		}
		return uint16(number), nil
	}
	return p.number, nil
}

// forwardPort opens a port on loopback that leads to a Pod's, until end is called.
//
// ForwardPorts closes ready once it listens, and returns once stop is closed or the API server ends the connection. Its
// goroutine ends before end returns. Only if it still dials at the forwardTimeout it goes on, until that has failed.
func (p readyPods) forwardPort(
	ctx context.Context, pod *corev1.Pod, number uint16,
) (addr string, end func(), err error) {
	stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	forwarder, err := p.newForwarder(pod, number, stop, ready)
	if err != nil {
		return "", nil, err
	}

	var forwardErr error // to be read once ended is closed
	go func() {
		defer close(ended)
		forwardErr = forwarder.ForwardPorts()
	}()
	noResponse := fmt.Errorf("no response within %s", forwardTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, forwardTimeout, noResponse)
	defer cancel()

	select {
	case <-ready:
	case <-ended:
		return "", nil, cmp.Or(forwardErr, errors.New("it ended at once"))
	case <-ctx.Done():
		close(stop) // ForwardPorts may still dial, which takes no context: it returns once that succeeds or fails
		return "", nil, context.Cause(ctx)
	}

	end = func() {
		close(stop)
		<-ended
	}

	forwarded, err := forwarder.GetPorts()
	if err != nil {
		end()
		return "", nil, err
	}
	return fmt.Sprintf("127.0.0.1:%d", forwarded[0].Local), end, nil
}

var leaveOutClosedStreams = sync.OnceFunc(func() {
	utilruntime.ErrorHandlers = withoutClosedStreams(utilruntime.ErrorHandlers)
})

// withoutClosedStreams returns handlers that leave out what a command is not interested in: that client-go had bytes
// left to copy when the command had its answer and closed the port. Why a port leads nowhere, client-go reports
// otherwise.
func withoutClosedStreams(handlers []utilruntime.ErrorHandler) []utilruntime.ErrorHandler {
	filtered := make([]utilruntime.ErrorHandler, 0, len(handlers))
	for _, handle := range handlers {
		filtered = append(filtered, func(ctx context.Context, err error, msg string, keysAndValues ...any) {
			if err == nil || !strings.HasPrefix(err.Error(), "error copying from ") { // no error of its own
				handle(ctx, err, msg, keysAndValues...)
			}
		})
	}
	return filtered
}

// newForwarder forwards by a WebSocket, or by SPDY where the API server is too old for that or a proxy in
// between does not let it pass.
func (p readyPods) newForwarder(
	pod *corev1.Pod, number uint16, stop <-chan struct{}, ready chan struct{},
) (*portforward.PortForwarder, error) {
	request := p.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name)
	url := request.SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(p.config)
	if err != nil {
		return nil, err
	}

	websocket, err := portforward.NewSPDYOverWebsocketDialer(url, p.config)
	if err != nil {
		return nil, err
	}
	fallback := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	dialer := portforward.NewFallbackDialer(websocket, fallback, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	ports := []string{fmt.Sprintf("0:%d", number)}
	return portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, ports, stop, ready, io.Discard, io.Discard)
}

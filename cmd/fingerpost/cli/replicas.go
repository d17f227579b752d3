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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

const (
	dialTimeout    = 3 * time.Second
	forwardTimeout = 30 * time.Second
)

// kubeFlags say which cluster to ask, as they do for kubectl.
type kubeFlags struct {
	version   string // of the binary
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

func newKubeFlags(version string) kubeFlags { return kubeFlags{version: version} }

func (k *kubeFlags) AddFlags(fs *pflag.FlagSet) {
	k.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	fs.StringVar(&k.rules.ExplicitPath, "kubeconfig", "", "kubeconfig of the cluster (default $KUBECONFIG, or ~/.kube/config)")
	fs.StringVar(&k.overrides.CurrentContext, "context", "", "context of the kubeconfig; empty for the current one")
	fs.StringVar(&k.overrides.AuthInfo.Impersonate, "as", "", "user to act as")
	fs.StringArrayVar(&k.overrides.AuthInfo.ImpersonateGroups, "as-group", nil, "group to act as; may be repeated")
}

func (k *kubeFlags) loader() clientcmd.ClientConfig {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(k.rules, &k.overrides)
}

// config returns how to reach the API server.
func (k *kubeFlags) RESTConfig() (*rest.Config, error) {
	groups := &k.overrides.AuthInfo.ImpersonateGroups
	*groups = parseGroups(*groups)
	config, err := k.loader().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("which cluster? name a --kubeconfig or a --context: %w", err)
	}
	config.UserAgent = "fingerpost/" + k.version
	config.QPS = -1
	return config, nil
}

// unbracketed returns groups of which some may be lists in brackets, as 'linkerd check' hands them on: [] where there are none.
func parseGroups(groups []string) (all []string) {
	for _, group := range groups {
		list, opened := strings.CutPrefix(group, "[")
		list, closed := strings.CutSuffix(list, "]")
		if !opened || !closed {
			all = append(all, group)
			continue
		}
		names, _ := csv.NewReader(strings.NewReader(list)).Read() // what is no list names no group
		all = append(all, slices.DeleteFunc(names, func(name string) bool { return name == "" })...)
	}
	return all
}

// A port is one of a server's: the flag that moves it, and where it is by default.
type serverPort struct {
	flag    string
	number  uint16
	purpose string
}

var (
	grpcPort  = serverPort{"addr", 8086, "gRPC server"}
	adminPort = serverPort{"metrics-addr", 9996, "admin server"}
	DebugPort = serverPort{"debug-addr", 9998, "debug server"}
)

// reach says how a command gets to the replicas that it asks: at addresses, or else through the API server, by a port-forward.
type ReplicaFlags struct {
	kubeFlags
	port      serverPort
	addrs     []string
	Namespace string
	selector  string
}

func NewReplicaFlags(version string, p serverPort) ReplicaFlags {
	return ReplicaFlags{kubeFlags: newKubeFlags(version), port: p}
}

func (r *ReplicaFlags) AddFlags(cmd *cobra.Command) {
	p := r.port
	fs := cmd.Flags()
	fs.StringSliceVar(&r.addrs, p.flag, nil, "address of the "+p.purpose+", or those of several; empty to forward ports to ready Pods of Fingerpost, through the API server")
	fs.StringVarP(&r.Namespace, "namespace", "n", "", "namespace of Fingerpost's Pods; empty for all")
	fs.StringVarP(&r.selector, "selector", "l", "", "label selector of Fingerpost's Pods (default "+strings.Join(selectors, ", or else ")+")")
	r.kubeFlags.AddFlags(fs)
}

// selectors find the Pods, the first one that does: those of our chart, and those of Linkerd's in which we replace a container.
var selectors = []string{"app.kubernetes.io/name=fingerpost,app.kubernetes.io/component=destination", "linkerd.io/control-plane-component=destination"}

// A replica is one server that can be asked.
type Replica struct {
	Name string // of the Pod, or the address that was given
	Addr string

	target string // what Addr leads to, for people
	Err    error  // why there is no way to it
}

// one returns a replica to which there is a way, and how to let go of it.
func (r *ReplicaFlags) openFirst(ctx context.Context) (Replica, func(), error) {
	var errs []error
	for _, addr := range r.addrs {
		if len(r.addrs) > 1 { // the next one may be there
			dialer := net.Dialer{Timeout: dialTimeout}
			conn, err := dialer.DialContext(ctx, "tcp", addr)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			conn.Close()
		}
		return Replica{Name: addr, Addr: addr, target: addr}, func() {}, nil
	}
	if len(errs) > 0 {
		return Replica{}, nil, errors.Join(errs...)
	}
	config, client, pods, err := r.findPods(ctx)
	if err != nil {
		return Replica{}, nil, err
	}
	for _, pod := range pods {
		to, end := r.forwardTo(ctx, config, client, pod)
		if to.Err == nil {
			return to, end, nil
		}
		errs = append(errs, to.Err)
	}
	return Replica{}, nil, errors.Join(errs...)
}

// open returns all replicas, at least one, and how to let go of them. One that cannot be reached does not keep the others from being
// asked.
func (r *ReplicaFlags) Open(ctx context.Context) (all []Replica, done func(), err error) {
	if len(r.addrs) > 0 {
		for _, addr := range r.addrs {
			all = append(all, Replica{Name: addr, Addr: addr, target: addr})
		}
		return all, func() {}, nil
	}
	config, client, pods, err := r.findPods(ctx)
	if err != nil {
		return nil, nil, err
	}
	all = make([]Replica, len(pods))
	ends := make([]func(), len(pods))
	var wg sync.WaitGroup
	for i, pod := range pods {
		wg.Go(func() { all[i], ends[i] = r.forwardTo(ctx, config, client, pod) })
	}
	wg.Wait()
	return all, func() {
		for _, end := range ends {
			end()
		}
	}, nil
}

// others reports whether other Pods are ready than those that were opened.
func (r *ReplicaFlags) podsChanged(ctx context.Context, than []Replica) bool {
	if len(r.addrs) > 0 {
		return false
	}
	_, _, pods, err := r.findPods(ctx)
	return err == nil && !slices.EqualFunc(pods, than, func(pod *corev1.Pod, r Replica) bool { return pod.Name == r.Name })
}

// find returns the ready Pods, at least one, and the cluster in which they are.
func (r *ReplicaFlags) findPods(ctx context.Context) (*rest.Config, kubernetes.Interface, []*corev1.Pod, error) {
	config, err := r.RESTConfig()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("no --%s is given, and %w", r.port.flag, err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, nil, err
	}
	pods, err := r.listReadyPods(ctx, client)
	return config, client, pods, err
}

// to forwards a port to a Pod, and returns how to let go of it.
func (r *ReplicaFlags) forwardTo(ctx context.Context, config *rest.Config, client kubernetes.Interface, pod *corev1.Pod) (to Replica, end func()) {
	to = Replica{Name: pod.Name}
	number, err := r.port.numberIn(pod)
	if err == nil {
		to.target = fmt.Sprintf("Pod %s/%s, port %d", pod.Namespace, pod.Name, number)
		if to.Addr, end, err = forwardPort(ctx, config, client, pod, number); err == nil {
			return to, end
		}
	}
	to.Err = fmt.Errorf("forward a port to Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	return to, func() {}
}

// pods returns the ready Pods, at least one, sorted by name.
func (r *ReplicaFlags) listReadyPods(ctx context.Context, client kubernetes.Interface) ([]*corev1.Pod, error) {
	asked := selectors
	if r.selector != "" {
		asked = []string{r.selector}
	}
	for _, selector := range asked {
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
			return nil, fmt.Errorf("none of the %d Pods %s in %s is ready", len(list.Items), selector, r.scope())
		}
	}
	return nil, fmt.Errorf("there is no Pod %s in %s: say where Fingerpost runs with -n and -l, or name a --%s",
		strings.Join(asked, " or "), r.scope(), r.port.flag)
}

func (r *ReplicaFlags) scope() string {
	if r.Namespace == "" {
		return "any namespace"
	}
	return "namespace " + r.Namespace
}

func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// of returns where the port is in a Pod: its arguments may have moved it, the last one of them counts.
func (p serverPort) numberIn(pod *corev1.Pod) (uint16, error) {
	for _, container := range pod.Spec.Containers {
		args := append(slices.Clone(container.Command), container.Args...)
		if !slices.ContainsFunc(args, func(arg string) bool { return arg == "serve" || arg == "destination" }) {
			continue
		}
		addr, moved := "", false
		for i, arg := range args {
			name, value, whole := strings.Cut(arg, "=")
			if name != "-"+p.flag && name != "--"+p.flag {
				continue
			}
			if !whole && i+1 < len(args) {
				value = args[i+1]
			}
			addr, moved = value, true
		}
		if !moved {
			continue
		}
		_, digits, err := net.SplitHostPort(addr)
		if err == nil {
			if n, err := strconv.ParseUint(digits, 10, 16); err == nil && n > 0 {
				return uint16(n), nil
			}
		}
		if addr == "" {
			return 0, fmt.Errorf("it has no %s, as its arguments say (-%s=)", p.purpose, p.flag)
		}
		return 0, fmt.Errorf("its arguments say -%s=%s, which names no port", p.flag, addr)
	}
	return p.number, nil
}

// forward opens a port on loopback that leads to a Pod's, until end is called.
func forwardPort(ctx context.Context, config *rest.Config, client kubernetes.Interface, pod *corev1.Pod, number uint16) (addr string, end func(), err error) {
	url := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return "", nil, err
	}
	websocket, err := portforward.NewSPDYOverWebsocketDialer(url, config)
	if err != nil {
		return "", nil, err
	}
	dialer := portforward.NewFallbackDialer(websocket, spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url),
		func(err error) bool { return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err) })
	stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", number)}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return "", nil, err
	}
	var failed error // to be read once ended is closed
	go func() {
		defer close(ended)
		failed = forwarder.ForwardPorts()
	}()
	timer := time.NewTimer(forwardTimeout)
	defer timer.Stop()
	select {
	case <-ready:
	case <-ended:
		return "", nil, cmp.Or(failed, errors.New("it ended at once"))
	case <-timer.C:
		err = fmt.Errorf("no answer within %s", forwardTimeout)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		close(stop) // and nobody waits: what dials cannot be told to stop, and ends when it is answered or refused
		return "", nil, err
	}
	end = func() {
		close(stop)
		<-ended
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		end()
		return "", nil, err
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0].Local), end, nil
}

package main

import (
	"cmp"
	"context"
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

// kubeFlags say which cluster to ask, as they do for kubectl.
type kubeFlags struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

func (k *kubeFlags) flags(fs *pflag.FlagSet) {
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
func (k *kubeFlags) config() (*rest.Config, error) {
	if k.overrides.AuthInfo.Impersonate == "" {
		k.overrides.AuthInfo.ImpersonateGroups = nil // 'linkerd check' hands on --as-group=[] where there is none
	}
	config, err := k.loader().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("which cluster? name a --kubeconfig or a --context: %w", err)
	}
	config.UserAgent = "fingerpost/" + versionText()
	config.QPS = -1
	return config, nil
}

// A port is one of a server's: the flag that moves it, and where it is by default.
type port struct {
	flag    string
	number  uint16
	purpose string
}

var (
	grpcPort  = port{"addr", 8086, "gRPC server"}
	adminPort = port{"metrics-addr", 9996, "admin server"}
	debugPort = port{"debug-addr", 9998, "debug server"}
)

// reach says how a command gets to the replicas that it asks: at addresses, or else through the API server, by a port-forward.
type reach struct {
	kubeFlags
	port      port
	addrs     []string
	namespace string
	selector  string
}

func (r *reach) flags(cmd *cobra.Command, p port) {
	r.port = p
	fs := cmd.Flags()
	fs.StringSliceVar(&r.addrs, p.flag, nil, "address of the "+p.purpose+", or those of several; empty to forward ports to ready Pods of Fingerpost, through the API server")
	fs.StringVarP(&r.namespace, "namespace", "n", "", "namespace of Fingerpost's Pods; empty for all")
	fs.StringVarP(&r.selector, "selector", "l", "", "label selector of Fingerpost's Pods (default "+strings.Join(selectors, ", or else ")+")")
	r.kubeFlags.flags(fs)
}

// selectors find the Pods, the first one that does: those of our chart, and those of Linkerd's in which we replace a container.
var selectors = []string{"app.kubernetes.io/name=fingerpost,app.kubernetes.io/component=destination", "linkerd.io/control-plane-component=destination"}

// A replica is one server that can be asked.
type replica struct {
	Name string // of the Pod, or the address that was given
	Addr string
	err  error // why there is no way to it
}

// one returns any replica, and how to let go of it.
func (r *reach) one(ctx context.Context) (replica, func(), error) {
	all, done, err := r.open(ctx, 1)
	if err != nil {
		return replica{}, nil, err
	}
	return all[0], done, all[0].err
}

// open returns up to limit replicas, 0 for all, at least one, and how to let go of them. One that cannot be reached does not keep the
// others from being asked.
func (r *reach) open(ctx context.Context, limit int) (all []replica, done func(), err error) {
	if len(r.addrs) > 0 {
		for _, addr := range r.addrs {
			all = append(all, replica{Name: addr, Addr: addr})
		}
		if limit > 0 {
			all = all[:min(limit, len(all))]
		}
		return all, func() {}, nil
	}
	config, err := r.config()
	if err != nil {
		return nil, nil, fmt.Errorf("no --%s is given, and %w", r.port.flag, err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	pods, err := r.pods(ctx, client)
	if err != nil {
		return nil, nil, err
	}
	if limit > 0 {
		pods = pods[:min(limit, len(pods))]
	}
	all = make([]replica, len(pods))
	ends := make([]func(), len(pods))
	var wg sync.WaitGroup
	for i, pod := range pods {
		wg.Go(func() {
			addr, end, err := forward(ctx, config, client, pod, r.port.of(pod))
			if err != nil {
				err, end = fmt.Errorf("forward a port to Pod %s/%s: %w", pod.Namespace, pod.Name, err), func() {}
			}
			all[i], ends[i] = replica{pod.Name, addr, err}, end
		})
	}
	wg.Wait()
	return all, func() {
		for _, end := range ends {
			end()
		}
	}, nil
}

// pods returns the ready Pods, at least one, sorted by name.
func (r *reach) pods(ctx context.Context, client kubernetes.Interface) ([]*corev1.Pod, error) {
	asked := selectors
	if r.selector != "" {
		asked = []string{r.selector}
	}
	for _, selector := range asked {
		list, err := client.CoreV1().Pods(r.namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return nil, fmt.Errorf("list Pods in %s: %w", r.where(), err)
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
			return nil, fmt.Errorf("none of the %d Pods %s in %s is ready", len(list.Items), selector, r.where())
		}
	}
	return nil, fmt.Errorf("there is no Pod %s in %s: say where Fingerpost runs with -n and -l, or name a --%s",
		strings.Join(asked, " or "), r.where(), r.port.flag)
}

func (r *reach) where() string {
	if r.namespace == "" {
		return "any namespace"
	}
	return "namespace " + r.namespace
}

func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// of returns where the port is in a Pod: its arguments may have moved it.
func (p port) of(pod *corev1.Pod) uint16 {
	for _, container := range pod.Spec.Containers {
		args := append(slices.Clone(container.Command), container.Args...)
		if !slices.ContainsFunc(args, func(arg string) bool { return arg == "serve" || arg == "destination" }) {
			continue
		}
		for _, arg := range args {
			value, found := strings.CutPrefix(strings.TrimLeft(arg, "-"), p.flag+"=")
			if !found {
				continue
			}
			if _, digits, err := net.SplitHostPort(value); err == nil {
				if n, err := strconv.ParseUint(digits, 10, 16); err == nil && n > 0 {
					return uint16(n)
				}
			}
		}
	}
	return p.number
}

// forward opens a port on loopback that leads to a Pod's, until end is called.
func forward(ctx context.Context, config *rest.Config, client kubernetes.Interface, pod *corev1.Pod, number uint16) (addr string, end func(), err error) {
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
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case <-ready:
	case <-ended:
		return "", nil, cmp.Or(failed, errors.New("it ended at once"))
	case <-timer.C:
		err = errors.New("no answer within 30 s")
	case <-ctx.Done():
		err = ctx.Err()
	}
	end = func() {
		close(stop)
		<-ended
	}
	if err != nil {
		end()
		return "", nil, err
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		end()
		return "", nil, err
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0].Local), end, nil
}

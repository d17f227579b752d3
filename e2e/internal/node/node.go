package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
)

const (
	lookInterval = 200 * time.Millisecond // between two looks at the Pods
	renewal      = 5 * time.Second        // of the Lease, which the controllers give 40 s
)

// A Node runs the Pods of its cluster until it is stopped.
type Node struct {
	// Set by Start.
	cluster *controlplane.Cluster
	client  kubernetes.Interface
	name    string
	binary  string
	dir     string
	report  func(error)
	server  *httptest.Server
	end     context.CancelFunc
	wg      sync.WaitGroup // of all goroutines

	mu   sync.Mutex // guards all below
	pods map[types.UID]*pod
	last netip.Addr // that a Pod was given
}

// Start makes the node of a cluster without nodes. The binary is that of fingerpost, and errors of Pods are passed to
// report: what failed is tried again.
func Start(ctx context.Context, cluster *controlplane.Cluster, binary string, report func(error)) (*Node, error) {
	client, err := kubernetes.NewForConfig(cluster.AdminConfig())
	if err != nil {
		return nil, fmt.Errorf("node of cluster %s: %w", cluster.Name(), err)
	}
	dir, err := os.MkdirTemp("", "fingerpost-node-")
	if err != nil {
		return nil, fmt.Errorf("node of cluster %s: %w", cluster.Name(), err)
	}

	running, end := context.WithCancel(context.WithoutCancel(ctx))
	n := &Node{
		cluster: cluster,
		client:  client,
		name:    cluster.Name() + "-1",
		binary:  binary,
		dir:     dir,
		report:  report,
		end:     end,
		pods:    map[types.UID]*pod{},
		last:    cluster.PodCIDR().Addr(),
	}
	n.server = httptest.NewTLSServer(n.handler())
	if err := n.register(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("node of cluster %s: %w", cluster.Name(), err), n.Stop())
	}

	n.wg.Go(func() { n.every(running, renewal, n.renew) })
	n.wg.Go(func() { n.every(running, lookInterval, n.look) })
	return n, nil
}

// Stop ends all Pods and their programs. Nothing is reported any more.
func (n *Node) Stop() error {
	n.end()
	n.wg.Wait()
	n.server.CloseClientConnections()
	n.server.Close()
	return os.RemoveAll(n.dir)
}

// Tails returns the ends of the logs of all programs.
func (n *Node) Tails() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all strings.Builder
	for _, p := range n.pods {
		if p.server != nil {
			fmt.Fprintf(&all, "the log of Pod %s/%s ends:\n%s", p.object.Namespace, p.object.Name, p.server.Tail())
		}
	}
	return all.String()
}

// every does something now and then until ctx ends, and reports what goes wrong.
func (n *Node) every(ctx context.Context, interval time.Duration, do func(context.Context) error) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		n.reportError(ctx, do(ctx))
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// reportError leaves out what goes wrong because the node was stopped.
func (n *Node) reportError(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		n.report(fmt.Errorf("node %s: %w", n.name, err))
	}
}

// register makes the objects by which the cluster knows the node. The API server reaches it on loopback, where the zone
// is what EndpointSlices need.
func (n *Node) register(ctx context.Context) error {
	_, port, err := net.SplitHostPort(n.server.Listener.Addr().String())
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}

	node, err := n.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: n.name,
		Labels: map[string]string{
			corev1.LabelHostname:     n.name,
			corev1.LabelOSStable:     "linux",
			corev1.LabelTopologyZone: n.cluster.Name() + "-a",
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	node.Status = corev1.NodeStatus{
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(number)}},
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Played", LastTransitionTime: metav1.Now(),
		}},
	}
	patch, err := json.Marshal(map[string]any{"status": node.Status}) // the cluster writes the node as well
	if err != nil {
		return err
	}
	nodes := n.client.CoreV1().Nodes()
	if _, err := nodes.PatchStatus(ctx, n.name, patch); err != nil {
		return err
	}

	now := metav1.NowMicro()
	_, err = n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: n.name},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &n.name, LeaseDurationSeconds: new(int32(40)), RenewTime: &now,
		},
	}, metav1.CreateOptions{})
	return err
}

// renew keeps the node alive: otherwise its Pods are taken for not ready after 40 s.
func (n *Node) renew(ctx context.Context) error {
	patch := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
	leases := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	_, err := leases.Patch(ctx, n.name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// look starts what has come, and ends what is to go.
func (n *Node) look(ctx context.Context) error {
	listing, cancel := context.WithTimeout(ctx, renewal)
	defer cancel()
	list, err := n.client.CoreV1().Pods(metav1.NamespaceAll).List(listing, metav1.ListOptions{})
	if err != nil {
		return err
	}

	n.mu.Lock()
	defer n.mu.Unlock()
	gone := map[types.UID]bool{}
	for uid := range n.pods {
		gone[uid] = true
	}
	for i := range list.Items {
		object := &list.Items[i]
		switch p := n.pods[object.UID]; {
		case p == nil:
			n.startLocked(ctx, object)
		case object.DeletionTimestamp != nil:
			p.end()
		}
		delete(gone, object.UID)
	}
	for uid := range gone {
		n.pods[uid].end()
		delete(n.pods, uid)
	}
	return nil
}

// startLocked has a goroutine of its own run a Pod.
func (n *Node) startLocked(ctx context.Context, object *corev1.Pod) {
	n.last = n.last.Next()
	ctx, end := context.WithCancel(ctx)
	p := &pod{object: object, address: n.last, end: end}
	n.pods[object.UID] = p
	n.wg.Go(func() { n.reportError(ctx, n.run(ctx, p)) })
}

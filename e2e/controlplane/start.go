package controlplane

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fingerpost/fingerpost/e2e/internal/spawn"
)

// startTimeout bounds a start or a change; on an idle machine either takes
// seconds, and on two cores with a load average of 45 more than two minutes.
// The build of the programs is not part of it.
const startTimeout = 5 * time.Minute

// Start starts a cluster and returns when it is ready. ctx bounds the start
// only: the cluster runs until Stop. If it does not become ready nothing is
// left of it, and the error has the end of the log of the component that was
// to blame.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	options, err := options.complete()
	if err != nil {
		return nil, fmt.Errorf("start a cluster: %w", err)
	}
	if err := options.findBinaries(ctx); err != nil {
		return nil, fmt.Errorf("start cluster %q: %w", options.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		cluster, err := start(ctx, options)
		switch {
		case err == nil:
			return cluster, nil
		case errors.Is(err, errPortTaken) && options.Dir == "":
			continue // with other ports
		default:
			return nil, fmt.Errorf("start cluster %q: %w", options.Name, err)
		}
	}
}

// StartAll starts the clusters at once and returns them in the same order. If
// one fails it stops the others.
func StartAll(ctx context.Context, options ...Options) ([]*Cluster, error) {
	options = slices.Clone(options) // the caller's may be a slice of its own
	for i := range options {
		// Before the others start, so that one builds and reports it.
		if err := options[i].findBinaries(ctx); err != nil {
			return nil, fmt.Errorf("start clusters: %w", err)
		}
	}
	clusters := make([]*Cluster, len(options))
	failures := make([]error, len(options))
	var wg sync.WaitGroup
	for i := range options {
		wg.Go(func() { clusters[i], failures[i] = Start(ctx, options[i]) })
	}
	wg.Wait()
	err := errors.Join(failures...)
	if err == nil {
		return clusters, nil
	}
	for _, cluster := range clusters {
		if cluster != nil {
			err = errors.Join(err, cluster.Stop())
		}
	}
	return nil, err
}

// errPortTaken means that between our finding a port and the component's
// listening there another process took it. On Linux newPort prevents it.
var errPortTaken = errors.New("a port was taken")

func start(ctx context.Context, options Options) (_ *Cluster, err error) {
	c := &Cluster{
		name:      options.Name,
		options:   options,
		binaries:  options.Binaries,
		tokens:    make(map[Component]string),
		processes: make(map[Component]*process),
		proxies:   make(map[*Proxy]struct{}),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	if err := c.reserve(); err != nil {
		return nil, err
	}
	if err := c.writeFiles(); err != nil {
		return nil, err
	}
	if err := c.startEtcd(ctx); err != nil {
		return nil, portTaken(err)
	}
	if err := c.startAPIServer(ctx); err != nil {
		return nil, portTaken(err)
	}
	if options.Light {
		return c, nil
	}
	if err := c.startControllers(ctx); err != nil {
		return nil, err
	}
	if err := c.createNodes(ctx); err != nil {
		return nil, err
	}
	if err := c.awaitServiceAccount(ctx, metav1.NamespaceDefault); err != nil {
		return nil, err
	}
	return c, c.awaitNodes(ctx)
}

func portTaken(err error) error {
	if strings.Contains(err.Error(), "address already in use") {
		return fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return err
}

// reserve takes what must be the cluster's alone.
func (c *Cluster) reserve() error {
	var err error
	if c.pods, err = addressRanges.take(c.options.PodCIDR); err != nil {
		return err
	}
	if c.services, err = addressRanges.take(""); err != nil {
		return err
	}
	for _, port := range []**port{&c.etcdPort, &c.peerPort, &c.apiPort} {
		if *port, err = newPort(); err != nil {
			return err
		}
	}
	if c.dir, err = newStateDir(c.options.Dir); err != nil {
		return err
	}
	if c.options.Services {
		if c.routed, err = serveServices(c.file(egressSocket)); err != nil {
			return err
		}
	}
	if c.logs, err = c.logDir(); err != nil {
		return fmt.Errorf("make the directory for logs: %w", err)
	}
	c.spawner, err = spawn.New()
	return err
}

// auditPolicy leaves out the control plane's own components, whose requests
// are many and show nothing about clients.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [system:apiserver, system:kube-controller-manager, system:kube-scheduler, kwok]
- level: None
  userGroups: [system:serviceaccounts:kube-system]
- level: Metadata
`

func (c *Cluster) writeFiles() error {
	var err error
	if c.authority, err = newAuthority(c.name); err != nil {
		return err
	}
	key, err := newServiceAccountKey()
	if err != nil {
		return err
	}
	var tokens bytes.Buffer
	for component, user := range map[Component]string{
		ControllerManager: `system:kube-controller-manager,1`,
		Scheduler:         `system:kube-scheduler,2`,
		Kwok:              `kwok,3,"system:masters"`,
		kubectl:           adminName + `,4,"system:masters"`,
	} {
		c.tokens[component] = rand.Text()
		fmt.Fprintf(&tokens, "%s,%s\n", c.tokens[component], user)
	}
	for name, content := range map[string][]byte{
		serviceAccountKeyFile: key,
		tokensFile:            tokens.Bytes(),
		auditPolicyFile:       []byte(auditPolicy),
		egressFile:            fmt.Appendf(nil, egressSelector, c.file(egressSocket)),
	} {
		if err := c.write(name, content); err != nil {
			return err
		}
	}
	return nil
}

// run starts a component and puts it in the place of the one before.
func (c *Cluster) run(component Component, args []string) (*process, error) {
	p, err := c.startProcess(component, args)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.processes[component] = p
	return p, nil
}

func (c *Cluster) startEtcd(ctx context.Context) error {
	p, err := c.run(Etcd, c.etcdArgs())
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return p.ready(ctx, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet,
			"http://"+c.etcdPort.address()+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			body, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
			return fmt.Errorf("%s: %s", response.Status, body)
		}
		return nil
	})
}

// startAPIServer starts it on the current port with the current authority, and
// makes clients and kubeconfig files that fit.
func (c *Cluster) startAPIServer(ctx context.Context) error {
	c.mu.Lock()
	at, authority, old := c.apiPort, c.authority, c.clients
	c.mu.Unlock()
	for name, content := range map[string][]byte{
		caFile:          authority.ca,
		servingCertFile: authority.servingCert,
		servingKeyFile:  authority.servingKey,
		kubeconfigFile(ControllerManager): c.Kubeconfig(&Identity{
			Name:  string(ControllerManager),
			Token: c.tokens[ControllerManager],
		}, ""),
		kubeconfigFile(Scheduler): c.Kubeconfig(&Identity{Name: string(Scheduler), Token: c.tokens[Scheduler]}, ""),
		kubeconfigFile(Kwok):      c.Kubeconfig(&Identity{Name: string(Kwok), Token: c.tokens[Kwok]}, ""),
		kubeconfigFile(kubectl):   c.AdminKubeconfig(),
	} {
		if err := c.write(name, content); err != nil {
			return err
		}
	}
	clients, err := newClients(c.AdminConfig())
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.clients = clients
	c.mu.Unlock()
	if old != nil {
		old.close()
	}
	p, err := c.run(APIServer, c.apiServerArgs(at))
	if err != nil {
		return err
	}
	return c.awaitAPIServer(ctx, p)
}

// awaitAPIServer waits until the API server reports that it, and the etcd behind
// it, can serve, and has made the namespace that is always there.
func (c *Cluster) awaitAPIServer(ctx context.Context, p *process) error {
	client := c.client().typed
	return p.ready(ctx, func(ctx context.Context) error {
		if err := client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
			return err
		}
		_, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		return err
	})
}

// startControllers starts those of the components that only talk to the API
// server which do not run.
func (c *Cluster) startControllers(ctx context.Context) error {
	if !c.running(ControllerManager) {
		if _, err := c.run(ControllerManager, c.controllerManagerArgs()); err != nil {
			return err
		}
	}
	if c.options.Nodeless {
		return nil
	}
	if !c.running(Scheduler) {
		if _, err := c.run(Scheduler, c.schedulerArgs()); err != nil {
			return err
		}
	}
	if c.running(Kwok) {
		return nil
	}
	if err := c.freeNodes(ctx); err != nil {
		return fmt.Errorf("take the nodes from the last run of kwok: %w", err)
	}
	pods, err := c.freePodRange(ctx)
	if err != nil {
		return fmt.Errorf("find addresses for the next run of kwok: %w", err)
	}
	version, err := exec.CommandContext(ctx, filepath.Join(c.binaries, string(Kwok)), "--version").Output()
	if err != nil {
		return fmt.Errorf("ask kwok for its version: %w", err)
	}
	if err := c.write(stagesFile, stagesOf(version)); err != nil {
		return err
	}
	_, err = c.run(Kwok, c.kwokArgs(pods))
	return err
}

// freeNodes deletes the Leases of the nodes. Every run of kwok goes by another
// name, and leaves nodes alone whose Lease another holds, until it expires.
func (c *Cluster) freeNodes(ctx context.Context) error {
	leases := c.client().typed.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	return leases.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}

// freePodRange returns a part of the pod range that no pod has an address of.
// A run of kwok does not know the addresses of the pods that it finds and
// would give them out again.
func (c *Cluster) freePodRange(ctx context.Context) (netip.Prefix, error) {
	pods, err := c.client().typed.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return netip.Prefix{}, err
	}
	for part := range podRangeParts {
		prefix := podRangePart(c.pods, part)
		if !slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool {
			address, err := netip.ParseAddr(pod.Status.PodIP)
			return err == nil && prefix.Contains(address)
		}) {
			return prefix, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("there are pods in all %d parts of %v", podRangeParts, c.pods)
}

func (c *Cluster) createNodes(ctx context.Context) error {
	if c.options.Nodeless {
		return nil
	}
	for _, zone := range c.options.Zones {
		for i := range c.options.NodesPerZone {
			name := fmt.Sprintf("%s-%d", zone, i+1)
			_, err := c.client().typed.CoreV1().Nodes().Create(ctx, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{
					Name: name,
					Labels: map[string]string{
						corev1.LabelHostname:       name,
						corev1.LabelOSStable:       "linux",
						corev1.LabelTopologyRegion: c.options.Region,
						corev1.LabelTopologyZone:   zone,
					},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("create node %s: %w", name, err)
			}
		}
	}
	return nil
}

// awaitServiceAccount waits for what the namespace's pods will run as; until
// then the API server refuses them.
func (c *Cluster) awaitServiceAccount(ctx context.Context, namespace string) error {
	return c.process(ControllerManager).ready(ctx, func(ctx context.Context) error {
		_, err := c.client().typed.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// awaitNodes waits until every node is Ready and may be scheduled to: if pods
// came earlier, all would land on the first node that is. A node without a
// Lease is not the present kwok's, so its pods would not become Running.
func (c *Cluster) awaitNodes(ctx context.Context) error {
	if c.options.Nodeless {
		return nil
	}
	return c.process(Kwok).ready(ctx, func(ctx context.Context) error {
		nodes, err := c.client().typed.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		leases, err := c.client().typed.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx,
			metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(leases.Items) < len(nodes.Items) {
			return fmt.Errorf("kwok has taken %d of %d nodes", len(leases.Items), len(nodes.Items))
		}
		for _, node := range nodes.Items {
			ready := slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
				return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
			})
			if !ready || len(node.Spec.Taints) > 0 {
				return fmt.Errorf("node %s: Ready is %t, taints %v", node.Name, ready, node.Spec.Taints)
			}
		}
		return nil
	})
}

// ensure makes AlreadyExists a success.
func ensure(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

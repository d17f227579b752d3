package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/fingerpost"
)

// audience is that of tokens for the API server.
const audience = "https://kubernetes.default.svc"

// debugPort is where the server's pages for commands are, unless its arguments name another port.
const debugPort = 9998

// A pod is one Pod, from its binding to its end.
type pod struct {
	object  *corev1.Pod
	address netip.Addr
	end     context.CancelFunc // of its context, when it is deleted

	// Guarded by the node.
	server *fingerpost.Server // nil until it listens, and in Pods that run nothing
}

// program returns the container that runs fingerpost's server; nil if there is none.
func (p *pod) program() *corev1.Container {
	for i := range p.object.Spec.Containers {
		if c := &p.object.Spec.Containers[i]; len(c.Args) > 0 && c.Args[0] == "serve" {
			return c
		}
	}
	return nil
}

// run runs a Pod until it is deleted, or the node is stopped.
func (n *Node) run(ctx context.Context, p *pod) error {
	n.insist(ctx, func() error { return n.bind(ctx, p) })
	if p.program() != nil {
		n.insist(ctx, func() error { return n.serve(ctx, p) })
		n.insist(ctx, func() error { return n.setStatus(ctx, p, false) })
		n.awaitReady(ctx, p)
	}
	n.insist(ctx, func() error { return n.setStatus(ctx, p, true) })

	<-ctx.Done()
	return n.remove(context.WithoutCancel(ctx), p)
}

// insist does something until it succeeds or ctx ends, and reports each failure.
func (n *Node) insist(ctx context.Context, do func() error) {
	retry(ctx, func() bool {
		err := do()
		n.reportError(ctx, err)
		return err == nil
	})
}

// retry does something until it succeeds or ctx ends.
func retry(ctx context.Context, do func() bool) {
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	for ctx.Err() == nil && !do() {
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// bind does what a scheduler does.
func (n *Node) bind(ctx context.Context, p *pod) error {
	if p.object.Spec.NodeName != "" {
		return nil
	}
	err := n.client.CoreV1().Pods(p.object.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: p.object.Name, UID: p.object.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: n.name},
	}, metav1.CreateOptions{})
	if apierrors.IsConflict(err) { // it was bound by an attempt whose answer did not arrive
		return nil
	}
	return err
}

// serve starts the server, which may take a Secret that is not there yet.
func (n *Node) serve(ctx context.Context, p *pod) error {
	server, err := n.startServer(ctx, p)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p.server = server
	return nil
}

func (n *Node) awaitReady(ctx context.Context, p *pod) {
	n.mu.Lock()
	server := p.server
	n.mu.Unlock()
	retry(ctx, func() bool { return server.Ready(ctx) })
}

func (n *Node) startServer(ctx context.Context, p *pod) (*fingerpost.Server, error) {
	dir, err := os.MkdirTemp(n.dir, p.object.Name+"-")
	if err != nil {
		return nil, err
	}
	args, err := n.mount(ctx, p, dir)
	if err != nil {
		return nil, fmt.Errorf("mount volumes of Pod %s/%s: %w", p.object.Namespace, p.object.Name, err)
	}
	account := &controlplane.Identity{Namespace: p.object.Namespace, Name: p.object.Spec.ServiceAccountName}
	if account.Token, err = n.cluster.TokenFor(ctx, account, audience); err != nil {
		return nil, err
	}

	return fingerpost.Start(ctx, fingerpost.Options{
		Binary:     n.binary,
		Dir:        dir,
		Kubeconfig: n.cluster.Kubeconfig(account, ""),
		Args:       append(args, "-allow-kubeconfig-hosts=127.0.0.1"),
		Env:        []string{"HOSTNAME=" + p.object.Name},
	})
}

// mount puts the volumes of the program below dir, and returns its arguments with their paths there.
func (n *Node) mount(ctx context.Context, p *pod, dir string) ([]string, error) {
	container := p.program()
	args := slices.DeleteFunc(slices.Clone(container.Args[1:]),
		func(arg string) bool { return strings.HasPrefix(arg, "-peer") })
	for _, mount := range container.VolumeMounts {
		i := slices.IndexFunc(p.object.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
		if i < 0 {
			continue // a token, which admission would add
		}
		files, err := n.files(ctx, p.object.Namespace, &p.object.Spec.Volumes[i])
		if err != nil {
			return nil, err
		}

		at := filepath.Join(dir, mount.Name)
		if err := os.MkdirAll(at, 0o700); err != nil {
			return nil, err
		}
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(at, name), content, 0o600); err != nil {
				return nil, err
			}
		}
		for i := range args {
			args[i] = strings.Replace(args[i], "="+mount.MountPath, "="+at, 1)
		}
	}
	return args, nil
}

// files returns the files of a Secret or a ConfigMap; other volumes are empty. The token is in the kubeconfig.
func (n *Node) files(ctx context.Context, namespace string, volume *corev1.Volume) (map[string][]byte, error) {
	switch {
	case volume.Secret != nil:
		secret, err := n.client.CoreV1().Secrets(namespace).Get(ctx, volume.Secret.SecretName, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return secret.Data, nil
	case volume.ConfigMap != nil:
		config, err := n.client.CoreV1().ConfigMaps(namespace).Get(ctx, volume.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		files := map[string][]byte{}
		for name, content := range config.Data {
			files[name] = []byte(content)
		}
		return files, nil
	default:
		return nil, nil
	}
}

// setStatus writes what a kubelet writes: the Pod runs, and is ready or is not.
func (n *Node) setStatus(ctx context.Context, p *pod, ready bool) error {
	status := corev1.PodStatus{
		Phase:     corev1.PodRunning,
		HostIP:    "127.0.0.1",
		PodIP:     p.address.String(),
		PodIPs:    []corev1.PodIP{{IP: p.address.String()}},
		StartTime: new(metav1.Now()),
	}
	for _, kind := range []corev1.PodConditionType{
		corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady,
	} {
		condition := corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}
		if !ready && (kind == corev1.ContainersReady || kind == corev1.PodReady) {
			condition.Status = corev1.ConditionFalse
		}
		status.Conditions = append(status.Conditions, condition)
	}
	for i := range p.object.Spec.Containers {
		c := &p.object.Spec.Containers[i]
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: ready, Started: new(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		})
	}

	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = n.client.CoreV1().Pods(p.object.Namespace).Patch(ctx, p.object.Name, types.MergePatchType, patch,
		metav1.PatchOptions{}, "status")
	return err
}

// remove ends the program, and then there is no Pod. That of a node that is stopped stays.
func (n *Node) remove(ctx context.Context, p *pod) error {
	n.mu.Lock()
	server := p.server
	p.server = nil
	n.mu.Unlock()
	var err error
	if server != nil {
		err = server.Stop()
	}
	deleting, cancel := context.WithTimeout(ctx, renewal)
	defer cancel()
	object, lost := n.client.CoreV1().Pods(p.object.Namespace).Get(deleting, p.object.Name, metav1.GetOptions{})
	if lost != nil || object.UID != p.object.UID || object.DeletionTimestamp == nil {
		return err
	}
	lost = n.client.CoreV1().Pods(p.object.Namespace).Delete(deleting, p.object.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(p.object.UID)),
	})
	if apierrors.IsNotFound(lost) {
		lost = nil
	}
	return errors.Join(err, lost)
}

// portsLocked returns where the ports of a Pod are, by number.
func (p *pod) portsLocked() map[string]string {
	if p.server == nil {
		return nil
	}
	ports := map[string]string{strconv.Itoa(debugPort): p.server.Debug}
	for _, port := range p.program().Ports {
		number := strconv.Itoa(int(port.ContainerPort))
		switch port.Name {
		case "grpc":
			ports[number] = p.server.Addr
		case "dest-admin":
			ports[number] = p.server.Admin
		}
	}
	return ports
}

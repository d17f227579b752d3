package node

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

const (
	idleTimeout   = 5 * time.Minute
	streamTimeout = 30 * time.Second
)

// handler serves what the API server asks a kubelet for, of the Pods that run a program.
func (n *Node) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		inside, ok := n.inside(w, r)
		if !ok {
			return
		}
		portforward.ServePortForward(w, r, inside, r.PathValue("pod"), "", nil, idleTimeout, streamTimeout,
			portforward.SupportedProtocols)
	})
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		inside, ok := n.inside(w, r)
		if !ok {
			return
		}
		streams, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeExec(w, r, inside, r.PathValue("pod"), "", r.PathValue("container"),
			r.URL.Query()["command"], streams, idleTimeout, streamTimeout, remotecommand.SupportedStreamingProtocols)
	})
	return mux
}

// An inside is what a program in a Pod has around it.
type inside struct {
	binary string
	ports  map[string]string // its ports, and where they are
}

// inside finds the Pod of a request, and answers if it cannot.
func (n *Node) inside(w http.ResponseWriter, r *http.Request) (in inside, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.pods {
		if p.object.Namespace == r.PathValue("namespace") && p.object.Name == r.PathValue("pod") && p.server != nil {
			return inside{binary: n.binary, ports: p.portsLocked()}, true
		}
	}
	http.Error(w, "no program runs in this Pod", http.StatusNotFound)
	return inside{}, false
}

// PortForward joins a stream and a port of the Pod, until either ends: how does not matter.
func (in inside) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	addr, ok := in.ports[strconv.Itoa(int(port))]
	if !ok {
		return fmt.Errorf("nothing listens on port %d", port)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()

	ended := make(chan struct{}, 2)
	join := func(to io.Writer, from io.Reader) {
		_, _ = io.Copy(to, from)
		ended <- struct{}{}
	}
	go join(conn, stream)
	go join(stream, conn)
	<-ended
	return nil
}

var loopback = regexp.MustCompile(`\b127\.0\.0\.1:(\d+)\b`)

// ExecInContainer runs fingerpost, for which the Pod's 127.0.0.1 is where the ports of the Pod are.
func (in inside) ExecInContainer(
	ctx context.Context, _, _, _ string, command []string, stdin io.Reader, stdout, stderr io.WriteCloser, _ bool,
	_ <-chan remotecommand.TerminalSize, _ time.Duration,
) error {
	if len(command) == 0 || command[0] != "fingerpost" {
		return fmt.Errorf("there is no program for %q", command)
	}
	args := make([]string, 0, len(command))
	for _, arg := range command[1:] {
		args = append(args, loopback.ReplaceAllStringFunc(arg, func(addr string) string {
			_, port, _ := net.SplitHostPort(addr)
			if at, ok := in.ports[port]; ok {
				return at
			}
			return addr
		}))
	}

	run := utilexec.New().CommandContext(ctx, in.binary, args...)
	run.SetStdin(stdin)
	run.SetStdout(stdout)
	run.SetStderr(stderr)
	return run.Run()
}

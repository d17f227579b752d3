// Package fingerpost runs the server as a process of its own, as it is run in a cluster, for live tests and
// for the demo.
package fingerpost

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fingerpost/fingerpost/e2e/internal/spawn"
)

const (
	startTimeout = 30 * time.Second
	stopTimeout  = 20 * time.Second // the server drains for 10 s
	getTimeout   = 30 * time.Second // beside much other work it collects its garbage for seconds
)

// Build returns the path of the server's binary, which it builds in dir from the sources around this file, unless
// FINGERPOST_BINARY names one. With race it has the race detector.
func Build(ctx context.Context, dir string, race bool) (string, error) {
	if built := os.Getenv("FINGERPOST_BINARY"); built != "" && !race {
		return built, nil
	}
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("the sources of the server cannot be found")
	}
	binary := filepath.Join(dir, "fingerpost")
	command := exec.CommandContext(ctx, "go", "build", "-C", filepath.Join(filepath.Dir(file), "..", ".."),
		"-ldflags", "-s -w", "-o", binary, "./cmd/fingerpost")
	if race {
		command.Args = slices.Insert(command.Args, 4, "-race") // after -C and its directory
	} else {
		command.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the server: %w\n%s", err, out)
	}
	return binary, nil
}

// Options are the settings of a server.
type Options struct {
	Binary     string
	Dir        string    // for its kubeconfig; must exist
	Kubeconfig []byte    // of the cluster that it runs in
	Command    string    // serve if empty, or identity
	Args       []string  // but for addresses and the kubeconfig
	Env        []string  // besides this process's own, KEY=value
	Log        io.Writer // what it logs, JSON lines; nil: kept for errors only
}

// A Server is one running process.
type Server struct {
	Addr, Admin, Debug string // of its servers, on loopback
	Policy, Identity   string // the same; empty without -policy-addr and -identity-addr

	awaits  []string // the servers that listen, by their names in the log
	spawner *spawn.Spawner
	command *exec.Cmd
	exited  chan struct{} // closed when it is gone; then err holds how it ended
	err     error

	mu   sync.Mutex // guards all below
	tail []string   // the last lines of the log
	addr map[string]string
	got  chan struct{} // closed when all addresses are known
}

// Start starts a server and waits until it listens. It ends with Stop, or with this process.
func Start(ctx context.Context, o Options) (*Server, error) {
	kubeconfig := filepath.Join(o.Dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, o.Kubeconfig, 0o600); err != nil {
		return nil, fmt.Errorf("write the server's kubeconfig: %w", err)
	}
	spawner, err := spawn.New()
	if err != nil {
		return nil, err
	}
	s := &Server{spawner: spawner, exited: make(chan struct{}), addr: map[string]string{}, got: make(chan struct{})}
	args := s.arguments(o, kubeconfig)
	s.command = exec.Command(o.Binary, args...)
	s.command.Env = append(append(s.command.Environ(), "HOSTNAME=fingerpost-0"), o.Env...)
	output, err := s.command.StderrPipe()
	if err != nil {
		spawner.Close()
		return nil, fmt.Errorf("pipe for the server's log: %w", err)
	}
	if err := spawner.Start(s.command); err != nil {
		spawner.Close()
		return nil, fmt.Errorf("start the server: %w", err)
	}
	go func() {
		s.read(output, o.Log)
		s.err = s.command.Wait()
		close(s.exited)
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case <-s.got:
	case <-s.exited:
		return nil, errors.Join(fmt.Errorf("the server has ended: %w\n%s", s.err, s.Tail()), s.Stop())
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("the server does not listen within %s\n%s", startTimeout, s.Tail()),
			s.Stop())
	}
	s.mu.Lock()
	s.Addr, s.Admin, s.Debug = s.addr["gRPC"], s.addr["admin"], s.addr["debug"]
	s.Policy, s.Identity = s.addr["policy"], s.addr["identity"]
	s.mu.Unlock()
	return s, nil
}

// arguments returns those of the command, with addresses of this machine, and notes what listens at them.
func (s *Server) arguments(o Options, kubeconfig string) []string {
	own := []string{"-kubeconfig=" + kubeconfig, "-log-format=json"}
	if o.Command == "identity" {
		s.awaits = []string{"identity", "admin"}
		return slices.Concat([]string{o.Command}, o.Args, own, []string{"-addr=127.0.0.1:0", "-admin-addr=127.0.0.1:0"})
	}

	s.awaits = []string{"gRPC", "admin", "debug"}
	for _, name := range []string{"policy", "identity"} {
		if slices.ContainsFunc(o.Args, func(arg string) bool { return strings.HasPrefix(arg, "-"+name+"-addr=") }) {
			s.awaits = append(s.awaits, name)
		}
	}
	return slices.Concat([]string{"serve"}, o.Args, own, []string{
		"-addr=127.0.0.1:0", "-metrics-addr=127.0.0.1:0", "-debug-addr=127.0.0.1:0", "-read-only=false",
	})
}

// read passes the log on and learns from it where the server listens.
func (s *Server) read(log io.Reader, to io.Writer) {
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	listens := false
	for lines.Scan() {
		if to != nil {
			_, _ = to.Write(append(bytes.Clone(lines.Bytes()), '\n'))
		}
		var line struct{ Msg, Addr, Server, Serves string }
		known := json.Unmarshal(lines.Bytes(), &line) == nil
		s.mu.Lock()
		s.tail = append(s.tail[max(0, len(s.tail)-100):], lines.Text())
		switch {
		case known && line.Msg == "gRPC server listens":
			s.addr[line.Serves] = line.Addr
		case known && line.Msg == "HTTP server listens":
			s.addr[line.Server] = line.Addr
		}
		isMissing := func(name string) bool { return s.addr[name] == "" }
		all := !slices.ContainsFunc(s.awaits, isMissing)
		if !listens && all { // others may come first
			listens = true
			close(s.got)
		}
		s.mu.Unlock()
	}
	_, _ = io.Copy(io.Discard, log) // a line that is too long must not block the server
}

// Tail returns the end of the log.
func (s *Server) Tail() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var text bytes.Buffer
	for _, line := range s.tail {
		fmt.Fprintln(&text, line)
	}
	return text.String()
}

// PID returns the number of the process.
func (s *Server) PID() int { return s.command.Process.Pid }

// Exited returns a channel that is closed once the process is gone.
func (s *Server) Exited() <-chan struct{} { return s.exited }

// Terminate asks the server to stop, as a kubelet does, and does not wait.
func (s *Server) Terminate() error { return s.command.Process.Signal(syscall.SIGTERM) }

// Stop stops the server, by force if need be, and returns an error if it did not end well. A second Stop does nothing.
func (s *Server) Stop() error {
	defer s.spawner.Close()
	select {
	case <-s.exited:
		return s.err
	default:
	}
	if err := s.Terminate(); err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-s.exited:
		if s.err != nil {
			return fmt.Errorf("the server ended with %w\n%s", s.err, s.Tail())
		}
		return nil
	case <-timer.C:
		_ = s.command.Process.Kill()
		<-s.exited
		return fmt.Errorf("the server did not stop within %s\n%s", stopTimeout, s.Tail())
	}
}

// Ready reports whether the server reports that it is.
func (s *Server) Ready(ctx context.Context) bool {
	_, err := get(ctx, "http://"+s.Admin+"/ready")
	return err == nil
}

// Cluster is what the server knows of a cluster.
type Cluster struct {
	Name        string
	Local       bool
	State       string
	LastContact *time.Time
	Source      string
	Synced      bool
	Contact     string
	Credentials string
	Kinds       []struct {
		Resource       string
		Objects        int
		Open           bool
		Refused        string
		Lists, Watches int
	}
}

// Clusters returns what the server knows of every cluster.
func (s *Server) Clusters(ctx context.Context) ([]Cluster, error) {
	body, err := get(ctx, "http://"+s.Debug+"/debug/clusters")
	if err != nil {
		return nil, err
	}
	var page struct{ Clusters []Cluster }
	if err := json.Unmarshal(body, &page); err != nil {
		return nil, fmt.Errorf("/debug/clusters: %w", err)
	}
	return page.Clusters, nil
}

// Cluster returns what the server knows of one cluster; the zero Cluster if nothing.
func (s *Server) Cluster(ctx context.Context, name string) (Cluster, error) {
	all, err := s.Clusters(ctx)
	if err != nil {
		return Cluster{}, err
	}
	if i := slices.IndexFunc(all, func(c Cluster) bool { return c.Name == name }); i >= 0 {
		return all[i], nil
	}
	return Cluster{}, nil
}

var installationLabel = regexp.MustCompile(`(\{)installation="[^"]*",?|,installation="[^"]*"`)

// Stacks returns the stacks of all goroutines, with -enable-pprof.
func (s *Server) Stacks(ctx context.Context) ([]byte, error) {
	return get(ctx, "http://"+s.Admin+"/debug/pprof/goroutine?debug=2")
}

// Metrics returns the page that Prometheus reads, without the label installation, which contains a UID.
func (s *Server) Metrics(ctx context.Context) (string, error) {
	body, err := get(ctx, "http://"+s.Admin+"/metrics")
	page := installationLabel.ReplaceAllString(string(body), "$1")
	return strings.ReplaceAll(page, "{}", ""), err
}

// Metric returns the value of a metric without labels; an error if there is none.
func (s *Server) Metric(ctx context.Context, name string) (float64, error) {
	page, err := s.Metrics(ctx)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(page) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}

// Page returns the status page.
func (s *Server) Page(ctx context.Context) (string, error) {
	body, err := get(ctx, "http://"+s.Debug+"/")
	return string(body), err
}

// Footprint is what the server takes up.
type Footprint struct {
	Goroutines int
	Heap       int // bytes in use
}

// Footprint collects the server's garbage and returns what is left. The server must run with -enable-pprof.
func (s *Server) Footprint(ctx context.Context) (Footprint, error) {
	for range 2 { // what lies in a sync.Pool outlives one collection
		if _, err := get(ctx, "http://"+s.Admin+"/debug/pprof/heap?gc=1"); err != nil {
			return Footprint{}, err
		}
	}
	goroutines, err := s.Metric(ctx, "go_goroutines")
	if err != nil {
		return Footprint{}, err
	}
	heap, err := s.Metric(ctx, "go_memstats_heap_alloc_bytes")
	return Footprint{Goroutines: int(goroutines), Heap: int(heap)}, err
}

func get(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, response.Status, body)
	}
	return body, err
}

package live

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fingerpost/fingerpost/e2e/charts"
	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/internal/proc"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// runMesh makes a mesh from nothing, but for nodes, with so many replicas of each part. The certificates are those of
// `fingerpost certs`, the objects those of the chart, and each process has the arguments, the files and the account of
// its Deployment. All are ready in the end, so that no right is missing, and the server has got its certificate from
// the authority. The API server reaches the webhooks by their Services, as proxies reach the rest.
func runMesh(t *testing.T, c *controlplane.Cluster, namespace, set string, replicas int) *meshed {
	t.Helper()
	m := &meshed{T: t, Cluster: c, namespace: namespace, dir: t.TempDir(), hosts: mesh.Hosts{}}
	m.do(c.Apply(t.Context(), []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+namespace+"}\n")))
	issuer, errs := m.certs("new")
	if len(issuer) == 0 {
		t.Fatal(errs)
	}
	m.do(c.Apply(t.Context(), issuer))

	objects, err := charts.Render(t.Context(), charts.Server, namespace, set, "-values",
		filepath.Join(chartFiles, charts.Server, "values-ha.yaml"))
	m.do(err)
	for _, o := range objects {
		m.do(c.Apply(t.Context(), charts.Manifest(o)))
		group, isGlobal := map[string]string{
			"ClusterRole": "rbac.authorization", "ClusterRoleBinding": "rbac.authorization",
			"MutatingWebhookConfiguration":   "admissionregistration",
			"ValidatingWebhookConfiguration": "admissionregistration",
		}[o.GetKind()]
		if isGlobal { // another test installs them
			name := strings.ToLower(o.GetKind()) + "s." + group + ".k8s.io/" + o.GetName()
			t.Cleanup(func() { m.do(c.Delete(context.WithoutCancel(t.Context()), "", name)) })
		}
	}

	for range replicas {
		m.addReplicas(objects)
	}
	for _, p := range m.parts {
		p.start(p.ports)
	}
	m.ready(m.parts...)

	for _, o := range objects {
		if o.GetKind() == "Service" {
			m.route(o)
		}
	}
	for _, p := range m.parts {
		p.checkMemory()
		if p.name == "linkerd-destination" {
			m.do(p.log.contains("ertificate", "linkerd-destination."+namespace+".serviceaccount.identity."+namespace))
		}
	}
	return m
}

// meshed is a cluster whose control plane the chart has made.
type meshed struct {
	*testing.T
	*controlplane.Cluster
	namespace string
	dir       string // where the commands of certificates keep their files
	parts     []*part
	hosts     mesh.Hosts
}

// certs runs a command of `fingerpost certs`, and returns what it prints.
func (m *meshed) certs(command string, args ...string) (out []byte, errs string) {
	m.Helper()
	args = append([]string{"certs", command, "--linkerd-namespace=" + m.namespace}, args...)
	run := exec.CommandContext(m.Context(), binary, args...)
	run.Dir = m.dir
	var stderr bytes.Buffer
	run.Stderr = &stderr
	out, _ = run.Output() // there is none if it fails
	return out, stderr.String()
}

func (m *meshed) do(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

// addReplicas adds one Pod of each Deployment.
func (m *meshed) addReplicas(objects []*unstructured.Unstructured) {
	m.Helper()
	ports := map[string]int{}
	for _, o := range objects {
		if o.GetKind() == "Deployment" {
			var d appsv1.Deployment
			m.do(runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d))
			m.parts = append(m.parts, newPart(m.T, m.Cluster, &d, ports))
		}
	}
}

// ready waits until parts are.
func (m *meshed) ready(parts ...*part) {
	m.Helper()
	for _, p := range parts {
		ctx, cancel := context.WithTimeout(m.Context(), time.Minute)
		err := mesh.Eventually(ctx, p.isReady)
		cancel()
		if err != nil {
			m.Errorf("%s: %v\n%s", p.name, err, p.log.text.String())
		}
	}
}

// route has proxies and the API server find the parts that a Service selects.
func (m *meshed) route(o *unstructured.Unstructured) {
	m.Helper()
	var s corev1.Service
	m.do(runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &s))
	stored, err := m.Print(m.Context(), m.namespace, "services", s.Name, "{.spec.clusterIP}")
	m.do(err)
	for _, port := range s.Spec.Ports {
		var addrs []string
		for _, p := range m.parts {
			number := port.TargetPort.IntValue()
			for _, of := range p.container.Ports {
				if of.Name == port.TargetPort.StrVal && number == 0 {
					number = int(of.ContainerPort)
				}
			}
			at, listens := p.ports[fmt.Sprintf("%s:%d", p.name, number)]
			if listens && labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(p.labels)) {
				addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", at))
			}
		}
		m.hosts[fmt.Sprintf("%s.%s.svc.cluster.local.:%d", s.Name, m.namespace, port.Port)] = addrs
		if stored != corev1.ClusterIPNone {
			m.do(m.Route(fmt.Sprintf("%s:%d", stored, port.Port), addrs...))
		}
	}
}

// A part is a Deployment of the chart whose one Pod runs here.
type part struct {
	t          *testing.T
	name, root string // root has the files of its volumes
	args       []string
	labels     map[string]string
	container  corev1.Container
	mount      func() // writes what Secrets and ConfigMaps have by now
	stop       func() // kills it
	admin      string // which of its ports has /ready
	ports      map[string]int
	log        logged
	pid        int // of its process, once it has started
}

var listenPort = regexp.MustCompile(`(^|=|,):(\d+)`)

// newPart writes the files of a Deployment, as a kubelet would, and finds a port for each of those that it listens at.
func newPart(t *testing.T, c *controlplane.Cluster, d *appsv1.Deployment, ports map[string]int) *part {
	t.Helper()
	container := d.Spec.Template.Spec.Containers[0]
	p := &part{t: t, name: d.Name, root: t.TempDir(), args: container.Args, container: container}
	p.labels = d.Spec.Template.Labels
	volumes := map[string]corev1.Volume{}
	for _, v := range d.Spec.Template.Spec.Volumes {
		volumes[v.Name] = v
	}
	account := &controlplane.Identity{Namespace: d.Namespace, Name: d.Spec.Template.Spec.ServiceAccountName}
	p.mount = func() {
		for _, m := range container.VolumeMounts {
			p.write(m.MountPath, p.content(c, account, volumes[m.Name]))
		}
	}
	p.mount()
	for _, port := range container.Ports {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ports[fmt.Sprintf("%s:%d", d.Name, port.ContainerPort)] = listener.Addr().(*net.TCPAddr).Port
		_ = listener.Close()
		if strings.HasSuffix(port.Name, "-admin") {
			p.admin = fmt.Sprintf("%s:%d", d.Name, port.ContainerPort)
		}
	}
	p.ports = ports
	minted, err := c.Mint(t.Context(), account)
	if err != nil {
		t.Fatal(err)
	}
	p.write("/kube", map[string][]byte{"config": c.Kubeconfig(minted, "")})
	return p
}

// content returns the files of a volume; none of one that holds nothing to begin with.
func (p *part) content(c *controlplane.Cluster, account *controlplane.Identity, v corev1.Volume) map[string][]byte {
	p.t.Helper()
	from := ""
	switch {
	case v.Secret != nil:
		from = "secret/" + v.Secret.SecretName
	case v.ConfigMap != nil:
		from = "configmap/" + v.ConfigMap.Name
	case v.Projected != nil && v.Projected.Sources[0].ServiceAccountToken.Audience == "identity.l5d.io":
		token, err := c.TokenFor(p.t.Context(), account, "identity.l5d.io")
		if err != nil {
			p.t.Fatal(err)
		}
		return map[string][]byte{v.Projected.Sources[0].ServiceAccountToken.Path: []byte(token)}
	default:
		return nil
	}
	text, err := c.Kubectl(p.t.Context(), "-n", account.Namespace, "get", from, "-o", "json")
	if err != nil {
		p.t.Fatal(err)
	}
	return dataOf(p.t, []byte(text))
}

func (p *part) write(dir string, files map[string][]byte) {
	p.t.Helper()
	dir = filepath.Join(p.root, dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		p.t.Fatal(err)
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		err := os.WriteFile(path+".new", content, 0o600)
		if err == nil {
			err = os.Rename(path+".new", path)
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// start runs the process with its arguments, but for ports of this machine, and files below root. Replicas are not
// asked: there is one.
func (p *part) start(ports map[string]int) {
	p.t.Helper()
	args := []string{p.args[0], "-kubeconfig=" + filepath.Join(p.root, "kube", "config")}
	for flag, path := range map[string]string{
		"identity -issuer":                       "/var/run/linkerd/identity/issuer",
		"proxy-injector -injector-values":        "/var/run/linkerd/config/values",
		"serve -identity-issuer":                 "/var/run/linkerd/identity/issuer",
		"serve -identity-trust-anchors":          "/var/run/linkerd/identity/trust-roots/ca-bundle.crt",
		"serve -injector-trust-anchors":          "/var/run/linkerd/identity/trust-roots/ca-bundle.crt",
		"identity -identity-trust-anchors":       "/var/run/linkerd/identity/trust-roots/ca-bundle.crt",
		"proxy-injector -injector-trust-anchors": "/var/run/linkerd/identity/trust-roots/ca-bundle.crt",
	} { // what its defaults are in a Pod
		if name, is := strings.CutPrefix(flag, p.args[0]+" "); is {
			args = append(args, name+"="+path)
		}
	}
	for _, arg := range p.args[1:] {
		if strings.HasPrefix(arg, "-peer") || strings.HasPrefix(arg, "-state-dir=") {
			continue
		}
		if strings.HasPrefix(arg, "-identity-from=") {
			arg = fmt.Sprintf("-identity-from=127.0.0.1:%d", ports["linkerd-identity:8080"])
		}
		args = append(args, listenPort.ReplaceAllStringFunc(arg, func(at string) string {
			match := listenPort.FindStringSubmatch(at)
			return fmt.Sprintf("%s:%d", match[1], ports[p.name+":"+match[2]])
		}))
	}
	if p.args[0] == "serve" {
		args = append(args, "-debug-addr=127.0.0.1:0")
	}
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "/var/run/", filepath.Join(p.root, "var", "run")+"/")
	}

	ctx, cancel := context.WithCancel(context.Background())
	command := exec.CommandContext(ctx, binary, args...)
	command.Env = append(os.Environ(), "HOSTNAME="+p.name+"-0")
	command.Stdout, command.Stderr = &p.log, &p.log
	if err := command.Start(); err != nil {
		cancel()
		p.t.Fatal(err)
	}
	p.pid = command.Process.Pid
	p.stop = func() {
		cancel()
		_ = command.Wait()
	}
	p.t.Cleanup(p.stop)
}

// idle is the memory of its own, in bytes, that a part takes at most while nothing asks it.
var idle = map[string]int{"linkerd-identity": 25 << 20, "linkerd-proxy-injector": 30 << 20}

func (p *part) checkMemory() {
	p.t.Helper()
	own, err := proc.Anonymous(p.pid)
	if err != nil {
		p.t.Fatal(err)
	}
	resident, err := proc.Resident(p.pid)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Logf("%s: %.1f MiB of its own, %.1f resident", p.name, float64(own)/(1<<20), float64(resident)/(1<<20))
	if most, bounded := idle[p.name]; bounded && own > most {
		p.t.Errorf("%s has %d bytes of memory of its own, idle, want at most %d", p.name, own, most)
	}
}

// isReady returns what the process lacks.
func (p *part) isReady(ctx context.Context) error {
	page := fmt.Sprintf("http://127.0.0.1:%d/ready", p.ports[p.admin])
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var body bytes.Buffer
	_, err = body.ReadFrom(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body.String())
	}
	return err
}

// dataOf returns what a Secret or a ConfigMap holds.
func dataOf(t *testing.T, text []byte) map[string][]byte {
	t.Helper()
	var o struct {
		metav1.TypeMeta
		Data map[string]string
	}
	if err := json.Unmarshal(text, &o); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for name, content := range o.Data {
		files[name] = []byte(content)
		if o.Kind == "Secret" {
			decoded, err := base64.StdEncoding.DecodeString(content)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = decoded
		}
	}
	return files
}

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
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fingerpost/fingerpost/e2e/charts"
	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

// A mesh from nothing, but for nodes: the certificates are those of `fingerpost certs`, the objects those of the chart,
// and each process has the arguments, the files and the account of its Deployment. All are ready in the end, so that no
// right is missing, and the server has got its certificate from the authority.
func TestMeshRuns(t *testing.T) {
	c := claim(t)[0]
	for layout, processes := range map[string]int{"three": 3, "one": 1} {
		t.Run(layout, func(t *testing.T) { runMesh(t, c, layout, processes) })
	}
}

// runMesh runs as many processes as a layout has.
func runMesh(t *testing.T, c *controlplane.Cluster, layout string, processes int) {
	t.Helper()
	namespace := "mesh-runs-" + layout
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(c.Apply(t.Context(), []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+namespace+"}\n")))
	made := exec.CommandContext(t.Context(), binary, "certs", "new", "--linkerd-namespace="+namespace)
	made.Dir = t.TempDir()
	issuer, err := made.Output()
	do(err)
	do(c.Apply(t.Context(), issuer))

	set := "{controlPlane: {enabled: true, layout: " + layout + "}, crds: {links: true}}"
	objects, err := charts.Render(t.Context(), charts.Server, namespace, set)
	do(err)
	for _, o := range objects { // API servers here reach no Service, and would ask the webhooks in vain
		if !strings.HasSuffix(o.GetKind(), "WebhookConfiguration") {
			do(c.Apply(t.Context(), charts.Manifest(o)))
		}
		if kind := o.GetKind(); kind == "ClusterRole" || kind == "ClusterRoleBinding" { // another test installs them
			name := strings.ToLower(kind) + "s.rbac.authorization.k8s.io/" + o.GetName()
			t.Cleanup(func() { do(c.Delete(context.WithoutCancel(t.Context()), "", name)) })
		}
	}
	var parts []*part
	ports := map[string]int{}
	for _, o := range objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		var d appsv1.Deployment
		do(runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d))
		parts = append(parts, newPart(t, c, &d, ports))
	}
	if len(parts) != processes {
		t.Fatalf("%d Deployments", len(parts))
	}
	for _, p := range parts {
		p.start(ports)
	}
	for _, p := range parts {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := mesh.Eventually(ctx, p.isReady)
		cancel()
		if err != nil {
			t.Errorf("%s: %v\n%s", p.name, err, p.log.text.String())
		}
	}
	for _, p := range parts {
		if p.name == "linkerd-destination" {
			do(p.log.contains("ertificate", "linkerd-destination."+namespace+".serviceaccount.identity."+namespace))
		}
	}
}

// A part is a Deployment of the chart whose one Pod runs here.
type part struct {
	t          *testing.T
	name, root string // root has the files of its volumes
	args       []string
	admin      string // which of its ports has /ready
	ports      map[string]int
	log        logged
}

var listenPort = regexp.MustCompile(`(^|=|,):(\d+)`)

// newPart writes the files of a Deployment, as a kubelet would, and finds a port for each of those that it listens at.
func newPart(t *testing.T, c *controlplane.Cluster, d *appsv1.Deployment, ports map[string]int) *part {
	t.Helper()
	container := d.Spec.Template.Spec.Containers[0]
	p := &part{t: t, name: d.Name, root: t.TempDir(), args: container.Args}
	volumes := map[string]corev1.Volume{}
	for _, v := range d.Spec.Template.Spec.Volumes {
		volumes[v.Name] = v
	}
	account := &controlplane.Identity{Namespace: d.Namespace, Name: d.Spec.Template.Spec.ServiceAccountName}
	for _, m := range container.VolumeMounts {
		p.write(m.MountPath, p.content(c, account, volumes[m.Name]))
	}
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
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
}

// start runs the process with its arguments, but for addresses of this machine, and files below root. Replicas are not
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
			return fmt.Sprintf("%s127.0.0.1:%d", match[1], ports[p.name+":"+match[2]])
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
	p.t.Cleanup(func() {
		cancel()
		_ = command.Wait()
	})
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

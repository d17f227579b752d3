package docs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fingerpost/fingerpost/e2e/controlplane"
	"github.com/fingerpost/fingerpost/e2e/internal/node"
	"github.com/fingerpost/fingerpost/e2e/mesh"
)

const (
	blockTimeout = 2 * time.Minute // of a block of commands
	waitTimeout  = time.Minute     // of what a page promises to be so after them
	lookInterval = time.Second / 2 // between two scripts that look whether it is
)

// A world is a reader's machine, and the clusters in its kubeconfig.
type world struct {
	t        *testing.T
	linkerd  bool // whether the clusters have Linkerd's namespaces
	clusters map[string]*controlplane.Cluster
	dir      string            // where the reader stands: beside charts, with home below it
	replace  map[string]string // what a reader puts in for what a page has as an example
	assigned string            // the variables that the blocks of the page have set, as a script

	// Since the section began.
	running []*background
	output  string // of what has ended
}

// inBothWorlds runs a test where Linkerd's namespaces are and where they are not.
func inBothWorlds(t *testing.T, names []string, test func(w *world)) {
	t.Helper()
	for name, linkerd := range map[string]bool{"with Linkerd": true, "without Linkerd": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newWorld(t, linkerd, names...))
		})
	}
}

// newWorld starts clusters with nodes.
func newWorld(t *testing.T, linkerd bool, names ...string) *world {
	t.Helper()
	w := &world{
		t: t, linkerd: linkerd, dir: t.TempDir(), replace: map[string]string{},
		clusters: map[string]*controlplane.Cluster{},
	}

	options := make([]controlplane.Options, 0, len(names))
	for _, name := range names {
		options = append(options, controlplane.Options{Name: name, Nodeless: true})
	}
	for _, c := range controlplane.AllForTest(t, options...) {
		w.clusters[c.Name()] = c
		w.startNode(c)
	}

	if linkerd {
		w.namespace("linkerd")
	}
	w.furnish()
	return w
}

// namespace makes a namespace in all clusters.
func (w *world) namespace(name string) {
	w.t.Helper()
	w.applyAll("apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + "}\n")
}

// applyAll applies a manifest to all clusters.
func (w *world) applyAll(manifest string) {
	w.t.Helper()
	for _, c := range w.clusters {
		w.must(c.Apply(w.t.Context(), []byte(manifest)))
	}
}

func (w *world) startNode(c *controlplane.Cluster) {
	w.t.Helper()
	n, err := node.Start(w.t.Context(), c, binary, func(err error) { w.t.Log(err) })
	w.must(err)
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Logf("node of %s: %s", c.Name(), n.Tails())
		}
		if err := n.Stop(); err != nil {
			w.t.Error(err)
		}
	})
}

// helm is the path of helm, of the version that the tools pin.
var helm = sync.OnceValues(func() (string, error) {
	path, err := exec.Command("go", "tool", "-C", filepath.Join(root, "tools", "chart"), "-n", "helm").Output()
	return strings.TrimSpace(string(path)), err
})

// furnish puts on the reader's machine what a page assumes: the programs on the PATH, the charts, and a kubeconfig with
// a context for each cluster, of which east is the current one.
func (w *world) furnish() {
	w.t.Helper()
	helmPath, err := helm()
	w.must(err)
	repository, err := filepath.Abs(root)
	w.must(err)
	for path, to := range map[string]string{
		"charts":         filepath.Join(repository, "charts"),
		"bin/fingerpost": binary,
		"bin/kubectl":    w.clusters["east"].KubectlPath(),
		"bin/helm":       helmPath,
	} {
		w.must(os.MkdirAll(filepath.Dir(w.path(path)), 0o755))
		w.must(os.Symlink(to, w.path(path)))
	}

	all := clientcmdapi.NewConfig()
	all.CurrentContext = "east"
	for name, c := range w.clusters {
		one, err := clientcmd.Load(c.AdminKubeconfig())
		w.must(err)
		all.Clusters[name], all.Contexts[name] = one.Clusters[name], one.Contexts[name]
		all.AuthInfos[name] = one.AuthInfos[one.Contexts[name].AuthInfo] // which all have one name
		all.Contexts[name].AuthInfo = name
	}
	w.must(os.MkdirAll(w.path("home/.kube"), 0o755))
	w.must(clientcmd.WriteToFile(*all, w.path("home/.kube/config")))
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// play runs the commands of a page, section by section, and checks: each after the section with its headline, or after
// the block that contains its text. It is an error if the page does not have what is checked, or what is put in.
func (w *world) play(page string, checks map[string]func()) {
	w.t.Helper()
	checks = maps.Clone(checks)
	check := func(where string) {
		if run := checks[where]; run != nil {
			run()
			delete(checks, where)
		}
	}

	w.assigned = ""
	for _, s := range sectionsOf(w.t, page) {
		if !w.linkerd && isAboutLinkerd(page, s.headline) {
			continue
		}
		for _, b := range s.blocks {
			w.playBlock(page, b)
			for where := range checks {
				if strings.Contains(b.text, where) {
					check(where)
				}
			}
		}
		check(s.headline)
		w.stopBackground()
		w.output = ""
	}

	for where := range checks {
		w.t.Errorf("%s has neither a section nor a block %q", page, where)
	}
	for example := range w.replace {
		if !isIn(w.t, page, example) {
			w.t.Errorf("%s has no %q", page, example)
		}
	}
}

func isAboutLinkerd(page, headline string) bool {
	for _, s := range withLinkerd {
		if s.page == page && s.headline == headline {
			return true
		}
	}
	return false
}

// playBlock does with a block what its reader does.
func (w *world) playBlock(page string, b block) {
	w.t.Helper()
	text := w.putIn(b.text)
	switch {
	case b.isCommands():
		w.playCommands(page, text)
	case b.file() != "":
		w.must(os.WriteFile(w.path(b.file()), []byte(text), 0o600))
	case b.isObjects():
		w.run("kubectl apply --dry-run=server -f - <<'EOF'\n" + text + "EOF\n")
	case !b.isShown():
		w.t.Errorf("%s has a block of language %q, which is neither run nor shown:\n%s", page, b.language, text)
	}
}

func (w *world) playCommands(page, text string) {
	w.t.Helper()
	for _, i := range instead {
		if i.page == page && strings.Contains(text, i.command) {
			w.run(i.undo)
		}
	}
	text = leaveOut(page, text)
	if strings.TrimSpace(text) == "" {
		return
	}

	text = w.assigned + text
	w.assigned = strings.Join(assignment.FindAllString(text, -1), "")
	if seen, is := untilSeen(page, text); is {
		w.start(text)
		w.prints(seen)
		return
	}
	w.output += w.run(text)
}

var alternative = regexp.MustCompile(`(?m)^\w+=\S+\s+# with Linkerd: (\w+=[^\s,]+).*$`)

// assignment is a line that sets a variable for all blocks that follow: they are run in one shell.
var assignment = regexp.MustCompile(`(?m)^\w+=\w+( .*)?\n`)

// putIn puts in what a page asks its reader to put in: addresses, and what is otherwise with Linkerd.
func (w *world) putIn(text string) string {
	for example, own := range w.replace {
		text = strings.ReplaceAll(text, example, own)
	}
	if w.linkerd {
		text = alternative.ReplaceAllString(text, "$1")
	}
	return text
}

func leaveOut(page, text string) string {
	for _, n := range notRun {
		if n.page == page {
			text = strings.Replace(text, n.command, "", 1)
		}
	}
	return text
}

// untilSeen returns what a reader waits for when a block does not end.
func untilSeen(page, text string) (seen string, is bool) {
	for _, e := range endless {
		if e.page == page && strings.Contains(text, e.command) {
			return e.until, true
		}
	}
	return "", false
}

// withMulticluster makes the namespace of Linkerd's multicluster chart, where there is Linkerd.
func (w *world) withMulticluster() {
	w.t.Helper()
	if w.linkerd {
		w.namespace("linkerd-multicluster")
	}
}

// addresses waits until the EndpointSlices of a Service of a cluster have so many addresses of Pods of each cluster.
func (w *world) addresses(cluster, service string, want map[string]int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), waitTimeout)
	defer cancel()
	w.must(mesh.Eventually(ctx, func(ctx context.Context) error {
		out, err := w.clusters[cluster].Kubectl(ctx, "-n", "shop", "get", "endpointslices", "-l",
			"kubernetes.io/service-name="+service, "-o", "jsonpath={.items[*].endpoints[*].addresses[0]}")
		if err != nil {
			return err
		}

		got := map[string]int{}
		for address := range strings.FieldsSeq(out) {
			for name, c := range w.clusters {
				if ip, err := netip.ParseAddr(address); err == nil && c.PodCIDR().Contains(ip) {
					got[name]++
				}
			}
		}
		for name, n := range want {
			if got[name] != n {
				return fmt.Errorf("Service %s of %s has addresses %q, want %v", service, cluster, out, want)
			}
		}
		return nil
	}))
}

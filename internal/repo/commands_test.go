package repo

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cluster/apitest"
)

// notRun are the commands of pages that TestQuickStart does not run, and why. What can be seen without
// running them is checked.
var notRun = []struct{ command, why string }{
	{`make demo`, "make test-e2e plays it"},
	{`make (test|quick|check|bench|cases|soak|generate|image|k3d)`, "it takes minutes, Docker, or this very test"},
	{`kubectl `, "it needs a cluster; e2e/docs runs those of the pages that lead to a fleet"},
	{`helm `, "it needs a cluster; e2e/docs runs those of the same pages, e2e/live installs the charts of others"},
	{`step `, "it needs step, and the key of a trust anchor"},
	{`fingerpost `, "it forwards a port to a Pod, or mints a token; e2e/docs and e2e/live run them on real API servers"},
	{`(cat|rm|cd|ln|export|alias|server|ca|token|WEST|clusters|mesh)\b`, "it prepares another command"},
}

var (
	file       = regexp.MustCompile(` (charts/\S+|links/\S+\.yaml)`)
	invocation = regexp.MustCompile(`(?:^|\| |-- )(?:bin/)?fingerpost [^|;]*`)
	inline     = regexp.MustCompile("`((?:bin/)?fingerpost [^`]+)`")
	condition  = regexp.MustCompile(`^\[ [^]]*\] \|\| `)
	keyword    = regexp.MustCompile(`^(for|do|done|fi|if|then|else|\}|\w+\(\) \{)`)
	comment    = regexp.MustCompile(`(^|\s)#.*`)
)

// commands returns the commands of a page, each on one line: those in blocks without a language, and those
// behind a prompt.
func commands(text string) (all []string) {
	inBlock, isShell, heredoc, begun := false, false, false, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if language, is := strings.CutPrefix(line, "```"); is {
			inBlock, isShell, heredoc, begun = !inBlock, language == "", false, ""
			continue
		}
		if command, is := strings.CutPrefix(line, "$ "); is {
			all = append(all, command)
		}
		if !inBlock || !isShell {
			continue
		}
		if heredoc {
			heredoc = line != "EOF"
			continue
		}
		line = strings.TrimSpace(comment.ReplaceAllString(line, ""))
		heredoc = strings.Contains(line, "<<EOF")
		if begun += line; strings.HasSuffix(begun, "\\") || strings.HasSuffix(begun, "|") {
			begun = strings.TrimSuffix(begun, "\\") + " "
			continue
		}
		begun, line = "", strings.Join(strings.Fields(begun), " ")
		line = condition.ReplaceAllString(line, "")
		if line != "" && !keyword.MatchString(line) {
			all = append(all, line)
		}
	}
	return all
}

// Each command on a page is run as it stands there, by TestQuickStart, or is in the list above. Its flags,
// files, targets and values exist.
func TestCommands(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"README.md", "docs/*.md", "charts/*/README.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	generated := func(page string) bool { return strings.HasSuffix(page, "/flags.md") }
	pages = slices.DeleteFunc(pages, generated)
	makefile := read(t, root+"/Makefile")
	values := chartValues(t)
	built := filepath.Join(t.TempDir(), "fingerpost")
	goCommand(t, "build", "-o", built, binary)
	used, helps, total := map[string]bool{}, map[string]string{}, 0
	for _, page := range pages {
		text := read(t, page)
		wrong := func(command, format string, args ...any) {
			t.Helper()
			t.Errorf("%s: %s: %s", strings.TrimPrefix(page, root+"/"), command, fmt.Sprintf(format, args...))
		}
		all := commands(text)
		total += len(all)
		for _, command := range all {
			i := slices.IndexFunc(notRun, func(n struct{ command, why string }) bool {
				return regexp.MustCompile("^(?:" + n.command + ")").MatchString(command)
			})
			switch {
			case slices.Contains(quickStart, command) && strings.HasSuffix(page, "/README.md"):
			case i < 0:
				wrong(command, "it is neither run nor listed in commands_test.go")
			default:
				used[notRun[i].command] = true
			}
			if target, is := strings.CutPrefix(command, "make "); is {
				name, _, _ := strings.Cut(target, " ")
				if !regexp.MustCompile(`(?m)^(.* )?` + name + `( .*)?:`).MatchString(makefile) {
					wrong(command, "there is no target %s", name)
				}
			}
			for _, set := range regexp.MustCompile(`--set(?:-string)? ([\w.]+)=`).FindAllStringSubmatch(command, -1) {
				if !values[set[1]] {
					wrong(command, "no chart has the value %s", set[1])
				}
			}
			for _, file := range file.FindAllStringSubmatch(command, -1) {
				if _, err := os.Stat(filepath.Join(root, file[1])); err != nil {
					wrong(command, "there is no file %s", file[1])
				}
			}
		}
		for _, span := range inline.FindAllStringSubmatch(text, -1) {
			all = append(all, span[1])
		}
		for _, command := range all {
			for _, part := range invocation.FindAllString(command, -1) {
				_, part, _ = strings.Cut(part, "fingerpost ")
				if flag := unknownFlag(t, built, part, helps); flag != "" {
					wrong(command, "there is no flag %s", flag)
				}
			}
		}
	}
	for _, n := range notRun {
		if !used[n.command] {
			t.Errorf("no page has a command %q: remove it from the list", n.command)
		}
	}
	if total < 50 {
		t.Errorf("only %d commands were found", total)
	}
}

// A fleet takes as many commands as the page names, whatever a loop repeats counted each time: those before the
// sentence are all that there are.
func TestFleetCommands(t *testing.T) {
	const clusters, most = 20, 45
	_, section, _ := strings.Cut(read(t, root+"/docs/fleets.md"), "\n## A fleet is a file\n")
	section, _, _ = strings.Cut(section, "\n## ")
	commands, _, _ := strings.Cut(section, "\nFor 20 clusters ") // what follows is for some fleets
	var block strings.Builder
	for i, part := range strings.Split(commands, "```") {
		if text, isShell := strings.CutPrefix(part, "\n"); isShell && i%2 == 1 {
			block.WriteString(text)
		}
	}

	total, times := 0, 1
	for line := range strings.Lines(block.String()) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "for "):
			times = clusters
		case line == "done":
			times = 1
		case strings.HasPrefix(line, "mesh="): // it is no command
		default:
			total += times
		}
	}
	sentence := fmt.Sprintf("For %d clusters that all read each other these are %d commands and %d Links",
		clusters, total, clusters*(clusters-1))
	if total > most || total < clusters || !strings.Contains(section, sentence) {
		t.Errorf("the page lacks: %s; there may be %d", sentence, most)
	}
}

// unknownFlag returns a flag of a command of fingerpost that its help does not have. helps are those that
// were read, by command.
func unknownFlag(t *testing.T, binary, command string, helps map[string]string) string {
	t.Helper()
	words := strings.Fields(command)
	var name []string
	for _, word := range words {
		if !regexp.MustCompile(`^[a-z-]+$`).MatchString(word) || strings.HasPrefix(word, "-") || len(name) == 2 {
			break
		}
		name = append(name, word)
	}
	if len(name) == 0 {
		return ""
	}
	if !slices.Contains([]string{"certs", "explain", "link"}, name[0]) {
		name = name[:1]
	}
	help := helps[strings.Join(name, " ")]
	if help == "" {
		out, err := exec.CommandContext(t.Context(), binary, append(name, "--help")...).Output()
		if err != nil {
			t.Fatalf("fingerpost %q --help: %v", name, err)
		}
		help = string(out)
		helps[strings.Join(name, " ")] = help
	}
	for _, flag := range regexp.MustCompile(`(?:^|[\s\[])(--?[a-z][a-z-]*)`).FindAllStringSubmatch(command, -1) {
		name := regexp.QuoteMeta(strings.TrimLeft(flag[1], "-"))
		if !regexp.MustCompile(`(?m)(^|\s)(--` + name + `|-` + name + `,)(\s|=|$)`).MatchString(help) {
			return flag[1]
		}
	}
	return ""
}

// chartValues returns the values of all charts, with dots between their keys.
func chartValues(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	files, err := filepath.Glob(root + "/charts/*/values.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var collect func(string, map[string]any)
	collect = func(prefix string, values map[string]any) {
		for name, value := range values {
			all[prefix+name] = true
			if inner, is := value.(map[string]any); is {
				collect(prefix+name+".", inner)
			}
		}
	}
	for _, file := range files {
		var values map[string]any
		if err := yaml.Unmarshal([]byte(read(t, file)), &values); err != nil {
			t.Fatal(err)
		}
		collect("", values)
	}
	return all
}

// quickStart are the commands of the README that TestQuickStart runs, in the order of the page.
var quickStart = []string{
	"make build",
	"bin/fingerpost serve --kubeconfig ~/.kube/config",
	"bin/fingerpost clusters --debug-addr 127.0.0.1:9998",
	"bin/fingerpost endpoints kubernetes.default.svc.cluster.local:443 --addr 127.0.0.1:8086",
	"bin/fingerpost explain kubernetes.default.svc.cluster.local:443 --debug-addr 127.0.0.1:9998",
}

// The commands of the README's quick start work on any cluster. They are run as they stand there, but for
// ports, which are taken here, and for make build, which writes into the tree.
func TestQuickStart(t *testing.T) {
	if page := commands(read(t, root+"/README.md")); !slices.Equal(page[:len(quickStart)], quickStart) {
		t.Fatalf("the README begins with %q, and the test runs %q", page, quickStart)
	}
	dir := t.TempDir()
	goCommand(t, "build", "-o", filepath.Join(dir, "bin")+"/", binary)
	writeKubeconfig(t, dir)
	ports := map[string]string{":8086": freeAddr(t), ":9996": freeAddr(t), ":9998": freeAddr(t)}
	run := func(ctx context.Context, command string) *exec.Cmd {
		for port, addr := range ports {
			command = strings.ReplaceAll(command, "127.0.0.1"+port, addr)
		}
		cmd := exec.CommandContext(ctx, "bash", "-c", "exec "+command)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOME="+dir, "KUBECONFIG=")
		return cmd
	}
	ctx, stop := context.WithCancel(t.Context())
	server := run(ctx, fmt.Sprintf("%s --addr %s --metrics-addr %s --debug-addr %s", quickStart[1], ports[":8086"],
		ports[":9996"], ports[":9998"]))
	var log bytes.Buffer
	server.Stderr = &log
	server.Cancel = func() error { return server.Process.Signal(os.Interrupt) }
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stop()
		_ = server.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	}()
	deadline, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i, want := range map[int]string{2: "Live", 3: "192.0.2.1", 4: "192.0.2.1"} {
		var out []byte
		var err error
		for !strings.Contains(string(out), want) && deadline.Err() == nil {
			out, err = run(deadline, quickStart[i]).CombinedOutput()
		}
		if !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, want %q in:\n%s", quickStart[i], err, want, out)
		}
	}
}

// writeKubeconfig makes a cluster with the Service that every cluster has, and credentials for it in
// ~/.kube/config.
func writeKubeconfig(t *testing.T, home string) {
	t.Helper()
	network := apitest.NewNetwork()
	t.Cleanup(network.Close)
	api := network.Server("east")
	for _, object := range []string{
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"kube-system"}}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"kubernetes","namespace":"default"},
			"spec":{"clusterIP":"10.96.0.1","ports":[{"name":"https","port":443,"targetPort":6443}]}}`,
		`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{
			"name":"kubernetes","namespace":"default",
			"labels":{"kubernetes.io/service-name":"kubernetes"}},"addressType":"IPv4",
			"ports":[{"name":"https","port":6443,"protocol":"TCP"}],
			"endpoints":[{"addresses":["192.0.2.1"],"conditions":{"ready":true}}]}`,
	} {
		o := &unstructured.Unstructured{}
		if err := o.UnmarshalJSON([]byte(object)); err != nil {
			t.Fatal(err)
		}
		api.Apply(o)
	}
	server := httptest.NewTLSServer(api)
	t.Cleanup(server.CloseClientConnections)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	kubeconfig, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []any{map[string]any{
			"name": "c", "cluster": map[string]any{"server": server.URL, "certificate-authority-data": authority},
		}},
		"users":    []any{map[string]any{"name": "u", "user": map[string]any{"token": api.Token()}}},
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(home, ".kube"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, ".kube", "config"), kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
}

// freeAddr returns an address on loopback that no process listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

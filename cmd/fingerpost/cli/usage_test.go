package cli

import (
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cmdtest"
)

// What is wrong with a command line is named, with the usage of the command and its own exit code.
func TestUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"endpoints":                         "AUTHORITY is missing\nUsage: fingerpost endpoints AUTHORITY [flags]\nSee",
		"endpoints a b":                     `unexpected argument "b"`,
		"endpoints a.b.c":                   `"a.b.c" names no Service: give web.shop:8080, shop/web:8080, `,
		"profile":                           "AUTHORITY or IP:PORT is missing",
		"link gen":                          "NAME is missing\nUsage: fingerpost link gen NAME | --fleet ",
		"link nosuch":                       `unknown command "nosuch"`,
		"completion tcsh":                   `unknown command "tcsh"`,
		"cluster":                           `unknown command "cluster": did you mean clusters?`,
		"get links":                         `unknown command "get": did you mean clusters?`,
		"gateways":                          `unknown command "gateways": did you mean clusters?`,
		"diagnostics endpoints web.shop":    `unknown command "diagnostics": did you mean endpoints or explain?`,
		"clusters --wait 1s --watch":        "--wait ends, and --watch does not",
		"streams x":                         `unexpected argument "x"`,
		"clusters --nosuch":                 "unknown flag: --nosuch",
		"streams -o wide":                   "it is table, json or yaml",
		"explain web.s --client x":          `--client "x" is not NAMESPACE/POD`,
		"clusters --debug-addr https://a:1": `--debug-addr "https://a:1": replicas serve no https`,
		"clusters --debug-addr a:b":         "it is not host:port, such as 127.0.0.1:9998",
		"metrics --metrics-addr a/b":        "it is not host:port, such as 127.0.0.1:9996",
	} {
		out, err := fingerpost(t, strings.Fields(args)...)
		if err == nil || ExitCode(err) != ExitUsage || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("%s: %d, %v\n%s\nwant %s", args, ExitCode(err), err, out, want)
		}
	}
}

// Addresses may be URLs, and have the default port.
func TestAddresses(t *testing.T) {
	for given, want := range map[string]string{
		"http://127.0.0.1:1/": "127.0.0.1:1", "localhost": "localhost:9998", "[::1]": "[::1]:9998",
		"[::1]:5": "[::1]:5", "http://fingerpost.example": "fingerpost.example:9998", ":7": ":7",
	} {
		if got, err := debugPort.parseAddress(given); err != nil || got != want {
			t.Errorf("%s: %s %v, want %s", given, got, err, want)
		}
	}
	server := cmdtest.DebugServer(t, map[string]any{"/debug/version": map[string]any{"version": "v1.2.3"}})
	out, err := fingerpost(t, "version", "--debug-addr", "http://"+server+"/")
	if err != nil || out != "Client version: test\nServer version: v1.2.3 ("+server+")\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// A version is printed although no replica responds, and -o json has those that do.
func TestVersion(t *testing.T) {
	server := cmdtest.DebugServer(t, map[string]any{"/debug/version": map[string]any{"version": "v1\x1b[31m"}})
	for args, want := range map[string]string{
		"--client": "Client version: test\n", "--client --short": "test\n",
		"--debug-addr " + server + "," + server: "Client version: test\n" +
			"Server version: v1[31m (" + server + ", " + server + ")\n",
		"--debug-addr 127.0.0.1:1": "Client version: test\nServer version: unknown: no response from",
	} {
		out, err := fingerpost(t, append([]string{"version"}, strings.Fields(args)...)...)
		if err != nil || !strings.HasPrefix(out, want) {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
	out, err := fingerpost(t, "version", "-o", "json", "--debug-addr", server)
	v := cmdtest.DecodeJSON[versions](t, out)
	if err != nil || v.Client != "test" || len(v.Server) != 1 || v.Server[0].Replica != server {
		t.Errorf("%v\n%s", err, out)
	}
}

// Helps have at most 100 columns, and the flags that name what is read stand in a group at the end.
func TestHelp(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Name() != "completion" && (cmd.Parent() == nil || cmd.Parent().Name() != "completion") {
			out, err := fingerpost(t, append(strings.Fields(cmd.CommandPath())[1:], "--help")...)
			for line := range strings.Lines(out) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > helpWidth || err != nil {
					t.Errorf("%s: a line of %d columns: %s %v", cmd.CommandPath(), n, line, err)
				}
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(command())
	out, err := fingerpost(t, "clusters", "--help")
	own, connection, grouped := strings.Cut(out, "\nConnection flags:\n")
	if err != nil || !grouped || !strings.Contains(own, "--watch") || strings.Contains(own, "--kubeconfig") ||
		!strings.Contains(connection, "--kubeconfig") || !strings.Contains(connection, "--namespace") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := fingerpost(t); err != nil || !strings.HasSuffix(out, exitCodes) {
		t.Errorf("%v\n%s", err, out)
	}
}

// Arguments are not completed by the names of files: no command takes one.
func TestCompletion(t *testing.T) {
	for _, args := range []string{"streams", "explain", "link renew", "link gen west"} {
		out, err := fingerpost(t, append(strings.Fields("__complete "+args), "")...)
		if err != nil || !strings.Contains("\n"+out, "\n:4\n") { // ShellCompDirectiveNoFileComp
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
}

// As a plugin the commands have the name by which they are called.
func TestPlugin(t *testing.T) {
	for program, want := range map[string]string{
		"/bin/kubectl-fingerpost": "kubectl fingerpost clusters",
		"linkerd-fingerpost.exe":  "linkerd fingerpost clusters",
		"/kubectl-fingerpost/fp":  "fingerpost clusters",
	} {
		root := cmdtest.Root(Commands("test"), "clusters", "--help")
		Prepare(root, program)
		out, err := cmdtest.Execute(t, root)
		if err != nil || !strings.Contains(out, "\n  "+want+" [NAME...]") ||
			!strings.Contains(out, "\n  "+want+" --watch\n") {
			t.Errorf("%s: %v\n%s", program, err, out)
		}
	}
}

// A terminal has a width and colours, which NO_COLOR turns off; a file has neither.
func TestScreen(t *testing.T) {
	terminal := openTerminal(t, 91, 25)
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	s := NewScreen(terminal)
	if !s.Terminal || !s.Colours || s.width != 91 || s.height != 25 {
		t.Errorf("a terminal: %+v", s)
	}
	t.Setenv("NO_COLOR", "1")
	if s := NewScreen(terminal); !s.Terminal || s.Colours || s.Paint(Red, "x") != "x" {
		t.Errorf("NO_COLOR: %+v", s)
	}
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "dumb")
	if s := NewScreen(terminal); s.Colours {
		t.Errorf("a dumb terminal: %+v", s)
	}
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if s := NewScreen(file); s.Terminal || s.Colours || s.width != 0 {
		t.Errorf("a file: %+v", s)
	}
}

// A terminal is redrawn from its first line on, with as many lines as it has.
func TestRedraw(t *testing.T) {
	var out strings.Builder
	f := frame{Screen: Screen{Writer: &out, height: 4}}
	for _, text := range []string{"a", "b", "c", "d"} {
		f.printf("%s", text)
	}
	if err := f.redraw(); err != nil || out.String() != "\x1b[Ha\x1b[K\nb\x1b[K\n(2 more lines)\x1b[K\n\x1b[J" {
		t.Errorf("%v %q", err, out.String())
	}
}

// openTerminal returns a terminal of a size.
func openTerminal(t *testing.T, columns, rows uint16) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err) // a sandbox without terminals
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	size := &unix.Winsize{Row: rows, Col: columns}
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, size); err != nil {
		t.Fatal(err)
	}
	return master
}

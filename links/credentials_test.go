package links

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// kubeconfig writes one with these fields of its cluster and of its user.
func kubeconfig(cluster, user string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {%s}}]
users: [{name: u, user: {%s}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
`, cluster, user)
}

const (
	server = `server: "https://10.0.0.1:6443"`
	token  = `token: abc`
)

func TestCredentials(t *testing.T) {
	config, err := Credentials(kubeconfig(server+`, tls-server-name: kubernetes`, token), Hosts{InCluster: true})
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://10.0.0.1:6443" || config.BearerToken != "abc" ||
		config.ServerName != "kubernetes" || config.Dial == nil {
		t.Errorf("got %+v", config)
	}
}

// Fields that could run a program, read a file, impersonate or send a secret elsewhere are rejected, and the
// message names the field.
func TestRejectedCredentials(t *testing.T) {
	dir := t.TempDir()
	canary := filepath.Join(dir, "ran")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("secret of this process"), 0o600); err != nil {
		t.Fatal(err)
	}
	inCluster := Hosts{InCluster: true}
	for name, tc := range map[string]struct {
		cluster, user string
		hosts         Hosts
		field         string
	}{
		"exec": {
			server,
			`exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: ["` + canary +
				`"], interactiveMode: Never}`,
			inCluster, "user.exec",
		},
		"exec and token": {
			server,
			token + `, exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: ["` + canary + `"]}`,
			inCluster, "user.exec",
		},
		"auth-provider": {server, `auth-provider: {name: gcp}`, inCluster, "user.auth-provider"},
		"token file":    {server, `tokenFile: ` + file, inCluster, "user.tokenFile"},
		"client cert file": {
			server, `client-certificate: ` + file + `, client-key: ` + file, inCluster,
			"user.client-certificate",
		},
		"CA file": {
			server + `, certificate-authority: ` + file, token, inCluster, "cluster.certificate-authority",
		},
		"impersonation": {server, token + `, as: admin`, inCluster, "user.as"},
		"groups":        {server, token + `, as-groups: [system:masters]`, inCluster, "user.as"},
		"password":      {server, `username: admin, password: admin`, inCluster, "user.username"},
		"insecure": {
			server + `, insecure-skip-tls-verify: true`, token, inCluster,
			"cluster.insecure-skip-tls-verify",
		},
		"proxy": {
			server + `, proxy-url: "http://10.9.9.9:3128"`, token, inCluster, "cluster.proxy-url",
		},
		"no credentials": {server, ``, inCluster, "user"},
		"bad CA": {
			server + `, certificate-authority-data: ` + base64.StdEncoding.EncodeToString([]byte("junk")),
			token, inCluster, "cluster.certificate-authority-data",
		},
		"bad certificate": {
			server, `client-certificate-data: ` + base64.StdEncoding.EncodeToString([]byte("junk")),
			inCluster, "user.client-certificate-data",
		},
		"token on 2 lines": {server, `token: "abc\n"`, inCluster, "user.token"},
		"clear text":       {`server: "http://10.0.0.1:8080"`, token, inCluster, "https://"},
		"no server":        {``, token, inCluster, "cluster.server"},
		"user in URL":      {`server: "https://a:b@10.0.0.1"`, token, inCluster, "cluster.server"},
		"link-local":       {`server: "https://169.254.169.254"`, token, Hosts{}, "cluster.server"},
		"link-local IPv6":  {`server: "https://[fe80::1]:443"`, token, Hosts{}, "cluster.server"},
		"mapped":           {`server: "https://[::ffff:169.254.169.254]"`, token, Hosts{}, "cluster.server"},
		"unspecified":      {`server: "https://0.0.0.0:6443"`, token, Hosts{}, "cluster.server"},
		"loopback":         {`server: "https://127.0.0.1:6443"`, token, inCluster, "-allow-kubeconfig-hosts"},
		"loopback IPv6":    {`server: "https://[::1]:6443"`, token, inCluster, "-allow-kubeconfig-hosts"},
		"localhost":        {`server: "https://LocalHost.:6443"`, token, inCluster, "-allow-kubeconfig-hosts"},
		"below localhost":  {`server: "https://a.localhost:6443"`, token, inCluster, "-allow-kubeconfig-hosts"},
		"other host": {
			`server: "https://127.0.0.1:6443"`, token,
			Hosts{InCluster: true, Allowed: []string{"127.0.0.2", "10.0.0.0/8"}},
			"-allow-kubeconfig-hosts",
		},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := Credentials(kubeconfig(tc.cluster, tc.user), tc.hosts)
			if err == nil {
				t.Fatalf("accepted: %+v", config)
			}
			if !strings.Contains(err.Error(), tc.field) {
				t.Errorf("the rejection does not name %s: %v", tc.field, err)
			}
			if strings.Contains(err.Error(), "secret of this process") {
				t.Errorf("a file was read: %v", err)
			}
		})
	}
	if _, err := os.Stat(canary); err == nil {
		t.Error("a program was run")
	}
}

func TestHostsThatAreAllowed(t *testing.T) {
	for server, hosts := range map[string]Hosts{
		"https://127.0.0.1:6443":     {},
		"https://localhost:6443":     {InCluster: true, Allowed: []string{"localhost"}},
		"https://127.0.0.9:6443":     {InCluster: true, Allowed: []string{"127.0.0.0/8"}},
		"https://169.254.20.10:6443": {InCluster: true, Allowed: []string{"169.254.20.10"}},
		"https://api.example.org":    {InCluster: true},
		"https://192.168.1.1:6443":   {InCluster: true},
	} {
		if _, err := Credentials(kubeconfig(`server: "`+server+`"`, token), hosts); err != nil {
			t.Errorf("%s with %+v: %v", server, hosts, err)
		}
	}
}

// A name that resolves to an address which is not allowed is rejected when it is dialled, whatever it resolved to
// before.
func TestNamesAreCheckedWhenDialled(t *testing.T) {
	config, err := Credentials(
		kubeconfig(`server: "https://api.example.org:6443"`, token), Hosts{InCluster: true},
	)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := config.Dial(t.Context(), "tcp", "127.0.0.1:1")
	if err == nil {
		conn.Close()
		t.Fatal("a loopback address was dialled")
	}
	if !strings.Contains(err.Error(), "-allow-kubeconfig-hosts") {
		t.Errorf("refused with %v", err)
	}
}

func TestBrokenKubeconfigs(t *testing.T) {
	for _, text := range []string{
		"", "{", "hello", "apiVersion: v1\nkind: Secret\n", "current-context: nope\n", "\x00\x01",
	} {
		if config, err := Credentials([]byte(text), Hosts{}); err == nil {
			t.Errorf("%q is accepted: %+v", text, config)
		}
	}
}

// A kubeconfig is parsed into much more memory than it has bytes, so that a large one is not parsed.
func TestLargeKubeconfig(t *testing.T) {
	for n, rejected := range map[int]bool{maxKubeconfig: false, maxKubeconfig + 1: true} {
		config := kubeconfig(server, token)
		config = append(config, strings.Repeat("\n", n-len(config))...)
		_, err := Credentials(config, Hosts{})
		if got := err != nil && strings.Contains(err.Error(), "bytes, more than 131072"); got != rejected {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// What cannot be decoded is named by the path of its field, and nothing that a user wrote is in the message: it
// may be a key, and it is shown in a condition.
func TestFieldsThatCannotBeDecoded(t *testing.T) {
	const secret = "c2VjcmV0LXRoYXQtbm9ib2R5LW1heS1zZWU"
	certificate := base64.StdEncoding.EncodeToString([]byte("-----BEGIN"))
	for name, tc := range map[string]struct {
		kubeconfig string
		want       []string
	}{
		"authority that was cut": {
			string(kubeconfig(server+`, certificate-authority-data: `+secret+`$`, token)),
			[]string{"clusters[0].cluster.certificate-authority-data is rejected: it is not base64"},
		},
		"certificate and key": {
			string(kubeconfig(server, `client-certificate-data: `+secret+`, client-key-data: "`+secret+`="`)),
			[]string{"users[0].user.client-certificate-data is rejected: it is not base64"},
		},
		"key": {
			string(kubeconfig(server, `client-certificate-data: `+certificate+`, client-key-data: "%`+secret+`"`)),
			[]string{"users[0].user.client-key-data is rejected: it is not base64"},
		},
		"key that is a list": {
			string(kubeconfig(server, `client-key-data: {`+secret+`: 1}`)),
			[]string{"users[0].user.client-key-data is rejected: it is a map of fields, and must be text in base64"},
		},
		"number as a token": {
			string(kubeconfig(server, `token: 20261116123456789`)),
			[]string{"users[0].user.token is rejected: it is a number, and must be text; write it in quotes"},
		},
		"text as a switch": {
			string(kubeconfig(server+`, insecure-skip-tls-verify: "true"`, token)),
			[]string{"clusters[0].cluster.insecure-skip-tls-verify is rejected: it is text, and must be true or false"},
		},
		"several": {
			string(kubeconfig(`server: [`+secret+`], tls-server-name: 1`, `as-groups: `+secret+`, exec: {args: {a: b}}`)),
			[]string{
				"clusters[0].cluster.server is rejected: it is a list, and must be text",
				"clusters[0].cluster.tls-server-name is rejected: it is a number, and must be text",
				"users[0].user.as-groups is rejected: it is text, and must be a list",
				"users[0].user.exec.args is rejected: it is a map of fields, and must be a list",
			},
		},
		"keys of others": {
			string(kubeconfig(server, `auth-provider: {name: gcp, config: {`+secret+`: [1]}}`)),
			[]string{"users[0].user.auth-provider.config is rejected: it is a list, and must be text"},
		},
		"users by their names": {
			"users: {u: {token: " + secret + "}}",
			[]string{"users is rejected: it is a map of fields, and must be a list"},
		},
		"a user that is a name": {
			"users: [" + secret + "]", []string{"users[0] is rejected: it is text, and must be a map of fields"},
		},
		"current context": {
			"current-context: [" + secret + "]",
			[]string{"current-context is rejected: it is a list, and must be text"},
		},
		"a name twice": {
			"clusters: [{name: " + secret + "}, {name: b}, {name: " + secret + "}]",
			[]string{"clusters[2].name is rejected: it is that of clusters[0]; give each another name"},
		},
		"no YAML": {
			"users:\n- name: u\n user: {token: " + secret + "}", []string{"it is neither YAML nor JSON, see line "},
		},
		"a Secret": {
			"apiVersion: v1\nkind: Secret\ndata: {kubeconfig: " + secret + "}",
			[]string{"must be YAML or JSON of kind Config"},
		},
		"plain text": {secret, []string{"must be YAML or JSON of kind Config"}},
		"JSON":       {`{"users": [{"user": {"token": 1, "as": "` + secret + `"}}]}`, []string{"users[0].user.token is rejected"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Credentials([]byte(tc.kubeconfig), Hosts{})
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %q", err, want)
				}
			}
			if err != nil && strings.Contains(err.Error(), secret[:9]) {
				t.Errorf("it has what somebody wrote: %v", err)
			}
		})
	}
}

// decodingErrors are all messages about what cannot be decoded: of the type's names, indexes and lines.
var decodingErrors = regexp.MustCompile(
	`^((clusters|users|contexts|preferences|extensions|current-context|kind|apiVersion)` +
		`[][0-9a-zA-Z.-]* is rejected: it is [a-z0-9 ,[\]]+; [a-z ,]+\n?|the kubeconfig cannot be parsed: it [a-zA-Z0-9 ,]+)+$`,
)

// Whatever a kubeconfig contains: no panic, and what is accepted is inline, encrypted and verified, without
// impersonation.
func FuzzCredentials(f *testing.F) {
	f.Add(kubeconfig(server, token))
	f.Add(kubeconfig(server+`, insecure-skip-tls-verify: true`, token))
	f.Add(kubeconfig(server, `exec: {command: id}`))
	f.Add(kubeconfig(`server: "https://[fe80::1%25eth0]:6443"`, token))
	f.Add([]byte(
		"users: [{name: u}]\nclusters: [{name: c}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n",
	))
	f.Add(
		kubeconfig(
			server+`, certificate-authority-data: "LS0t$"`,
			`token: 1, as-groups: x, exec: {env: [{name: [a]}]}`,
		),
	)
	f.Add(
		[]byte("clusters: [{name: a}, {name: a}, {name: [b]}, c]\nextensions: [{name: a, extension: 5}, {name: a}]\n"),
	)
	f.Add([]byte("kind: Config\npreferences: {colors: 1}\nusers: [{name: u, user: {as-user-extra: {a: {b: c}}}}]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		config, err := Credentials(text, Hosts{InCluster: true})
		if err != nil {
			_, undecoded := clientcmd.Load(text)
			isShort := len(text) > 0 && len(text) <= maxKubeconfig
			if undecoded != nil && isShort && !decodingErrors.MatchString(err.Error()) {
				t.Errorf("%q is rejected with parts of it: %v", text, err)
			}
			return
		}
		want := rest.TLSClientConfig{
			ServerName: config.ServerName, CAData: config.CAData, CertData: config.CertData,
			KeyData: config.KeyData,
		}
		if !strings.HasPrefix(strings.ToLower(config.Host), "https://") || config.ExecProvider != nil ||
			config.AuthProvider != nil || config.BearerTokenFile != "" ||
			config.Impersonate.UserName != "" || config.Username != "" || config.Proxy != nil ||
			fmt.Sprint(config.TLSClientConfig) != fmt.Sprint(want) {
			t.Errorf("%q is accepted as %+v", text, config)
		}
	})
}

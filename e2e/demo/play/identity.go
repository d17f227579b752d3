package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/cli"
	"github.com/fingerpost/fingerpost/e2e/mesh"
	"github.com/fingerpost/fingerpost/identity"
)

// pod is one of the shop, before it has a proxy.
const pod = `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  serviceAccountName: default
  containers: [{name: web, image: web, ports: [{name: http, containerPort: 8080}]}]
`

// identityAddr is where the environment of a proxy has the authority.
const identityAddr = "linkerd-identity-headless.linkerd.svc.cluster.local.:8080"

// certify gives a Pod of each cluster a proxy, and has that ask the authority of its cluster for a certificate. The
// authorities have an issuer each, under one anchor.
func (p *play) certify(ctx context.Context) (output string, err error) {
	dir, err := os.MkdirTemp("", "fingerpost-certs-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	verb := "new"
	for _, cluster := range clusters {
		if err := writeIssuer(ctx, dir, cluster, verb); err != nil {
			return output, err
		}
		verb = "issuer"
		line, err := p.certifyIn(ctx, dir, cluster)
		output += line
		if err != nil {
			return output, fmt.Errorf("%s: %w", cluster, err)
		}
	}
	return output, nil
}

// writeIssuer has the command line make an issuer for a cluster, and an anchor if there is none, and writes the files
// that a Secret of it has.
func writeIssuer(ctx context.Context, dir, cluster, verb string) error {
	manifests, err := command(ctx, "", "certs", verb, "--anchor-cert", filepath.Join(dir, "anchor.crt"),
		"--anchor-key", filepath.Join(dir, "anchor.key"))
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, cluster), 0o700); err != nil {
		return err
	}

	for document := range strings.SplitSeq(manifests, "\n---\n") {
		if !strings.Contains(document, "kind: Secret") {
			continue
		}
		var secret corev1.Secret
		if err := yaml.Unmarshal([]byte(document), &secret); err != nil {
			return err
		}
		for name, content := range secret.Data {
			if err := os.WriteFile(filepath.Join(dir, cluster, name), content, 0o600); err != nil {
				return err
			}
		}
		for name, content := range secret.StringData {
			if err := os.WriteFile(filepath.Join(dir, cluster, name), []byte(content), 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

// certifyIn does it in one cluster, and returns a line about it.
func (p *play) certifyIn(ctx context.Context, dir, cluster string) (line string, err error) {
	anchor, tokenFile := filepath.Join(dir, "anchor.crt"), filepath.Join(dir, cluster, "token")
	authority, stop, err := p.Authority(ctx, cluster, filepath.Join(dir, cluster), anchor)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, stop()) }()
	token, err := p.Token(ctx, cluster, identity.Audience)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		return "", err
	}

	manifest, err := command(ctx, pod, "inject", "--manual", "--ignore-cluster", "--trust-anchors", anchor,
		"--proxy-version", "demo", "-")
	if err != nil {
		return "", err
	}
	var injected corev1.Pod
	if err := yaml.Unmarshal([]byte(manifest), &injected); err != nil {
		return "", err
	}
	proxy, added, err := proxyOf(&injected, mesh.Hosts{identityAddr: {authority}})
	if err != nil {
		return "", err
	}

	var end time.Time
	err = mesh.Eventually(ctx, func(ctx context.Context) error { // the authority may not be ready yet
		leaf, err := proxy.Certify(ctx, tokenFile)
		if err == nil {
			end = leaf.NotAfter
		}
		return err
	})
	return fmt.Sprintf("%-5s  +%s\n       %s until %s\n", cluster, strings.Join(added, " +"), proxy.Name(),
		end.Local().Format(time.DateTime)), err
}

// proxyOf returns the proxy of a Pod, and what was added to the Pod.
func proxyOf(of *corev1.Pod, hosts mesh.Hosts) (proxy *mesh.Proxy, added []string, err error) {
	for _, c := range append(of.Spec.InitContainers, of.Spec.Containers...) {
		if c.Name == "web" {
			continue
		}
		added = append(added, c.Name)
		if c.Name != "linkerd-proxy" {
			continue
		}
		proxy, err = mesh.NewProxy(c.Env, map[string]string{
			"metadata.name": of.Name, "metadata.namespace": of.Namespace, "metadata.uid": "demo",
			"spec.serviceAccountName": of.Spec.ServiceAccountName, "spec.nodeName": "node",
			"status.podIP": "10.0.0.1", "status.podIPs": "10.0.0.1",
		}, hosts)
		if err != nil {
			return nil, nil, err
		}
	}
	if proxy == nil {
		return nil, nil, errors.New("the Pod has no proxy")
	}
	return proxy, added, nil
}

// command runs one of the command line, and returns what it prints.
func command(ctx context.Context, input string, args ...string) (string, error) {
	var out, errs bytes.Buffer
	for _, cmd := range cli.Commands("demo") {
		if cmd.Name() != args[0] {
			continue
		}
		cmd.SetArgs(args[1:])
		cmd.SetIn(strings.NewReader(input))
		cmd.SetOut(&out)
		cmd.SetErr(&errs)
		if err := cmd.ExecuteContext(ctx); err != nil {
			return "", fmt.Errorf("%w\n%s%s", err, &out, &errs)
		}
		return out.String(), nil
	}
	return "", fmt.Errorf("there is no command %s", args[0])
}

// Command release makes all that a release consists of, without a registry and without Docker: an archive and an
// SBOM for each platform, an image for each architecture of Linux as one OCI layout, the charts as packages, a
// manifest for krew, notes, and checksums of it all.
//
// A commit makes the same bytes wherever it is built by the Go of go.mod: nothing has a time but that of the commit,
// and the image's authorities are a Go module. The version is that of the charts.
package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

// repository is where a release is published.
const repository = "https://github.com/fingerpost/fingerpost"

func main() {
	r := release{}
	flag.StringVar(&r.root, "root", "../..", "the checkout")
	flag.StringVar(&r.out, "out", "dist", "directory to write, which must be empty or missing")
	platforms := flag.String("platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64",
		"what to build for, separated by commas")
	tag := flag.String("tag", "",
		"the tag that is released, to be compared with the charts and the changelog; empty for none")
	flag.Parse()
	r.platforms = strings.Split(*platforms, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := r.make(ctx, *tag)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// A release is one version, in the making.
type release struct {
	root, out string
	platforms []string
	version   string
	built     time.Time // when the commit was made, or as SOURCE_DATE_EPOCH has it
}

// A file is one of an archive, or of the directory.
type file struct {
	name string
	mode fs.FileMode
	data []byte
}

func (r *release) make(ctx context.Context, tag string) error {
	if left, err := os.ReadDir(r.out); err == nil && len(left) > 0 {
		return fmt.Errorf("%s is not empty", r.out)
	}
	seconds := os.Getenv("SOURCE_DATE_EPOCH")
	if seconds == "" {
		out, err := output(ctx, r.root, "git", "log", "-1", "--format=%ct")
		if err != nil {
			return err
		}
		seconds = strings.TrimSpace(string(out))
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return err
	}
	r.built = time.Unix(unix, 0).UTC()
	files, err := r.charts()
	if err != nil {
		return err
	}
	notes, err := r.notes(tag)
	if err != nil {
		return err
	}
	license, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	var images []platformImage
	var plugins []plugin
	for _, platform := range r.platforms {
		goos, arch, _ := strings.Cut(platform, "/")
		binary, err := r.build(ctx, goos, arch)
		if err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
		name := fmt.Sprintf("fingerpost_%s_%s_%s", r.version, goos, arch)
		bill, err := sbom(binary, r.version)
		if err != nil {
			return err
		}
		archive := r.archive([]file{{"LICENSE", 0o644, license}, {"fingerpost", 0o755, binary}})
		files = append(files, file{name + ".tar.gz", 0o644, archive}, file{name + ".cdx.json", 0o644, bill})
		plugins = append(plugins, plugin{OS: goos, Arch: arch, File: name + ".tar.gz", Sum: sum(archive)})
		if goos == "linux" {
			images = append(images, platformImage{arch, binary})
		}
	}
	files = append(append(files, r.layout(images)...),
		file{"krew/fingerpost.yaml", 0o644, r.krew(plugins)}, file{"notes.md", 0o644, notes})
	return r.write(files)
}

// write writes the files, and their checksums.
func (r *release) write(files []file) error {
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	var sums bytes.Buffer
	for _, f := range files {
		fmt.Fprintf(&sums, "%s  %s\n", sum(f.data), f.name)
	}
	for _, f := range append(files, file{"checksums.txt", 0o644, sums.Bytes()}) {
		path := filepath.Join(r.out, f.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.data, f.mode); err != nil {
			return err
		}
	}
	return nil
}

// build returns the static binary for a platform, as make build has it.
func (r *release) build(ctx context.Context, goos, arch string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "fingerpost-release-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "fingerpost")
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags",
		"-s -w -X main.version="+r.version, "-o", path, "./cmd/fingerpost")
	command.Dir = r.root
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOOS="+goos, "GOARCH="+arch)
	if out, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	return os.ReadFile(path)
}

// charts packages them as helm does, and finds the version, which is the same in all of them.
func (r *release) charts() (files []file, err error) {
	for _, name := range []string{"fingerpost", "fingerpost-link"} {
		chart, err := loader.LoadDir(filepath.Join(r.root, "charts", name))
		if err != nil {
			return nil, err
		}
		m := chart.Metadata
		if r.version = cmp.Or(r.version, m.Version); m.Version != r.version || m.AppVersion != r.version {
			return nil, fmt.Errorf("chart %s has version %s and appVersion %s, want %s",
				name, m.Version, m.AppVersion, r.version)
		}
		var packed []file
		for _, f := range chart.Raw {
			packed = append(packed, file{name + "/" + f.Name, 0o644, f.Data})
		}
		slices.SortFunc(packed, func(a, b file) int { return cmp.Compare(a.name, b.name) })
		files = append(files, file{name + "-" + r.version + ".tgz", 0o644, r.archive(packed)})
	}
	return files, nil
}

// notes returns what the changelog has about this version; about what is not released if no tag is named.
func (r *release) notes(tag string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	heading := "Unreleased"
	if tag != "" {
		if heading = r.version; tag != "v"+r.version {
			return nil, fmt.Errorf("the tag is %s, and the charts have version %s", tag, r.version)
		}
	}
	for section := range strings.SplitSeq(string(text), "\n## ") {
		title, body, _ := strings.Cut(section, "\n")
		if strings.HasPrefix(title, heading) {
			return []byte(strings.TrimSpace(body) + "\n"), nil
		}
	}
	return nil, errors.New("CHANGELOG.md has no section " + heading)
}

// A plugin is what krew installs on a platform.
type plugin struct{ OS, Arch, File, Sum string }

// krew returns the manifest by which `kubectl krew install` finds the archives.
func (r *release) krew(plugins []plugin) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: fingerpost
spec:
  version: v%s
  homepage: %s
  shortDescription: Show and check the endpoints of linked clusters
  description: |
    Fingerpost streams the live endpoints of a Service in all linked clusters to the proxies of a mesh. This shows
    what it sends and why, the state of each cluster, and what is wrong with an installation; and it links clusters.
  platforms:
`, r.version, repository)
	for _, p := range plugins {
		fmt.Fprintf(&b, `  - selector: {matchLabels: {os: %s, arch: %s}}
    uri: %s/releases/download/v%s/%s
    sha256: %s
    bin: fingerpost
`, p.OS, p.Arch, repository, r.version, p.File, p.Sum)
	}
	return b.Bytes()
}

func sum(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

func output(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, name, args...)
	command.Dir = dir
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return out, nil
}

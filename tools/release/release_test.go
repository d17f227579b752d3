package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"sigs.k8s.io/yaml"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A release for this machine is whole, each part of it is what its readers expect, and the next one has the same bytes.
func TestRelease(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000") // a checkout may have no history
	platform := "linux/" + runtime.GOARCH
	var sums [2][]byte
	var r release
	for i := range sums {
		r = release{root: "../..", out: filepath.Join(t.TempDir(), "dist"), platforms: []string{platform}}
		if err := r.make(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		sums[i] = readFile(t, filepath.Join(r.out, "checksums.txt"))
	}
	if diff := cmp.Diff(string(sums[0]), string(sums[1])); diff != "" {
		t.Errorf("two releases of one commit differ:\n%s", diff)
	}

	// Everything is in the list, and as it is there.
	listed := map[string]string{}
	for line := range strings.Lines(string(sums[1])) {
		sum, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		listed[name] = sum
	}
	found := map[string]string{}
	err := filepath.WalkDir(r.out, func(path string, entry os.DirEntry, err error) error {
		if name, _ := filepath.Rel(r.out, path); err == nil && !entry.IsDir() && name != "checksums.txt" {
			found[name] = digest.FromBytes(readFile(t, path)).Encoded()
		}
		return err
	})
	if diff := cmp.Diff(listed, found); diff != "" || err != nil {
		t.Errorf("checksums (-listed +found):\n%s%v", diff, err)
	}

	stem := "fingerpost_" + r.version + "_linux_" + runtime.GOARCH
	archive := unpack(t, readFile(t, filepath.Join(r.out, stem+".tar.gz")))
	if names := slices.Sorted(maps.Keys(archive)); !slices.Equal(names, []string{"LICENSE", "fingerpost"}) {
		t.Errorf("the archive has %q", names)
	}
	checkSBOM(t, readFile(t, filepath.Join(r.out, stem+".cdx.json")), archive["fingerpost"])
	checkImage(t, r, archive["fingerpost"])
	checkKrew(t, readFile(t, filepath.Join(r.out, "krew/fingerpost.yaml")), r.version, stem+".tar.gz", listed)
	for _, name := range []string{"fingerpost", "fingerpost-link"} {
		chart, err := loader.LoadFile(filepath.Join(r.out, name+"-"+r.version+".tgz"))
		if err != nil {
			t.Fatal(err)
		}
		if chart.Name() != name || len(chart.Templates) < 4 || chart.Schema == nil {
			t.Errorf("package of chart %s: %s, %d templates", name, chart.Name(), len(chart.Templates))
		}
	}

	binary := filepath.Join(t.TempDir(), "kubectl-fingerpost")
	if err := os.WriteFile(binary, archive["fingerpost"], 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), binary, "version", "--client", "--short").Output(); err != nil ||
		string(out) != r.version+"\n" {
		t.Errorf("version: %q %v", out, err)
	}
	if err := r.make(t.Context(), ""); err == nil {
		t.Error("a release is written over another one")
	}
}

// The image has what the Dockerfile gives it, and each blob has the content of its digest.
func checkImage(t *testing.T, r release, binary []byte) {
	t.Helper()
	blob := func(d v1.Descriptor) []byte {
		data := readFile(t, filepath.Join(r.out, "image/blobs/sha256", d.Digest.Encoded()))
		if digest.FromBytes(data) != d.Digest || int64(len(data)) != d.Size {
			t.Errorf("%s is another blob than that of its descriptor", d.Digest)
		}
		return data
	}
	var top, index v1.Index
	decode(t, readFile(t, filepath.Join(r.out, "image/index.json")), &top)
	decode(t, blob(top.Manifests[0]), &index)
	if len(top.Manifests) != 1 || len(index.Manifests) != 1 ||
		index.Manifests[0].Platform.Architecture != runtime.GOARCH {
		t.Fatalf("%+v\n%+v", top, index)
	}
	var manifest v1.Manifest
	decode(t, blob(index.Manifests[0]), &manifest)
	var config v1.Image
	decode(t, blob(manifest.Config), &config)
	files := unpack(t, blob(manifest.Layers[0]))
	if !bytes.Equal(files["usr/local/bin/fingerpost"], binary) {
		t.Error("the image has another binary than the archive")
	}
	n := bytes.Count(files["etc/ssl/certs/ca-certificates.crt"], []byte("BEGIN CERTIFICATE"))
	if n < 100 || len(files) != 2 {
		t.Errorf("%d authorities in %d files", n, len(files))
	}
	if config.Config.User != "65532:65532" || config.OS != "linux" || len(config.RootFS.DiffIDs) != 1 {
		t.Errorf("%+v", config)
	}
	dockerfile := string(readFile(t, "../../Dockerfile"))
	for _, want := range []string{
		"USER " + config.Config.User, `ENTRYPOINT ["` + config.Config.Entrypoint[0] + `"]`, "ENV " + config.Config.Env[0],
		config.Config.Labels[v1.AnnotationDescription], config.Config.Labels[v1.AnnotationSource],
	} {
		if !strings.Contains(dockerfile, want) {
			t.Errorf("the Dockerfile does not have %s", want)
		}
	}
}

// The bill names every module that is in the binary.
func checkSBOM(t *testing.T, text, binary []byte) {
	t.Helper()
	var bill struct {
		Format     string      `json:"bomFormat"`
		Components []component `json:"components"`
	}
	decode(t, text, &bill)
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		t.Fatal(err)
	}
	if len(bill.Components) != len(info.Deps)+1 || len(info.Deps) < 20 || bill.Format != "CycloneDX" {
		t.Errorf("%d components of %d modules", len(bill.Components), len(info.Deps))
	}
	for _, c := range bill.Components {
		if c.Name == "" || c.Version == "" || !strings.HasPrefix(c.PURL, "pkg:golang/") {
			t.Errorf("%+v", c)
		}
	}
}

func checkKrew(t *testing.T, text []byte, version, archive string, sums map[string]string) {
	t.Helper()
	var manifest struct {
		Spec struct {
			Version   string
			Platforms []struct{ URI, SHA256, Bin string }
		}
	}
	if err := yaml.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	p := manifest.Spec.Platforms
	if len(p) != 1 || p[0].SHA256 != sums[archive] || !strings.HasSuffix(p[0].URI, "/v"+version+"/"+archive) ||
		manifest.Spec.Version != "v"+version {
		t.Errorf("%+v", manifest)
	}
}

// What is released is what the tag names, and the changelog has a section of it.
func TestTag(t *testing.T) {
	r := release{root: "../..", version: "0.0.0"}
	for tag, want := range map[string]string{
		"v0.0.1": "the tag is v0.0.1, and the charts have version 0.0.0",
		"v0.0.0": "CHANGELOG.md has no section 0.0.0",
	} {
		if _, err := r.notes(tag); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", tag, err, want)
		}
	}
}

func unpack(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	zipped, err := gzip.NewReader(bufio.NewReader(bytes.NewReader(data)))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(zipped); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeReg {
			if files[header.Name], err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func decode(t *testing.T, text []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

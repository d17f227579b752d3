package repo

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestImage builds the image for both architectures, looks at what a registry would get, and runs the one for
// this machine. No registry is asked, so the image that it is built FROM is not the real one but one of its
// name: the shell, the certificates and the Go of this machine, with Go's caches of this machine.
func TestImage(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the binary twice")
	}
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Skip("there is nothing to build the image with: apt-get install buildah")
	}
	buildah := newBuildah(t)

	mod, err := os.ReadFile(root + "/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := string(regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(mod)[1])
	mounts := buildah.base(t, "docker.io/library/golang:"+version)

	// Nothing is pulled, so the Dockerfile must name the Go of go.mod, and have it run on this machine
	// whatever it builds for. Debian 12's buildah needs $BUILDPLATFORM.
	args := append([]string{
		"build", "--pull=never", "--manifest", "fingerpost", "--platform", "linux/amd64,linux/arm64",
		"--build-arg", "BUILDPLATFORM=linux/" + runtime.GOARCH, "--build-arg", "VERSION=v1.2.3-test",
	}, mounts...)
	buildah.run(t, append(args, root)...)
	images := buildah.images(t, "fingerpost")
	if got := slices.Sorted(maps.Keys(images)); !slices.Equal(got, []string{"linux/amd64", "linux/arm64"}) {
		t.Fatalf("images for %q", got)
	}

	for platform, machine := range map[string]elf.Machine{
		"linux/amd64": elf.EM_X86_64,
		"linux/arm64": elf.EM_AARCH64,
	} {
		t.Run(platform, func(t *testing.T) {
			got := images[platform]
			if got.OS+"/"+got.Architecture != platform {
				t.Errorf("it is labelled for %s/%s", got.OS, got.Architecture)
			}
			// A number: where runAsNonRoot is asked for, a kubelet does not know whether a name is root's.
			if got.Config.User != "65532:65532" {
				t.Errorf("user %q", got.Config.User)
			}
			if want := []string{"/usr/local/bin/fingerpost"}; !slices.Equal(got.Config.Entrypoint, want) {
				t.Errorf("entrypoint %q, want %q", got.Config.Entrypoint, want)
			}
			if label := got.Config.Labels["org.opencontainers.image.version"]; label != "v1.2.3-test" {
				t.Errorf("labelled with version %q", label)
			}
			modes := map[string]os.FileMode{}
			for name, file := range got.files {
				modes[name] = file.mode
			}
			want := map[string]os.FileMode{
				"etc/ssl/certs/ca-certificates.crt": 0o644,
				"usr/local/bin/fingerpost":          0o755,
			}
			if diff := cmp.Diff(want, modes); diff != "" {
				t.Fatalf("files (-want +got):\n%s", diff)
			}
			binary, err := elf.NewFile(bytes.NewReader(got.files["usr/local/bin/fingerpost"].data))
			if err != nil {
				t.Fatal(err)
			}
			if binary.Machine != machine {
				t.Errorf("the binary is for %s, want %s", binary.Machine, machine)
			}
			for _, p := range binary.Progs {
				if p.Type == elf.PT_INTERP {
					t.Error("the binary asks for a dynamic linker, which the image has not")
				}
			}
		})
	}

	t.Run("run", func(t *testing.T) {
		container := strings.TrimSpace(
			buildah.run(t, "from", "--pull-never", "--platform", "linux/"+runtime.GOARCH, "fingerpost"),
		)
		if got := buildah.run(t, "run", container, "--",
			"fingerpost", "version", "--client", "--short"); got != "v1.2.3-test\n" {
			t.Errorf("fingerpost version: %q", got)
		}
		secret := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(secret, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := buildah.command("run", "-v", secret+":/kubeconfig:ro", container, "--",
			"/usr/local/bin/fingerpost", "serve", "--kubeconfig", "/kubeconfig").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "open /kubeconfig: permission denied") {
			t.Errorf("with a kubeconfig that is not the user's: %v\n%s", err, out)
		}
	})
}

// TestBuildContext needs nothing to build an image with: what the binary is made of is in what the build is given.
func TestBuildContext(t *testing.T) {
	ignore, err := os.ReadFile(root + "/.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	kept := strings.Split(string(ignore), "\n")

	for path := range strings.Lines(goCommand(t, "list", "-deps", module+"/cmd/fingerpost")) {
		own, is := strings.CutPrefix(strings.TrimSpace(path), module+"/")
		dir, _, _ := strings.Cut(own, "/")
		if is && !slices.Contains(kept, "!"+dir) {
			t.Errorf("the image would be built without %s: add !%s to .dockerignore", own, dir)
		}
	}
}

// buildah keeps all that it stores in this directory, as plain files. No daemon and no runtime of containers
// is needed.
type buildah string

func newBuildah(t *testing.T) buildah {
	t.Helper()
	b := buildah(t.TempDir())
	t.Cleanup(func() {
		if os.Geteuid() == 0 {
			return
		}
		// Files of the images are of other users, in a namespace of users.
		if out, err := b.command("unshare", "rm", "-rf",
			filepath.Join(string(b), "root")).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	return b
}

func (b buildah) command(args ...string) *exec.Cmd {
	dir := string(b)
	store := []string{
		"--storage-driver",
		"vfs",
		"--root",
		filepath.Join(dir, "root"),
		"--runroot",
		filepath.Join(dir, "run"),
	}
	cmd := exec.Command("buildah", append(store, args...)...)
	cmd.Env = append(os.Environ(), "BUILDAH_ISOLATION=chroot", "TMPDIR="+dir)
	return cmd
}

// run returns what the command writes to its standard output.
func (b buildah) run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := b.command(args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("buildah %s: %v\n%s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String()
}

// base makes the image that the Dockerfile builds FROM, and returns what is to be mounted into it. As in the
// real one, cgo is used unless it is turned off.
func (b buildah) base(t *testing.T, name string) []string {
	t.Helper()
	goEnv, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT", "GOCACHE", "GOMODCACHE", "GOPROXY",
		"GOSUMDB").
		Output()
	if err != nil {
		t.Fatal(err)
	}
	env := strings.Split(string(goEnv), "\n")
	dir := t.TempDir()
	const files = `umask 022
mkdir "$0/tmp"
cp -L --parents /bin/sh $(ldd /bin/sh | grep -o '/[^ ]*') /etc/ssl/certs/ca-certificates.crt "$0"`
	if out, err := exec.CommandContext(t.Context(), "sh", "-euc", files, dir).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", files, err, out)
	}
	file := filepath.Join(t.TempDir(), "Dockerfile")
	text := "FROM scratch\nCOPY . /\nENV PATH=/usr/local/go/bin:/bin CGO_ENABLED=1 GOTOOLCHAIN=local" +
		" GOCACHE=/cache/build GOMODCACHE=/cache/mod" +
		" GOPROXY=" + env[3] + " GOSUMDB=" + env[4] + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b.run(t, "build", "--tag", name, "--file", file, dir)
	return []string{"-v", env[0] + ":/usr/local/go:ro", "-v", env[1] + ":/cache/build", "-v", env[2] + ":/cache/mod"}
}

type image struct {
	Architecture, OS string
	Config           struct {
		User       string
		Entrypoint []string
		Labels     map[string]string
	}
	files map[string]imageFile
}

type imageFile struct {
	mode os.FileMode
	data []byte
}

// images returns what is pushed of a list of images, by platform.
func (b buildah) images(t *testing.T, list string) map[string]image {
	t.Helper()
	dir := t.TempDir()
	b.run(t, "manifest", "push", "--all", list, "dir:"+dir)
	open := func(name string) *os.File {
		file, err := os.Open(filepath.Join(dir, strings.TrimPrefix(name, "sha256:")))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		return file
	}
	read := func(name string, into any) {
		if err := json.NewDecoder(open(name)).Decode(into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	var index struct {
		Manifests []struct {
			Digest   string
			Platform struct{ OS, Architecture string }
		}
	}
	read("manifest.json", &index)
	images := map[string]image{}
	for _, entry := range index.Manifests {
		var manifest struct {
			Config struct{ Digest string }
			Layers []struct{ Digest string }
		}
		read(entry.Digest+".manifest.json", &manifest)
		image := image{files: map[string]imageFile{}}
		read(manifest.Config.Digest, &image)
		for _, layer := range manifest.Layers {
			archive := tar.NewReader(open(layer.Digest))
			for {
				header, err := archive.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if header.Typeflag == tar.TypeDir {
					continue
				}
				data, err := io.ReadAll(archive)
				if err != nil {
					t.Fatal(err)
				}
				image.files[header.Name] = imageFile{header.FileInfo().Mode(), data}
			}
		}
		images[entry.Platform.OS+"/"+entry.Platform.Architecture] = image
	}
	return images
}

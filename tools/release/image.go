package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"encoding/pem"
	"path"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// A platformImage is what an image is made of.
type platformImage struct {
	arch   string
	binary []byte
}

// layout returns the files of an OCI layout with one index of the images, which are those of the Dockerfile.
func (r *release) layout(images []platformImage) []file {
	var files []file
	add := func(mediaType string, data []byte) v1.Descriptor {
		d := v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
		files = append(files, file{"image/blobs/sha256/" + d.Digest.Encoded(), 0o644, data})
		return d
	}
	encode := func(value any) []byte {
		data, err := json.Marshal(value)
		if err != nil {
			panic("BUG: plain values cannot be encoded: " + err.Error())
		}
		return data
	}
	addJSON := func(mediaType string, value any) v1.Descriptor { return add(mediaType, encode(value)) }
	labels := map[string]string{
		v1.AnnotationTitle: "fingerpost",
		v1.AnnotationDescription: "Streams the live endpoints of a Service in all linked Kubernetes clusters to the " +
			"proxies of a mesh.",
		v1.AnnotationSource:   repository,
		v1.AnnotationLicenses: "Apache-2.0",
		v1.AnnotationVersion:  r.version,
	}
	index := v1.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Annotations: labels,
	}
	for _, i := range images {
		content := r.tar([]file{
			{"etc/ssl/certs/ca-certificates.crt", 0o644, authorities()},
			{"usr/local/bin/fingerpost", 0o755, i.binary},
		})
		platform := v1.Platform{OS: "linux", Architecture: i.arch}
		config := addJSON(v1.MediaTypeImageConfig, v1.Image{
			Created:  &r.built,
			Platform: platform,
			Config: v1.ImageConfig{
				User: "65532:65532", Env: []string{"PATH=/usr/local/bin"}, Labels: labels,
				Entrypoint: []string{"/usr/local/bin/fingerpost"},
			},
			RootFS:  v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(content)}},
			History: []v1.History{{Created: &r.built, CreatedBy: "make release"}},
		})
		manifest := addJSON(v1.MediaTypeImageManifest, v1.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
			Config: config, Layers: []v1.Descriptor{add(v1.MediaTypeImageLayerGzip, r.gzip(content))},
			Annotations: labels,
		})
		manifest.Platform = &platform
		index.Manifests = append(index.Manifests, manifest)
	}
	all := addJSON(v1.MediaTypeImageIndex, index)
	all.Annotations = map[string]string{v1.AnnotationRefName: r.version}
	top := encode(v1.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex,
		Manifests: []v1.Descriptor{all},
	})
	return append(files, file{"image/" + v1.ImageIndexFile, 0o644, top},
		file{"image/" + v1.ImageLayoutFile, 0o644, encode(v1.ImageLayout{Version: v1.ImageLayoutVersion})})
}

// authorities returns those that Mozilla trusts, but for those that it trusts under conditions which a file cannot
// hold. They are for API servers whose kubeconfig names no authority.
func authorities() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a Buffer takes everything
		}
	}
	return b.Bytes()
}

func (r *release) archive(files []file) []byte { return r.gzip(r.tar(files)) }

// tar packs files, and the directories that lead to them.
func (r *release) tar(files []file) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	write := func(h *tar.Header, data []byte) {
		h.ModTime, h.Size = r.built, int64(len(data))
		err := w.WriteHeader(h)
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			panic("BUG: a Buffer refuses what is written: " + err.Error())
		}
	}
	made := map[string]bool{".": true}
	var directory func(name string)
	directory = func(name string) {
		if made[name] {
			return
		}
		made[name] = true
		directory(path.Dir(name))
		write(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}, nil)
	}
	for _, f := range files {
		directory(path.Dir(f.name))
		write(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: int64(f.mode)}, f.data)
	}
	if err := w.Close(); err != nil {
		panic("BUG: an archive is not whole: " + err.Error())
	}
	return b.Bytes()
}

func (r *release) gzip(data []byte) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.DefaultCompression)
	_, _ = w.Write(data) // a Buffer takes everything
	_ = w.Close()
	return b.Bytes()
}

package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Bounds of manifests that a command reads. Those of a document are package manifests's.
const (
	maxManifests     = 256 << 20 // bytes of all of them
	maxManifestFiles = 10_000    // of a directory
	maxRedirects     = 5
	manifestTimeout  = 30 * time.Second // of a URL, with its redirects and its body
)

var (
	// errSource is that the argument names nothing that is read.
	errSource      = errors.New("URLs are read by https only")
	errUnencrypted = errors.New("that is not https")
)

// sources open what the argument of a command names, and bound what is read of it.
type sources struct {
	client *http.Client // for URLs; nil for a new one
	stdin  io.Reader
	left   int64 // bytes that may still be read
}

// each calls read with each text that an argument names: a file, all manifests below a directory, in the order of their
// names, what is served at a URL, or stdin. The first error of read ends it.
func (s *sources) each(ctx context.Context, from string, read func(name string, text io.Reader) error) error {
	if from == "-" {
		return read("stdin", s.bound(s.stdin))
	}
	if scheme, _, is := strings.Cut(from, "://"); is {
		if scheme != "https" {
			return fmt.Errorf("%s: %w", from, errSource)
		}
		return s.get(ctx, from, read)
	}

	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return s.file(from, read)
	}
	paths, err := manifestsBelow(from)
	for i := 0; err == nil && i < len(paths); i++ {
		err = s.file(paths[i], read)
	}
	return err
}

// manifestsBelow returns the paths of the manifests below a directory. It follows no links to other directories.
func manifestsBelow(directory string) (paths []string, err error) {
	err = filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)):
			return nil
		case len(paths) == maxManifestFiles:
			return fmt.Errorf("there are more than %d manifests below %s", maxManifestFiles, directory)
		}
		paths = append(paths, path)
		return nil
	})

	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("there is no .yaml, .yml or .json below %s", directory)
	}
	return paths, err
}

func (s *sources) file(path string, read func(name string, text io.Reader) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return read(path, s.bound(file))
}

// get reads what is served at a URL.
func (s *sources) get(ctx context.Context, from string, read func(name string, text io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, manifestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return err
	}

	client := http.Client{CheckRedirect: checkRedirect, Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}}
	if s.client != nil {
		client.Transport = s.client.Transport
	}

	response, err := client.Do(request)
	if err != nil {
		return err
	}

	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: HTTP %s", redacted(from), response.Status)
	}
	return read(redacted(from), s.bound(response.Body))
}

// checkRedirect keeps what is read encrypted.
func checkRedirect(to *http.Request, via []*http.Request) error {
	switch {
	case to.URL.Scheme != "https":
		return fmt.Errorf("it leads to %s, and %w", to.URL.Redacted(), errUnencrypted)
	case len(via) >= maxRedirects:
		return fmt.Errorf("there are more than %d redirects", maxRedirects)
	}
	return nil
}

// redacted returns a URL without its password.
func redacted(from string) string {
	parsed, err := url.Parse(from)
	if err != nil {
		return "the URL"
	}
	return parsed.Redacted()
}

func (s *sources) bound(text io.Reader) io.Reader { return &boundedReader{text, &s.left} }

// A boundedReader fails beyond a number of bytes that several share.
type boundedReader struct {
	from io.Reader
	left *int64
}

// Read reads, and fails once there is more than may be read.
func (r *boundedReader) Read(to []byte) (int, error) {
	if *r.left < 0 {
		return 0, fmt.Errorf("there are more than %d MiB of manifests", maxManifests>>20)
	}
	n, err := r.from.Read(to)
	*r.left -= int64(n)
	return n, err
}

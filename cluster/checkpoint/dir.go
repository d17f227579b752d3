package checkpoint

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	prefix, suffix = "cluster-", ".checkpoint"
	unfinished     = ".writing-*"

	maxSize     = 1 << 30 // of a file
	maxHeader   = 1 << 16
	maxNameSize = 240 // of a file; what a cluster may be called is shorter
)

// A Dir holds the checkpoints of clusters, one file each. Its methods may be called from any goroutine, but for two
// that concern the same cluster.
type Dir struct {
	path   string
	maxAge time.Duration
}

// NewDir returns the Dir at a path, which the first Save creates. Checkpoints older than maxAge are not used.
func NewDir(path string, maxAge time.Duration) *Dir { return &Dir{path: path, maxAge: maxAge} }

func (d *Dir) file(cluster string) (string, error) {
	name := prefix + url.PathEscape(cluster) + suffix
	if len(name) > maxNameSize {
		return "", fmt.Errorf("the name of the cluster is longer than %d bytes", maxNameSize-len(prefix+suffix))
	}
	return filepath.Join(d.path, name), nil
}

// Clean deletes what a process that was killed in a Save has left.
func (d *Dir) Clean() error {
	left, err := filepath.Glob(filepath.Join(d.path, unfinished))
	for _, name := range left {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// Save replaces the checkpoint of a cluster. It holds as of AsOf, or as of now if that is zero.
func (d *Dir) Save(c Checkpoint) error { return d.plain(d.save(c)) }

func (d *Dir) save(checkpoint Checkpoint) error {
	name, err := d.file(checkpoint.Cluster)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return err
	}

	asOf := checkpoint.AsOf
	if asOf.IsZero() {
		asOf = time.Now()
	}
	file, err := os.CreateTemp(d.path, unfinished)
	if err != nil {
		return err
	}

	err = errors.Join(encode(file, checkpoint), file.Close())
	if err == nil {
		err = os.Chtimes(file.Name(), asOf, asOf)
	}

	if err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(file.Name()))
	}
	return err
}

// plain returns why the directory cannot be written, without the name of the file: the one that is written first
// has another name each time, and the same fault should read the same.
func (d *Dir) plain(err error) error {
	if reason, is := errors.AsType[syscall.Errno](err); is {
		return fmt.Errorf("%s: %w", d.path, reason)
	}
	return err
}

// Confirm records that the checkpoint of a cluster still holds.
func (d *Dir) Confirm(cluster string) error {
	name, err := d.file(cluster)
	if err != nil {
		return err
	}
	now := time.Now()
	return d.plain(os.Chtimes(name, now, now))
}

// Remove deletes the checkpoint of a cluster, if there is one.
func (d *Dir) Remove(cluster string) error {
	name, err := d.file(cluster)
	if err == nil {
		err = os.Remove(name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ErrNone is returned for a cluster without a checkpoint.
var ErrNone = errors.New("there is no checkpoint")

// Load returns the checkpoint of a cluster.
func (d *Dir) Load(cluster string) (Checkpoint, error) {
	name, err := d.file(cluster)
	if err != nil {
		return Checkpoint{}, err
	}

	checkpoint, err := d.read(name)
	if err == nil && checkpoint.Cluster != cluster {
		err = fmt.Errorf("it is of cluster %s", checkpoint.Cluster)
	}

	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Checkpoint{}, ErrNone
	case err != nil:
		return Checkpoint{}, fmt.Errorf("%s: %w", name, err)
	}
	return checkpoint, nil
}

func (d *Dir) read(name string) (Checkpoint, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return Checkpoint{}, err
	case info.Size() > maxSize:
		return Checkpoint{}, fmt.Errorf("it is larger than %d bytes", maxSize)
	case time.Since(info.ModTime()) > d.maxAge:
		return Checkpoint{}, fmt.Errorf("it is older than %v", d.maxAge)
	}

	c, err := decodeFile(name)
	if c.AsOf = info.ModTime(); time.Since(c.AsOf) < 0 { // the clock was set back
		c.AsOf = time.Now()
	}
	return c, err
}

// decodeFile reads a file twice, to verify and to decode it, and never holds more than a part of it.
func decodeFile(name string) (Checkpoint, error) {
	file, err := os.Open(name) //nolint:gosec // a file of the directory that the operator names
	if err != nil {
		return Checkpoint{}, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return Checkpoint{}, err
	}

	size := info.Size() - crc32.Size
	if size < 0 {
		return Checkpoint{}, errTorn
	}

	sum, want := crc32.New(castagnoli), make([]byte, crc32.Size)
	if _, err := io.CopyN(sum, file, size); err != nil {
		return Checkpoint{}, err
	}
	if _, err := io.ReadFull(file, want); err != nil {
		return Checkpoint{}, err
	}

	if !bytes.Equal(sum.Sum(nil), want) {
		return Checkpoint{}, errTorn
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return Checkpoint{}, err
	}

	return decodeContent(bufio.NewReaderSize(io.LimitReader(file, size), 1<<16))
}

// Headers returns those of the checkpoints that are there and not too old. It leaves out what cannot be read.
func (d *Dir) Headers() (all []Header, err error) {
	entries, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}

	for _, e := range entries {
		info, statErr := e.Info()
		if statErr != nil || !strings.HasPrefix(e.Name(), prefix) || time.Since(info.ModTime()) > d.maxAge {
			continue
		}
		if h, readErr := readHeader(filepath.Join(d.path, e.Name())); readErr == nil {
			all = append(all, h)
		}
	}
	return all, err
}

func readHeader(name string) (Header, error) {
	f, err := os.Open(name) //nolint:gosec // a file of the directory that the operator names
	if err != nil {
		return Header{}, err
	}
	defer func() { _ = f.Close() }()
	return decodeHeader(decMode.NewDecoder(io.LimitReader(f, maxHeader)))
}

package server

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	fedwatch "github.com/fingerpost/fingerpost/federation/watch"
)

// A Reload is a value that is made of files, which may be replaced at any time and need not be there yet. While new
// files cannot be used, the value made before stays in force, and the log has the reason.
type Reload[T any] struct {
	log   logr.Logger
	name  string
	files reread[T]
	since time.Time // when it was opened
	used  atomic.Pointer[time.Time]
	first fedwatch.Value[bool]
}

// OpenReload reads files, from whose contents parse makes a value. name is what the value is, for people.
func OpenReload[T any](
	log logr.Logger, name string, paths []string, parse func(contents [][]byte) (*T, error),
) *Reload[T] {
	r := &Reload[T]{log: log, name: name, files: reread[T]{paths: paths, parse: parse}, since: time.Now()}
	r.reload()
	return r
}

// Load returns the value in force; nil if there was none yet.
func (r *Reload[T]) Load() *T { return r.files.value.Load() }

// Problem returns why the files could not be used last; empty if they were.
func (r *Reload[T]) Problem() string { return r.files.unreadable() }

// Age returns how long ago the files were last as the value in force has them. It grows while they cannot be used.
func (r *Reload[T]) Age() time.Duration {
	if used := r.used.Load(); used != nil {
		return time.Since(*used)
	}
	return time.Since(r.since)
}

// Loaded returns the Condition that there is a value.
func (r *Reload[T]) Loaded() Condition {
	c := Reached(r.name, &r.first)
	c.Missing = func() []string {
		if problem := r.Problem(); problem != "" {
			return []string{problem}
		}
		return nil
	}
	return c
}

// Start reads the files again when they change, until ctx ends.
func (r *Reload[T]) Start(ctx context.Context) error {
	reloadUntilDone(ctx, r.reload)
	return nil
}

func (r *Reload[T]) reload() {
	changed, err := r.files.read()
	if r.files.isNews(err) {
		r.log.Error(err, "Files cannot be used: what was read of them before stays in force", "of", r.name,
			"files", r.files.paths)
	}
	if err != nil {
		return
	}

	r.used.Store(new(time.Now()))
	if changed {
		r.log.Info("Files are in use", "of", r.name, "files", r.files.paths)
		r.first.Store(true)
	}
}

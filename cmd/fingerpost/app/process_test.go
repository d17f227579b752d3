package app

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
)

// a partsLog is what happens, and what is logged, in order.
type partsLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *partsLog) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *partsLog) logger() logr.Logger {
	return funcr.New(func(_, line string) { l.add(line) }, funcr.Options{})
}

// ending returns a Part that takes a time to end, and an error with which it does.
func (l *partsLog) ending(name string, takes time.Duration, err error) Part {
	return Part{Name: name, Run: func(ctx context.Context) error {
		<-ctx.Done()
		timer := time.NewTimer(takes)
		<-timer.C
		l.add(name + " ends")
		return err
	}}
}

func runParts(ctx context.Context, log *partsLog, parts ...Part) error {
	p := newProcess(log.logger(), "test", nil, time.Second)
	p.Add(parts...)
	return p.Run(ctx)
}

var errPlanted = errors.New("planted")

// An error of one Part ends the others, each in its time; it is what the process ends with, and others are logged.
func TestErrorOfOnePartEndsTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &partsLog{}
		began := time.Now()
		err := runParts(t.Context(), log,
			log.ending("second", 2*time.Second, errors.New("later")),
			log.ending("first", time.Second, context.Canceled),
			Part{Name: "done", Run: func(context.Context) error { return nil }},
			Part{Name: "fails", Run: func(context.Context) error {
				timer := time.NewTimer(time.Minute)
				<-timer.C
				return errPlanted
			}},
		)
		if took := time.Since(began); !errors.Is(err, errPlanted) || err.Error() != "planted" ||
			took != time.Minute+2*time.Second {
			t.Errorf("%v after %s", err, took)
		}
		want := []string{
			`"level"=0 "msg"="Ready" "after"="0s"`, "first ends", "second ends",
			`"msg"="A part of the process has failed while the process stops" "error"="later" "part"="second"`,
		}
		if !slices.Equal(log.lines, want) {
			t.Errorf("%q, want %q", log.lines, want)
		}
	})
}

// A process that is asked to end waits for all Parts, and logs which ones take long.
func TestProcessWaitsForParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &partsLog{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		err := runParts(ctx, log, log.ending("slow", 8*time.Second, nil), log.ending("fast", time.Second, nil))
		if took := time.Since(began); err != nil || took != time.Hour+8*time.Second {
			t.Errorf("%v after %s", err, took)
		}
		want := []string{
			`"level"=0 "msg"="Ready" "after"="0s"`, "fast ends",
			`"level"=0 "msg"="The process stops, and waits for parts that take long" "parts"=["slow"]`,
			"slow ends",
		}
		if !slices.Equal(log.lines, want) {
			t.Errorf("%q, want %q", log.lines, want)
		}
	})
}

// A process waits for no Part for ever.
func TestProcessEndsWithoutParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, stuck := &partsLog{}, make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		err := runParts(ctx, log, log.ending("fast", 0, nil), Part{Name: "stuck", Run: func(context.Context) error {
			<-stuck
			return nil
		}})
		const want = "parts of the process have not ended within 11s: stuck"
		if took := time.Since(began); err == nil || err.Error() != want || took != 11*time.Second {
			t.Errorf("%v after %s", err, took)
		}
		close(stuck)
	})
}

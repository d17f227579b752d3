package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap/zapcore"
)

// logged is what was written to a log.
type logged struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(b)
}

func (l *logged) lines(t *testing.T) (all []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("%v: %q", err, line)
		}
		all = append(all, fields)
	}
	return all
}

// One message about one cluster, over and over, is a few lines a second and a count, and hides nothing else.
func TestLogPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to logged
		log := newLogger(zapcore.AddSync(&to), zapcore.InfoLevel, "json")
		evil, good := log.WithValues("cluster", "evil"), log.WithValues("cluster", "good")
		const seconds, perSecond = 30, 50
		for i := range seconds * perSecond {
			evil.Info("it is wrong", "n", i)
			log.Info("in its fields", "cluster", "evil", "n", i)
			log.Error(errors.New("of no cluster"), "a panic")
			if i%perSecond == 0 {
				good.Info("it is wrong", "n", i)
				evil.Info("something else", "n", i)
			}
			time.Sleep(time.Second / perSecond) //nolint:forbidigo // virtual time
		}
		time.Sleep(2 * logSummary) //nolint:forbidigo // virtual time
		written, left := map[string]int{}, map[string]int{}
		for _, line := range to.lines(t) {
			if n, is := line["lines"].(float64); is {
				left[fmt.Sprint(line["cluster"], ": ", line["message"])] += int(n)
			} else {
				written[fmt.Sprint(line["cluster"], ": ", line["msg"])]++
			}
		}
		for _, kind := range []string{"evil: it is wrong", "evil: in its fields", "<nil>: a panic"} {
			if n := written[kind]; n < logBurst || n > logBurst+seconds+1 || n+left[kind] != seconds*perSecond {
				t.Errorf("%s: %d lines, %d are counted", kind, n, left[kind])
			}
		}
		for _, kind := range []string{"good: it is wrong", "evil: something else"} {
			if written[kind] != seconds || left[kind] != 0 {
				t.Errorf("%s: %d lines, %d are counted", kind, written[kind], left[kind])
			}
		}
	})
}

// What is remembered of the log is bounded, and forgotten once it is quiet.
func TestLogBuckets(t *testing.T) {
	b := logBuckets{all: map[logKind]*logBucket{}}
	now := time.Unix(1e9, 0)
	for i := range 2 * maxBuckets {
		b.take(logKind{fmt.Sprint(i), "m"}, now, func(int) {})
	}
	if n := len(b.all); n > maxBuckets+1 {
		t.Errorf("%d buckets", n)
	}
	b.take(logKind{"another", "m"}, now.Add(2*logInterval), func(int) {})
	if n := len(b.all); n > 2 {
		t.Errorf("%d buckets are left", n)
	}
}

// No line does anything to a terminal, whatever is in it, and none is more than a line.
func TestLogIsPrintable(t *testing.T) {
	const text = "\x1b[2J\u009b31m\u202e\x7f\xff\nforged"
	for _, format := range []string{"json", "plain"} {
		var to logged
		log := newLogger(zapcore.AddSync(&to), zapcore.InfoLevel, format)
		log.Info("named", "name", text)
		log.Error(errors.New(text), "failed", "all", []string{text})
		got := to.String()
		if strings.ContainsAny(got, "\x1b\u009b\u202e\x7f") || strings.Count(got, "\n") != 2 {
			t.Errorf("%s: %q", format, got)
		}
	}
}

package server

import (
	"bytes"
	"sync"
	"time"
	"unicode"

	"go.uber.org/zap/zapcore"
	"golang.org/x/time/rate"
)

// The log is paced, because much of what is logged is caused by others: a linked cluster can have the same thing be
// wrong and right again as often as it likes, and a client can send what cannot be read.
//
// Lines with one message about one cluster (the field "cluster"; none is one, too) share a bucket of logBurst lines,
// which fills by one each logInterval. What finds it empty is left out and counted. The count is a line of its own,
// logSummary after the first that was left out, and again as long as more are. So a flood of one message about one
// cluster is some 65 lines a minute, and hides nothing about another cluster, nor another message about this one.
//
// A bucket that is full again is that of a message that was never logged: it is forgotten when there are maxBuckets.
// Messages are constants of the program. If that many buckets are in use, further ones share one.
//
// What is written is printable: strings in it may come from anywhere, and a terminal or a pager may show it.
const (
	logBurst    = 100
	logInterval = time.Second
	logSummary  = 10 * time.Second
	maxBuckets  = 10_000
	clusterKey  = "cluster"
)

// pacedCore is a [zapcore.Core] with that pace.
type pacedCore struct {
	zapcore.Core
	cluster string // in the fields of the logger
	buckets *logBuckets
}

// logBuckets are shared by all loggers.
type logBuckets struct {
	mu     sync.Mutex // guards all below
	all    map[logKind]*logBucket
	pruned time.Time
}

// logKind is what lines have in common that share a bucket.
type logKind struct{ cluster, message string }

type logBucket struct {
	tokens  *rate.Limiter
	leftOut int // since the last line that counts them
}

func newPacedCore(to zapcore.Core) zapcore.Core {
	return &pacedCore{Core: to, buckets: &logBuckets{all: map[logKind]*logBucket{}}}
}

// With returns a core that adds fields.
func (c *pacedCore) With(fields []zapcore.Field) zapcore.Core {
	return &pacedCore{Core: c.Core.With(fields), cluster: clusterOf(fields, c.cluster), buckets: c.buckets}
}

// Check adds the core to an entry that is logged.
func (c *pacedCore) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

// Write writes an entry, unless the bucket of its kind is empty.
func (c *pacedCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	kind := logKind{clusterOf(fields, c.cluster), e.Message}
	if !c.buckets.take(kind, e.Time, func(n int) { c.summarize(e, kind, n) }) {
		return nil
	}
	return c.Core.Write(e, fields)
}

// summarize writes how many lines like e were left out.
func (c *pacedCore) summarize(e zapcore.Entry, kind logKind, n int) {
	like := zapcore.Field{Key: "message", Type: zapcore.StringType, String: kind.message}
	count := zapcore.Field{Key: "lines", Type: zapcore.Int64Type, Integer: int64(n)}
	fields := []zapcore.Field{like, count}
	if c.cluster == "" && kind.cluster != "" {
		fields = append(fields, zapcore.Field{Key: clusterKey, Type: zapcore.StringType, String: kind.cluster})
	}
	e.Time, e.Message, e.Stack = time.Now(), "Lines of the log were left out: there were too many of this message", ""
	_ = c.Core.Write(e, fields) // there is nowhere else to report that it cannot be written
}

// clusterOf returns the name of the cluster in fields, or else another one.
func clusterOf(fields []zapcore.Field, other string) string {
	for i := range fields {
		if f := &fields[i]; f.Key == clusterKey && f.Type == zapcore.StringType {
			return f.String
		}
	}
	return other
}

// take reports whether a line of a kind may be written at a time. Of one that may not, summarize is called some time
// later, with how many there were.
func (b *logBuckets) take(kind logKind, now time.Time, summarize func(leftOut int)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket := b.bucket(kind, now)
	if bucket.tokens.AllowN(now, 1) {
		return true
	}
	bucket.leftOut++
	if bucket.leftOut == 1 {
		time.AfterFunc(logSummary, func() { summarize(b.reset(bucket)) })
	}
	return false
}

// bucket returns the bucket of a kind. It needs mu.
func (b *logBuckets) bucket(kind logKind, now time.Time) *logBucket {
	if known := b.all[kind]; known != nil {
		return known
	}

	if len(b.all) >= maxBuckets && now.Sub(b.pruned) >= logInterval {
		b.pruned = now
		for k, old := range b.all {
			if old.leftOut == 0 && old.tokens.TokensAt(now) >= logBurst {
				delete(b.all, k)
			}
		}
	}

	if len(b.all) >= maxBuckets {
		kind = logKind{}
		if shared := b.all[kind]; shared != nil {
			return shared
		}
	}
	added := &logBucket{tokens: rate.NewLimiter(rate.Every(logInterval), logBurst)}
	b.all[kind] = added
	return added
}

// reset returns how many lines were left out, which from now on are counted.
func (b *logBuckets) reset(bucket *logBucket) (leftOut int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	leftOut, bucket.leftOut = bucket.leftOut, 0
	return leftOut
}

// printableSyncer replaces what a terminal interprets, such as escapes and marks that reverse the direction of a text.
type printableSyncer struct{ zapcore.WriteSyncer }

// Write writes one entry.
func (s printableSyncer) Write(line []byte) (int, error) {
	shown := func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' || r == '\t' {
			return r
		}
		return unicode.ReplacementChar
	}
	if bytes.ContainsFunc(line, func(r rune) bool { return shown(r) != r }) {
		if _, err := s.WriteSyncer.Write(bytes.Map(shown, line)); err != nil {
			return 0, err
		}
		return len(line), nil
	}

	return s.WriteSyncer.Write(line)
}

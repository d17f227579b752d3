// Package logs has a level that logr lacks, for what an operator must act on.
package logs

import (
	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
)

// Warn writes a line of level warn. A logger of another kind than the process's own has it as one of level info.
func Warn(log logr.Logger, message string, keysAndValues ...any) {
	under, is := log.GetSink().(zapr.Underlier)
	if !is {
		log.WithCallDepth(1).Info(message, keysAndValues...)
		return
	}
	// zapr skips a caller more than there is here
	under.GetUnderlying().WithOptions(zap.AddCallerSkip(-1)).Sugar().Warnw(message, keysAndValues...)
}

package server

import (
	"flag"
	"fmt"
	"os"
	"strconv"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// levels are Linkerd's log levels: the level of our own lines, and the verbosity of client-go's.
var levels = map[string]struct {
	zap  zapcore.Level
	klog int
}{
	"panic": {zapcore.PanicLevel, 0},
	"fatal": {zapcore.FatalLevel, 0},
	"error": {zapcore.ErrorLevel, 0},
	"warn":  {zapcore.WarnLevel, 0},
	"info":  {zapcore.InfoLevel, 2},
	"debug": {zapcore.DebugLevel, 6},
	"trace": {-5, 10},
}

// NewLogger returns the logger of this process, and sets it as that of client-go and controller-runtime.
func NewLogger(level, format string) (logr.Logger, error) {
	l, known := levels[level]
	switch {
	case !known:
		return logr.Logger{}, fmt.Errorf("-log-level %q is none of error, warn, info, debug and trace", level)
	case format != "plain" && format != "json":
		return logr.Logger{}, fmt.Errorf("-log-format %q is neither plain nor json", format)
	}
	log := newLogger(zapcore.Lock(os.Stderr), l.zap, format)
	setLibraryLoggers(log, level)
	return log, nil
}

// newLogger returns a logger that writes lines of a level and above, or more verbose ones, in a format.
func newLogger(to zapcore.WriteSyncer, level zapcore.Level, format string) logr.Logger {
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	encoder, options := zapcore.NewJSONEncoder(config), []zap.Option{zap.AddCaller()}
	if format == "plain" {
		config.EncodeTime = zapcore.ISO8601TimeEncoder
		config.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder, options = zapcore.NewConsoleEncoder(config), nil
	}
	core := newPacedCore(zapcore.NewCore(encoder, printableSyncer{to}, level))
	return zapr.NewLogger(zap.New(core, append(options, zap.ErrorOutput(to))...))
}

// setLibraryLoggers makes libraries log with our logger. Lines of client-go appear from level debug on.
func setLibraryLoggers(log logr.Logger, level string) {
	ctrl.SetLogger(log)
	klog.SetLogger(log.WithName("client-go").V(1))
	fs := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(fs)
	_ = fs.Set("v", strconv.Itoa(levels[level].klog)) // a number is a valid verbosity
}

package logs

import (
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestWarn(t *testing.T) {
	core, lines := observer.New(zapcore.WarnLevel)
	log := zapr.NewLogger(zap.New(core, zap.AddCaller())).WithName("a").WithValues("cluster", "west")
	log.Info("not seen")
	Warn(log, "seen", "n", 1)
	all := lines.All()
	if len(all) != 1 || all[0].Level != zapcore.WarnLevel || all[0].LoggerName != "a" {
		t.Fatalf("%+v", all)
	}
	if fields := all[0].ContextMap(); fields["cluster"] != "west" || fields["n"] != int64(1) {
		t.Errorf("%v", fields)
	}
	if file := all[0].Caller.TrimmedPath(); file[:len("logs/logs_test.go")] != "logs/logs_test.go" {
		t.Errorf("the caller is %s", file)
	}

	other := ""
	Warn(funcr.New(func(_, args string) { other = args }, funcr.Options{}), "seen", "n", 1)
	if want := `"level"=0 "msg"="seen" "n"=1`; other != want {
		t.Errorf("%s, want %s", other, want)
	}
}

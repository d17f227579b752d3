package fingerpost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// testsTimeout is how long the tests of one package may take: less than go test has.
const testsTimeout = 25 * time.Minute

// TestMain is the TestMain of a package of tests that share the server's binary. It builds that, with the race detector
// or without, has run run the tests, and ends the process with their code, or with 1 and the error.
func TestMain(ctx context.Context, race bool, run func(ctx context.Context, binary string) (code int, err error)) {
	code, err := buildAndRun(ctx, race, run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(
	ctx context.Context, race bool, run func(ctx context.Context, binary string) (code int, err error),
) (code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, testsTimeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "fingerpost-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	binary, err := Build(ctx, dir, race)
	if err != nil {
		return 1, err
	}
	return run(ctx, binary)
}

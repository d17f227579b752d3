package controlplane

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
)

// A process is one run of a component.
type process struct {
	component Component
	log       string // path
	command   *exec.Cmd

	// exited is closed when the process is gone and reaped; then err holds how
	// it ended.
	exited chan struct{}
	err    error
}

// startProcess starts the component and appends what it prints to its log.
func (c *Cluster) startProcess(component Component, args []string) (*process, error) {
	p := &process{
		component: component,
		log:       filepath.Join(c.logs, c.name+"-"+string(component)+".log"),
		exited:    make(chan struct{}),
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", component, err)
	}
	defer func() { _ = log.Close() }() // the child has its own copy
	p.command = exec.Command(filepath.Join(c.binaries, string(component)), args...)
	p.command.Stdout, p.command.Stderr = log, log
	if err := c.start(p.command); err != nil {
		return nil, fmt.Errorf("start %s: %w", component, err)
	}
	go func() {
		p.err = p.command.Wait()
		close(p.exited)
	}()
	return p, nil
}

// running reports whether the process still exists. A stopped one does.
func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

func (p *process) signal(signal syscall.Signal) error {
	if !p.running() {
		return p.failure()
	}
	if err := p.command.Process.Signal(signal); err != nil {
		return fmt.Errorf("send %v to %s: %w", signal, p.component, err)
	}
	if signal == syscall.SIGSTOP {
		return awaitStop(p.command.Process.Pid)
	}
	return nil
}

// kill ends the process at once and waits until it is gone. Nothing is lost:
// what a component has written is in the page cache, which outlives it.
func (p *process) kill() {
	_ = p.command.Process.Kill() // an error means that it has ended
	<-p.exited
}

// ready waits until check succeeds. It gives up when ctx ends and, with the
// end of the component's log, when the process does.
func (p *process) ready(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-p.exited:
		case <-ctx.Done():
		}
		cancel()
	})
	err := until(ctx, check)
	cancel()
	watch.Wait()
	switch {
	case err == nil:
		return nil
	case !p.running():
		return p.failure()
	default:
		return fmt.Errorf("%s is not ready: %w; the end of %s:\n%s", p.component, err, p.log, p.tail())
	}
}

// failure returns how a process that has ended did so.
func (p *process) failure() error {
	how := "without an error"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s has ended (%s); the end of %s:\n%s", p.component, how, p.log, p.tail())
}

func (p *process) tail() []byte {
	log, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	return tail(log)
}

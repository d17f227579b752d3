// Package proc reads from /proc, as Linux has it, what a process takes up.
package proc

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ExitUnlessLinux ends the process of a package of tests, with 0, where there is nothing to be read: they measure what
// cannot be measured there.
func ExitUnlessLinux() {
	if runtime.GOOS != "linux" {
		fmt.Fprintln(os.Stderr, "memory is read from /proc, which this system does not have: nothing is tested")
		os.Exit(0)
	}
}

// CPU returns the CPU time that a process has used, user and system, since it started: to the nanosecond, and not to
// the tick of 10 ms that /proc has.
func CPU(pid int) (time.Duration, error) {
	const scheduled = 2 // the clock of what the scheduler has counted: see clock_getcpuclockid(3)
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &used); err != nil {
		return 0, fmt.Errorf("the CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}

// Resident returns how much memory of a process is resident, in bytes.
func Resident(pid int) (int, error) { return status(pid, "VmRSS:") }

// Anonymous returns how much memory of a process is its own, in bytes: what is resident, without pages of its program,
// which the kernel reads again when it needs them, and has once for all processes of an image.
func Anonymous(pid int) (int, error) { return status(pid, "RssAnon:") }

// Peak returns the most memory that a process has had resident since it started, or since ResetPeak, in bytes.
func Peak(pid int) (int, error) { return status(pid, "VmHWM:") }

// ResetPeak makes Peak start over from what is resident now.
func ResetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// BytesRead returns how many bytes a process has read since it started, from connections and files.
func BytesRead(pid int) (int, error) { return field(fmt.Sprintf("/proc/%d/io", pid), "rchar:") }

func status(pid int, name string) (int, error) {
	n, err := field(fmt.Sprintf("/proc/%d/status", pid), name)
	return n << 10, err
}

// field returns the number of a field of a file, without its unit.
func field(path, name string) (int, error) {
	page, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(page)) {
		if value, found := strings.CutPrefix(line, name); found {
			return strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")))
		}
	}
	return 0, fmt.Errorf("%s: no %s", path, name)
}

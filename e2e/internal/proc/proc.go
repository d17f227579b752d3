// Package proc reads from /proc, as Linux has it, what a process takes up.
package proc

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
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

// Opened returns the remote addresses of TCP connections that a process has opened, and how many sockets it has for
// UDP. Those to a port at which it listens are its clients'.
func Opened(pid int) (remotes []netip.AddrPort, udp int, err error) {
	inodes, err := sockets(pid)
	if err != nil {
		return nil, 0, err
	}

	var all []socket
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		read, err := readSockets(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			return nil, 0, err
		}
		for _, s := range read {
			switch {
			case !inodes[s.inode]: // another process's
			case strings.HasPrefix(table, "udp"):
				udp++
			default:
				all = append(all, s)
			}
		}
	}

	listens := map[uint16]bool{}
	for _, s := range all {
		listens[s.local.Port()] = listens[s.local.Port()] || s.state == listening
	}
	for _, s := range all {
		if !listens[s.local.Port()] {
			remotes = append(remotes, s.remote)
		}
	}
	return remotes, udp, nil
}

// listening is the state of a socket that takes connections, as the kernel numbers them.
const listening = "0A"

type socket struct {
	local, remote netip.AddrPort
	state, inode  string
}

// sockets returns the inodes of a process's sockets.
func sockets(pid int) (map[string]bool, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	inodes := map[string]bool{}
	for _, f := range files {
		to, err := os.Readlink(filepath.Join(dir, f.Name()))
		if err != nil {
			continue // it was closed
		}
		if inode, is := strings.CutPrefix(to, "socket:["); is {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return inodes, nil
}

// readSockets reads a table of the kernel: a line of titles, and one for each socket.
func readSockets(path string) (all []socket, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] {
		fields := strings.Fields(line)
		if len(fields) < 10 {
			return nil, fmt.Errorf("%s has the line %q", path, line)
		}
		s := socket{state: fields[3], inode: fields[9]}
		if s.local, err = parseAddr(fields[1]); err != nil {
			return nil, err
		}
		if s.remote, err = parseAddr(fields[2]); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// parseAddr reads an address such as 0100007F:1F90: words of 32 bits in the order of this machine, which is little
// endian, and a port.
func parseAddr(text string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(text, ":")
	words, err := hex.DecodeString(host)
	if err != nil || len(words)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is no address", text)
	}
	for word := range slices.Chunk(words, 4) {
		slices.Reverse(word)
	}
	addr, ok := netip.AddrFromSlice(words)
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil || !ok {
		return netip.AddrPort{}, fmt.Errorf("%q is no address", text)
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(number)), nil
}

package view

import (
	"strconv"
	"strings"

	"github.com/fingerpost/fingerpost/federation"
)

// portNumber returns the number of a port, or false if it is out of range.
func portNumber(n int32) (uint16, bool) { return uint16(n), n > 0 && n <= 65535 }

// parsePorts reads a list of ports as Linkerd's annotations hold it: numbers, ranges such as 8000-8002, and
// names, separated by commas. Spaces, and items that do not parse, are skipped. named looks up a name and
// may be nil.
func parsePorts(list string, named func(string) (uint16, bool), out *omissions) federation.Ports {
	var ranges []federation.PortRange
	for item := range strings.SplitSeq(list, ",") {
		if len(ranges) == maxRanges {
			out.addf("a list of ports: what follows the first %d", maxRanges)
			break
		}

		item = strings.TrimSpace(item)
		first, last, isRange := strings.Cut(item, "-")
		from, err := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
		to := from
		if err == nil && isRange {
			to, err = strconv.ParseUint(strings.TrimSpace(last), 10, 16)
		}

		switch {
		case err == nil && from <= to:
			ranges = append(ranges, federation.PortRange{First: uint16(from), Last: uint16(to)})
		case err != nil && item != "" && named != nil: // a port without a name cannot be listed
			if port, found := named(item); found {
				ranges = append(ranges, federation.PortRange{First: port, Last: port})
			}
		}
	}

	return federation.PortsOf(ranges...)
}

// namedPorts are the ports of containers that have names, in one string: name=number,name=number.
type namedPorts string

func (p namedPorts) withPort(name string, number int32) namedPorts {
	n, is := portNumber(number)
	if name == "" || !is {
		return p
	}
	if p != "" {
		p += ","
	}
	return p + namedPorts(name+"="+strconv.Itoa(int(n)))
}

// first returns the first port of a name.
func (p namedPorts) first(name string) (uint16, bool) {
	if all := p.appendNamed(nil, name); len(all) > 0 {
		return all[0].First, true
	}
	return 0, false
}

// appendNamed appends all ports of a name.
func (p namedPorts) appendNamed(to []federation.PortRange, name string) []federation.PortRange {
	for item := range strings.SplitSeq(string(p), ",") {
		k, v, _ := strings.Cut(item, "=")
		if k != name {
			continue
		}
		if n, err := strconv.ParseUint(v, 10, 16); err == nil {
			to = append(to, federation.PortRange{First: uint16(n), Last: uint16(n)})
		}
	}
	return to
}

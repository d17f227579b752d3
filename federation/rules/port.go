package rules

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fingerpost/fingerpost/federation"
)

// A PortRef is a port by number, or by name if the number is 0.
type PortRef struct {
	Number uint16
	Name   string
}

// A NamedPort is a port that a container, an ExternalWorkload or a Service declares.
type NamedPort struct {
	Name   string
	Number uint16
}

// A PortList is a list of ports as annotations have it. It is immutable. The zero PortList is empty, a nil one absent.
type PortList struct {
	numbers federation.Ports
	names   []string
}

// Bounds on a PortList: what follows is dropped.
const (
	maxPortItems = 1000
	maxPortName  = 63 // bytes, as of a Service's port
)

// Why an item of a list of ports is dropped.
var (
	errPort  = errors.New("no number between 1 and 65535, range or name of a port")
	errItems = fmt.Errorf("more than %d items", maxPortItems)
)

// MarshalBinary returns the list in the form that UnmarshalBinary reads: the names, each with a comma after it, and the
// numbers after a blank.
func (l PortList) MarshalBinary() ([]byte, error) {
	numbers, err := l.numbers.MarshalBinary()
	var b []byte
	for _, name := range l.names {
		b = append(append(b, name...), ',')
	}
	return append(append(b, ' '), numbers...), err
}

// UnmarshalBinary sets what MarshalBinary returned.
func (l *PortList) UnmarshalBinary(b []byte) error {
	names, numbers, found := bytes.Cut(b, []byte(" "))
	if !found {
		return errPort
	}
	*l = PortList{}
	for name := range bytes.SplitSeq(bytes.TrimSuffix(names, []byte(",")), []byte(",")) {
		if len(name) > 0 {
			l.names = append(l.names, string(name))
		}
	}
	return l.numbers.UnmarshalBinary(numbers)
}

// ListOf returns a list of ports that have no names.
func ListOf(ports federation.Ports) *PortList { return &PortList{numbers: ports} }

// ParsePortList reads numbers, ranges such as 8000-8100 and names of ports, separated by commas. An item that is none
// of these is dropped alone; the error then quotes the first one, and dropped counts all.
func ParsePortList(text string) (list *PortList, dropped int, err error) {
	list = new(PortList)
	var ranges []federation.PortRange
	items := 0

	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		if item == "" && strings.TrimSpace(text) == "" {
			break // an empty list has no items
		}

		items++
		ports, is := parsePortRange(item)

		switch {
		case items > maxPortItems:
			dropped++
			err = cmp.Or(err, errItems)
		case is:
			ranges = append(ranges, ports)
		case isPortName(item):
			list.names = append(list.names, item)
		default:
			dropped++
			err = cmp.Or(err, fmt.Errorf("%.64q: %w", item, errPort))
		}
	}

	list.numbers = federation.PortsOf(ranges...)
	return list, dropped, err
}

func parsePortRange(item string) (federation.PortRange, bool) {
	from, to, isRange := strings.Cut(item, "-")
	if !isRange {
		to = from
	}
	first, err := parsePortNumber(from)
	last, err2 := parsePortNumber(to)
	return federation.PortRange{First: first, Last: last}, err == nil && err2 == nil && first <= last
}

func parsePortNumber(text string) (uint16, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
	if err == nil && n == 0 {
		err = errPort
	}
	return uint16(n), err
}

// isPortName reports whether a port may have a name (RFC 6335, section 5.1, but for its length, which Services exceed).
func isPortName(text string) bool {
	letters := false
	for i, c := range text {
		switch {
		case c >= 'a' && c <= 'z':
			letters = true
		case c >= '0' && c <= '9':
		case c == '-' && i > 0 && i < len(text)-1 && text[i-1] != '-':
		default:
			return false
		}
	}
	return letters && len(text) <= maxPortName
}

// appendText appends a text that equal lists have, and no others.
func (l *PortList) appendText(b []byte) []byte {
	if l == nil {
		return append(b, " -"...)
	}
	numbers, err := l.numbers.MarshalBinary()
	if err != nil {
		panic("BUG: ports have a binary form: " + err.Error())
	}
	return fmt.Appendf(b, " %q %q", numbers, l.names)
}

// Contains reports whether a port is in the list by its number, or by a name that it has among those declared. A nil
// list contains nothing.
func (l *PortList) Contains(port uint16, declared []NamedPort) bool {
	if l == nil {
		return false
	}
	return l.numbers.Contains(port) || slices.ContainsFunc(declared, func(d NamedPort) bool {
		return d.Number == port && slices.Contains(l.names, d.Name)
	})
}

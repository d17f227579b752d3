package policy

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"strings"
)

// isNameAndPort reports whether a text is a DNS name and a port, which may be 0.
func isNameAndPort(text string) bool {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return false
	}
	_, err := strconv.ParseUint(strings.TrimPrefix(text[i+1:], "+"), 10, 16)
	return err == nil && isDNSName(text[:i])
}

// isDNSName reports whether a text is a DNS name to the proxy: 253 bytes at most, labels of 1 to 63 letters, digits,
// underscores and inner hyphens, the last one not all digits, and perhaps a dot behind it.
func isDNSName(text string) bool {
	if len(text) > 253 {
		return false
	}

	labels := strings.Split(strings.TrimSuffix(text, "."), ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") ||
			!consistsOf(label, letters+digits+"-_") {
			return false
		}
	}

	return !consistsOf(labels[len(labels)-1], digits)
}

// Sets of bytes.
const (
	digits  = "0123456789"
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	token   = letters + digits + "!#$%&'*+-.^_`|~"
)

// consistsOf reports whether a text has no other bytes than those of a set.
func consistsOf(text, set string) bool {
	for i := range len(text) {
		if strings.IndexByte(set, text[i]) < 0 {
			return false
		}
	}
	return true
}

// isToken reports whether a text can be the name of a header or a method.
func isToken(text string) bool { return text != "" && len(text) < 1<<16 && consistsOf(text, token) }

// isHeaderValue reports whether a text can be the value of a header.
func isHeaderValue(text string) bool {
	for i := range len(text) {
		if b := text[i]; b < ' ' && b != '\t' || b == 0x7f {
			return false
		}
	}
	return true
}

// isVisible reports whether a text has visible ASCII only. The proxy compares regular expressions with no other value
// of a header.
func isVisible(text string) bool {
	for i := range len(text) {
		if b := text[i]; b < ' ' && b != '\t' || b >= 0x7f {
			return false
		}
	}
	return true
}

// isAuthority reports whether a text can be a host, perhaps with a port. It lets through some that the proxy refuses.
func isAuthority(text string) bool {
	host := text
	if i := strings.LastIndexByte(text, ']'); i >= 0 {
		host = text[i:]
	}
	return text != "" && strings.Count(host, ":") <= 1 && consistsOf(text, letters+digits+"-._~!$&'()*+,;=:@[]%")
}

// isIdentity reports whether a text can be the identity of a client: a DNS name without a dot behind it, or a URI.
func isIdentity(text string) bool {
	return isDNSName(text) && !strings.HasSuffix(text, ".") || isURI(text)
}

// isURI reports whether an identity is a URI, such as spiffe://domain/workload.
func isURI(identity string) bool { return strings.Contains(identity, "://") }

// lower returns a text with the letters of ASCII in lower case, as the proxy compares hosts.
func lower(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, text)
}

// addrOf reads an IPAddress. It is invalid if the message has none.
func addrOf(ip part) netip.Addr {
	switch ip.which("ip") {
	case "ipv4":
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], ip.number("ipv4"))
		return netip.AddrFrom4(b)
	case "ipv6":
		var b [16]byte
		binary.BigEndian.PutUint64(b[:8], ip.at("ipv6").value("first").Uint())
		binary.BigEndian.PutUint64(b[8:], ip.at("ipv6").value("last").Uint())
		return netip.AddrFrom16(b)
	default:
		ip.invalid("", "neither IPv4 nor IPv6")
		return netip.Addr{}
	}
}

package federation

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// IsPlain reports whether a text may stand in a View, but for its messages (Malformed, Misread). It is valid UTF-8,
// and has neither characters that are not printed, such as control characters, line breaks and marks that reverse
// the direction of a text, nor '"' and '\'. linkerd2-proxy writes labels of metrics as they come, so that any of
// these would end the label, or the line. No name or label that Kubernetes validates has one.
func IsPlain(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= utf8.RuneSelf:
			return !strings.ContainsFunc(s, isUnplain)
		case c < ' ', c == 0x7f, c == '"', c == '\\':
			return false
		}
	}
	return true
}

// isUnplain also holds for what is no UTF-8.
func isUnplain(r rune) bool {
	return r == '"' || r == '\\' || r == utf8.RuneError || !unicode.IsPrint(r)
}

// PrintableWithin returns a text of others as one line of at most so many bytes, which are 4 or more.
func PrintableWithin(text string, bytes int) string {
	const more = "..."
	if text = Printable(text); len(text) > bytes {
		text = strings.ToValidUTF8(text[:bytes-len(more)], "") + more
	}
	return text
}

// Printable returns a message as one line, with '?' for what is not printed: logs, conditions and terminals show it as
// it is.
func Printable(message string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError: // or invalid
			return '?'
		case unicode.IsPrint(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return '?'
	}, message)
}

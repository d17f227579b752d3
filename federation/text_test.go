package federation

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestPlain(t *testing.T) {
	for text, want := range map[string]bool{
		"": true, "web-5d4f8c7b9-x2x4z": true, "spiffe://a/b": true, "zone 1": true, "über-朱": true,
		`a"b`: false, `a\b`: false, "a\nb": false, "a\x00": false, "\x7f": false, "é\n": false, "é\"": false,
		"\x1b[2J": false, "\xff": false, "a\u009b": false, "\u202eevil": false, "\u2028": false, "\ufeff": false,
	} {
		if got := IsPlain(text); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}

// A plain text ends neither a label of metrics nor a line, and is shown as it is.
func TestPlainIsShown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringN(0, 9, -1)).Draw(t, "text")
		shown := Printable(text)
		if !utf8.ValidString(shown) || strings.ContainsFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Fatalf("%q is shown as %q", text, shown)
		}
		if IsPlain(text) && (shown != text || strings.ContainsAny(text, "\"\\\n")) {
			t.Fatalf("%q is plain, and shown as %q", text, shown)
		}
	})
}

// A text of others is cut between characters, after what cannot be printed was replaced.
func TestPrintableWithin(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "short": "short", "12345678": "12345678", "123456789": "12345...",
		"1234é6789": "1234...", "a\x1bb\n": "a?b ", "\x00\x00\x00\x00\x00\x00\x00\x00\x00": "?????...",
	} {
		if got := PrintableWithin(text, 8); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

package ruleobject

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

// A regular expression is compiled by proxies, with Rust's regex. What passes here compiles there: that it compiles in
// Go, and has nothing of what Go accepts and Rust does not. The two differ in little:
//
//	\Q*\E      a quotation          Rust has none
//	\101       a character in octal Rust takes it for a back reference, which it has not
//	\p{^L}     a negated class      Rust writes \P{L}
//	[[a]       a [ in a class       Rust begins a class within the class; [[:alpha:]] is one to both
//	a{,2} {x}  a { that is a {      Rust wants a repetition
//
// Nothing is rewritten, so that what a proxy gets is what the object has.
//
// Objects are hostile: (.{1000}){1000} is short, and compiles to a million instructions. Go's parser rejects the
// nested repetition, but not a hundred beside each other. So the size of the program is estimated from the parsed tree
// before anything is compiled. Parsing takes time in proportion to the text, with two exceptions: \pL has six hundred
// ranges, and (?i)[B-\x{1E942}] is looked up letter by letter, which takes two milliseconds. These count as many bytes,
// and the bytes of all expressions of an object are bounded, so that it is read within a tenth of a second.
const (
	maxRegexInstructions = 10_000
	maxRegexBytes        = 32 << 10 // of all regular expressions of an object

	bytesOfProperty = 64   // for which \p and \P count
	bytesOfRange    = 2048 // for which a range that ends outside of ASCII counts where case is ignored
)

// Why a regular expression is not sent although it may compile.
var (
	errRegexSize  = fmt.Errorf("a regular expression compiles to more than %d instructions", maxRegexInstructions)
	errRegexBytes = fmt.Errorf("its regular expressions are too long together: they count as more than %d bytes",
		maxRegexBytes)
)

// ignoresCase matches where an expression begins to ignore case, and wideRange the end of a range outside of ASCII.
var (
	ignoresCase = regexp.MustCompile(`\(\?[a-zA-Z-]*i`)
	wideRange   = regexp.MustCompile(`-(\\x|[^\x00-\x7f])`)
)

// regexBytes returns as how many bytes an expression counts.
func regexBytes(text string) int {
	size := len(text) + bytesOfProperty*(strings.Count(text, `\p`)+strings.Count(text, `\P`))
	if ignoresCase.MatchString(text) {
		size += bytesOfRange * len(wideRange.FindAllStringIndex(text, -1))
	}
	return size
}

// checkRegex returns why a regular expression is not sent. For one that no proxy compiles it is a denial.
func (r *reader) checkRegex(text string) error {
	r.regexBytes += regexBytes(text)
	if len(text) > maxText || r.regexBytes > maxRegexBytes {
		return errRegexBytes
	}
	err := checkRegex(text)
	if isRefusedByAll(err) {
		return denial{err}
	}
	return err
}

// isRefusedByAll reports whether Rust does not compile an expression either. Of what Go alone refuses, as (?x) or a**,
// that is not known.
func isRefusedByAll(err error) bool {
	if invalid, is := errors.AsType[*syntax.Error](err); is {
		switch invalid.Code {
		case syntax.ErrMissingBracket, syntax.ErrMissingParen, syntax.ErrMissingRepeatArgument,
			syntax.ErrTrailingBackslash, syntax.ErrUnexpectedParen:
			return true
		default:
			return false
		}
	}
	return errors.Is(err, errQuotation) || errors.Is(err, errOctal) || errors.Is(err, errNegated) ||
		errors.Is(err, errBrace) || errors.Is(err, errOrder)
}

func checkRegex(text string) error {
	if err := checkDialect(text); err != nil {
		return fmt.Errorf("regular expression %.64q: %w", text, err)
	}

	parsed, err := syntax.Parse(text, syntax.Perl)
	if invalid, is := errors.AsType[*syntax.Error](err); is {
		return fmt.Errorf("regular expression %.64q: %w", text, invalid)
	}
	if estimate(parsed) > 2*maxRegexInstructions {
		return errRegexSize
	}

	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return fmt.Errorf("regular expression %.64q: %w", text, err)
	}
	if len(program.Inst) > maxRegexInstructions {
		return errRegexSize
	}
	return nil
}

// estimate returns about how many instructions a parsed expression compiles to. It stops to count far above what is
// allowed.
func estimate(parsed *syntax.Regexp) int {
	const enough = 1 << 30
	size := 1 + len(parsed.Rune)
	if parsed.Op == syntax.OpCharClass {
		size = 1
	}
	for _, sub := range parsed.Sub {
		size = min(size+estimate(sub), enough)
	}

	if parsed.Op == syntax.OpRepeat {
		times := max(parsed.Min, parsed.Max, 1) // at most 1000: Go's parser has seen to that
		size = min(size*times, enough)
	}
	return size
}

var (
	errQuotation = errors.New(`\Q is not known to proxies`)
	errOctal     = errors.New("octal characters are not known to proxies")
	errNegated   = errors.New(`\p{^...} is not known to proxies`)
	errNestedSet = errors.New("a [ in a class is to be escaped")
	errBrace     = errors.New("a { that is no repetition is to be escaped")
	errOpenRange = errors.New("a repetition needs the least number of times")
	errOrder     = errors.New("a repetition has its numbers in the wrong order")
)

// checkDialect returns what of an expression is Go's alone. It goes through the text once: outside of classes, and in
// one from [ to ].
func checkDialect(text string) error {
	for text != "" {
		size, err := 1, error(nil)

		switch text[0] {
		case '\\':
			size, err = escape(text)
		case '[':
			size, err = class(text)
		case '{':
			size, err = repetition(text)
		}

		if err != nil {
			return err
		}
		text = text[size:]
	}
	return nil
}

// escape returns the length of the escape that a text begins with.
func escape(text string) (int, error) {
	if len(text) < 2 {
		return len(text), nil // Go rejects it
	}
	switch c := text[1]; {
	case c == 'Q':
		return 0, errQuotation
	case c >= '0' && c <= '9':
		return 0, errOctal
	case c != 'p' && c != 'P' && c != 'x' || len(text) < 3 || text[2] != '{':
		return 2, nil
	case text[1] != 'x' && strings.HasPrefix(text[3:], "^"):
		return 0, errNegated
	}

	end := strings.IndexByte(text, '}')
	if end < 0 {
		return len(text), nil // Go rejects it
	}
	return end + 1, nil
}

// class returns the length of the class that a text begins with. A ] that stands first in it is a character.
func class(text string) (int, error) {
	at := 1
	if strings.HasPrefix(text[at:], "^") {
		at++
	}
	if strings.HasPrefix(text[at:], "]") {
		at++
	}

	for at < len(text) {
		rest := text[at:]
		size, err := 1, error(nil)

		switch {
		case rest[0] == ']':
			return at + 1, nil
		case rest[0] == '\\':
			size, err = escape(rest)
		case strings.HasPrefix(rest, "[:"):
			size, err = namedClass(rest)
		case rest[0] == '[':
			err = errNestedSet
		}

		if err != nil {
			return 0, err
		}
		at += size
	}
	return at, nil // Go rejects a class without an end
}

// namedClass returns the length of [:name:], or [:^name:], that a text begins with.
func namedClass(text string) (int, error) {
	name, _, ends := strings.Cut(text[2:], ":]")
	if !ends || strings.Trim(strings.TrimPrefix(name, "^"), "abcdefghijklmnopqrstuvwxyz") != "" {
		return 0, errNestedSet
	}
	return len("[:") + len(name) + len(":]"), nil
}

// repetition returns the length of {n}, {n,} or {n,m} that a text begins with.
func repetition(text string) (int, error) {
	counts, _, ends := strings.Cut(text[1:], "}")
	least, most, isRange := strings.Cut(counts, ",")
	switch {
	case !ends || strings.Trim(least+most, "0123456789") != "" || least == "" && !isRange:
		return 0, errBrace
	case least == "":
		return 0, errOpenRange
	case most != "" && (len(most) < len(least) || len(most) == len(least) && most < least):
		return 0, errOrder // as texts; Go rejects numbers with leading zeros
	}
	return len(counts) + 2, nil
}

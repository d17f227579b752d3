package ruleobject

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
)

// A regular expression is compiled by proxies, with Rust's regex. What passes here compiles there: that it compiles in
// Go, and has nothing of what Go accepts and Rust does not. The two differ in little:
//
//	\Q*\E      a quotation          Rust has none
//	\101       a character in octal Rust takes it for a back reference, which it has not
//	\p{^L}     a negated class      Rust writes \P{L}
//	\x{D800}   half a character     Rust has whole ones, and no \p{Cs}
//	[[a]       a [ in a class       Rust begins a class within the class; [[:alpha:]] is one to both
//	[\d-z]     a - in a class       Rust takes it for a range, which does not begin with a class
//	[\<]       a < in a class       Rust takes it for the beginning of a word
//	a{,2} {x}  a { that is a {      Rust wants a repetition
//	(?P<1>a)   a name of a group    Rust wants a letter first
//	a(?i)*     a repetition of a    Rust takes it for one of the flags
//
// Nothing is rewritten, so that what a proxy gets is what the object has.
//
// Objects are hostile: (.{1000}){1000} is short, and compiles to a million instructions. Go's parser rejects the
// nested repetition, but not a hundred beside each other. To Rust \w{1000} is too large, too, as letters of all
// languages are in it. So the size of Rust's program is estimated from the parsed tree before anything is compiled.
// Parsing takes time in proportion to the text, with two exceptions: \pL has six hundred ranges, as \w has to Rust, and
// (?i)[B-\x{1E942}] is looked up letter by letter, which takes two milliseconds. These count as many bytes, and the
// bytes of all expressions of an object are bounded, so that it is read within a tenth of a second.
const (
	maxRegexInstructions = 10_000
	maxRegexSize         = 9_000_000 // bytes of Rust's program, which takes 10 MiB
	maxRegexBytes        = 32 << 10  // of all regular expressions of an object

	bytesOfProperty = 64   // for which \p and \P count
	bytesOfWord     = 16   // for which \w, \d and \s count
	bytesOfRange    = 2048 // for which a range that ends outside of ASCII counts where case is ignored
)

// Why a regular expression is not sent although it may compile.
var (
	errRegexSize  = errors.New("a regular expression is too large once it is compiled")
	errVerbose    = errors.New("flag x is not sent to proxies")
	errRegexBytes = fmt.Errorf("its regular expressions are too long together: they count as more than %d bytes",
		maxRegexBytes)
)

// ignoresCase matches where an expression begins to ignore case, and wideRange the end of a range outside of ASCII.
// Behind verbose nothing is as it looks.
var (
	verbose     = regexp.MustCompile(`\(\?[a-zA-Z-]*x`) // blanks and comments do not count
	property    = regexp.MustCompile(`\\[pP]`)
	perlClass   = regexp.MustCompile(`\\[dDsSwW]`)
	ignoresCase = regexp.MustCompile(`\(\?[a-zA-Z-]*i`)
	wideRange   = regexp.MustCompile(`-(\\x|[^\x00-\x7f])`)
)

// regexBytes returns as how many bytes an expression counts.
func regexBytes(text string) int {
	size := len(text) + bytesOfProperty*len(property.FindAllStringIndex(text, -1)) +
		bytesOfWord*len(perlClass.FindAllStringIndex(text, -1))
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

// isRefusedByAll reports whether Rust does not compile an expression either. Of what Go alone refuses, as a**, that is
// not known.
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
	return slices.ContainsFunc(refusedByAll, func(reason error) bool { return errors.Is(err, reason) })
}

func checkRegex(text string) error {
	if verbose.MatchString(text) {
		return errVerbose
	}
	if err := checkDialect(text); err != nil {
		return fmt.Errorf("regular expression %.64q: %w", text, err)
	}

	parsed, err := syntax.Parse(text, syntax.Perl)
	if invalid, is := errors.AsType[*syntax.Error](err); is {
		return fmt.Errorf("regular expression %.64q: %w", text, invalid)
	}
	if sizeOf(text, parsed) > maxRegexSize {
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

// sizeOf returns about how many bytes Rust's program has for an expression, and rather more. \w, \d and \s have the
// characters of all languages there.
func sizeOf(text string, parsed *syntax.Regexp) int {
	if !perlClass.MatchString(text) {
		return estimate(parsed)
	}
	wide, err := syntax.Parse(perlClass.ReplaceAllStringFunc(text, inAllLanguages), syntax.Perl)
	if err != nil {
		return maxRegexSize + 1 // its size is not known
	}
	return estimate(wide)
}

// inAllLanguages returns a class that is about as large to Go as what \w, \d or \s stands for is to Rust.
func inAllLanguages(escape string) string {
	switch escape[1] {
	case 'w', 'W':
		return `\pL`
	case 'D':
		return `\pN`
	}
	return `\p{Nd}`
}

// The costs of parts of Rust's program, in bytes, as measured with regex 1.13 by the number of times that it takes.
const (
	costOfPart    = 160 // at most: an alternative, a group, a character
	costOfClass   = 1500
	costOfRange   = 180 // each of the first manyRanges; they may end in every plane
	costOfFurther = 80
	manyRanges    = 100
)

// estimate returns what a parsed expression costs. It stops to count far above what is allowed.
func estimate(parsed *syntax.Regexp) int {
	const enough = 1 << 30
	size := costOfPart * (1 + len(parsed.Rune))

	switch parsed.Op {
	case syntax.OpCharClass:
		ranges := len(parsed.Rune) / 2
		size = costOfClass + costOfRange*min(ranges, manyRanges) + costOfFurther*max(0, ranges-manyRanges)
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		size = costOfClass
	default:
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
	errSurrogate = errors.New("half of a surrogate pair is no character to proxies")
	errNestedSet = errors.New("a [ in a class is to be escaped")
	errDash      = errors.New("a - after a class within a class is to be escaped")
	errBoundary  = errors.New(`\< and \> in a class are ends of words to proxies: write < and >`)
	errBrace     = errors.New("a { that is no repetition is to be escaped")
	errOpenRange = errors.New("a repetition needs the least number of times")
	errCounts    = errors.New("a repetition is written {n}, {n,} or {n,m}, without blanks and leading zeros")
	errOrder     = errors.New("a repetition has its numbers in the wrong order")
	errGroupName = errors.New("the name of a group begins with a letter")
	errFlags     = errors.New("flags are there once, and are not repeated")
)

// refusedByAll are those of what Rust does not compile.
var refusedByAll = []error{
	errQuotation, errOctal, errNegated, errSurrogate, errDash, errBoundary, errBrace, errOrder, errGroupName, errFlags,
}

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
		case '(':
			err = groupStart(text)
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
	case c != 'p' && c != 'P' && c != 'x' || len(text) < 3:
		return 2, nil
	case text[2] != '{' && c == 'x':
		return 2, nil
	case text[2] != '{':
		return len(`\pL`), nil
	}

	name, _, ends := strings.Cut(text[3:], "}")
	switch {
	case !ends:
		return len(text), nil // Go rejects it
	case text[1] == 'x' && isSurrogate(name), text[1] != 'x' && isSurrogates(name):
		return 0, errSurrogate
	case text[1] != 'x' && strings.HasPrefix(name, "^"):
		return 0, errNegated
	}
	return len(`\p{}`) + len(name), nil
}

// isSurrogate reports whether a number in hexadecimal digits is that of half a surrogate pair.
func isSurrogate(digits string) bool {
	n, err := strconv.ParseUint(digits, 16, 32)
	return err == nil && n >= 0xD800 && n <= 0xDFFF
}

// isSurrogates reports whether a name is that of the category of surrogates.
func isSurrogates(name string) bool {
	name = strings.TrimPrefix(name, "^")
	return strings.EqualFold(name, "Cs") || strings.EqualFold(name, "Surrogate")
}

// flagGroup matches flags for what follows, or for a group, and what is behind them.
var flagGroup = regexp.MustCompile(`^\(\?([a-zA-Z-]*)([:)].?)`)

// groupStart returns what of the beginning of a group is Go's alone.
func groupStart(text string) error {
	if found := flagGroup.FindStringSubmatch(text); found != nil {
		return checkFlags(found[1], found[2])
	}

	for _, before := range []string{"(?P<", "(?<"} {
		if name, is := strings.CutPrefix(text, before); is && name != "" && name[0] >= '0' && name[0] <= '9' {
			return errGroupName
		}
	}
	return nil
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
		case strings.HasPrefix(rest, `\<`), strings.HasPrefix(rest, `\>`):
			err = errBoundary
		case rest[0] == '\\':
			size, err = escape(rest)
		case strings.HasPrefix(rest, "[:"):
			size, err = namedClass(rest)
		case rest[0] == '[':
			err = errNestedSet
		}

		if err == nil && isSet(rest) && isDash(rest[size:]) {
			err = errDash
		}
		if err != nil {
			return 0, err
		}
		at += size
	}
	return at, nil // Go rejects a class without an end
}

// isSet reports whether a part of a class stands for several characters.
func isSet(text string) bool {
	isEscape := len(text) > 1 && text[0] == '\\'
	return strings.HasPrefix(text, "[:") || isEscape && strings.IndexByte("dDsSwWpP", text[1]) >= 0
}

// isDash reports whether a part of a class is a - that does not end it.
func isDash(text string) bool { return len(text) > 1 && text[0] == '-' && text[1] != ']' }

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
	least, most, _ := strings.Cut(counts, ",")
	bare := strings.ReplaceAll(counts, " ", "")

	switch {
	case !ends || strings.Trim(bare, "0123456789,") != "" || strings.Count(bare, ",") > 1 || bare == "":
		return 0, errBrace
	case bare[0] == ',':
		return 0, errOpenRange
	case bare != counts, hasLeadingZero(least), hasLeadingZero(most):
		return 0, errCounts
	case most != "" && (len(most) < len(least) || len(most) == len(least) && most < least):
		return 0, errOrder // as texts
	}
	return len(counts) + 2, nil
}

// checkFlags returns why flags are none to Rust: each is there once, and they are not repeated. behind is what ends
// them, with the next character.
func checkFlags(flags, behind string) error {
	for i := range len(flags) {
		if strings.IndexByte(flags[:i], flags[i]) >= 0 {
			return errFlags
		}
	}
	isEmpty := flags == "" && behind[0] == ')' || strings.HasSuffix(flags, "-")
	if isEmpty || len(behind) > 1 && behind[0] == ')' && strings.IndexByte("*+?{", behind[1]) >= 0 {
		return errFlags
	}
	return nil
}

func hasLeadingZero(number string) bool { return len(number) > 1 && number[0] == '0' }

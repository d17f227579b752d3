package ruleobject

import (
	"errors"
	"regexp/syntax"
	"strings"
	"testing"
)

func TestCheckRegex(t *testing.T) {
	for _, text := range []string{
		"", "/a.*", `/items/[0-9]+`, `[[:alpha:]_-]{1,20}`, `[^]a]`, `[]a]`, `[a\[]`, `a{2}b{2,}c{2,3}`, `\p{Greek}`,
		`\P{L}`, `\pN`, `\x{10FFFF}`, `\x41`, `\{x\}`, `(?i)abc`, `(?P<name>a)(?<other>b)`, `a|b|`, `[{]`, `}`, `]`, `ä+`,
		`.{1000}`, `\\Q`, `\\1`, `\bfoo\b`, "[[:^digit:]]", `[\d-]`, `\w{100}`, `[a-z]{1000}`,
	} {
		if err := checkRegex(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}

	for _, c := range []struct {
		text  string
		want  error // nil: Go's own
		byAll bool
	}{
		{`(`, nil, true},  // PW18
		{`a)`, nil, true}, // as no alternative of it stands
		{`[a`, nil, true},
		{`*a`, nil, true},
		{`a\`, nil, true},
		{`a**`, nil, false},
		{`(?x) a`, errVerbose, false},
		{`\u0041`, nil, false},
		{`a{1001}`, nil, false},
		{`\Qa\E`, errQuotation, true}, // PN94
		{`[\Q]`, errQuotation, true},
		{`\101`, errOctal, true},
		{`\1`, errOctal, true},
		{`[\0]`, errOctal, true},
		{`\p{^Greek}`, errNegated, true},
		{`[\P{^Greek}]`, errNegated, true},
		{`[[a]`, errNestedSet, false}, // PR34
		{`[a[b]]`, errNestedSet, false},
		{`[[:a`, errNestedSet, false},
		{`[[:A:]]`, errNestedSet, false},
		{`a{x}`, errBrace, true},
		{`{`, errBrace, true},
		{`a{}`, errBrace, true},
		{`a{,2}`, errOpenRange, false},
		{`a{3,2}`, errOrder, true},
		{`a{ 2}`, errCounts, false},
		{`a{02}`, errCounts, false},
		{`[\d-z]`, errDash, true},
		{`[\pL-z]`, errDash, true},
		{`[[:alpha:]-z]`, errDash, true},
		{`[\<]`, errBoundary, true},
		{`\x{D800}`, errSurrogate, true},
		{`\p{Cs}`, errSurrogate, true},
		{`(?P<1>a)`, errGroupName, true},
		{`(?<1>a)`, errGroupName, true},
		{`a(?i)*`, errFlags, true},
		{`(?)a`, errFlags, true},
		{`(?ii:a)`, errFlags, true},
		{`(?i-)a`, errFlags, true},
		{`a{10,2}`, errOrder, true},
		{strings.Repeat(".{1000}", 11), errRegexSize, false},
		{strings.Repeat(".{1000}", 500), errRegexSize, false},
		{`\w{1000}`, errRegexSize, false},
	} {
		err := checkRegex(c.text)
		_, is := errors.AsType[*syntax.Error](err)
		if err == nil || is != (c.want == nil) || c.want != nil && !errors.Is(err, c.want) || isRefusedByAll(err) != c.byAll {
			t.Errorf("%.40q: %v, by all: %t, want %v, %t", c.text, err, isRefusedByAll(err), c.want, c.byAll)
		}
	}

	r := &reader{}
	for range maxRegexBytes / 1024 {
		if err := r.checkRegex(strings.Repeat("a", 1024)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.checkRegex("("); !errors.Is(err, errRegexBytes) {
		t.Errorf("a byte too many: %v", err)
	}
	for _, long := range []string{
		strings.Repeat("a", maxText+1), "[" + strings.Repeat(`\pL`, 600) + "]", "(?s-mi:" + strings.Repeat(`[B-\x{1E942}]`, 17) + ")",
		"(?i)" + strings.Repeat(`[B-ü]`, 17),
	} {
		if err := (&reader{}).checkRegex(long); !errors.Is(err, errRegexBytes) {
			t.Errorf("%.40q passes: %v", long, err)
		}
	}
	if _, is := errors.AsType[denial]((&reader{}).checkRegex("(")); !is {
		t.Error("a new object is not denied for what no proxy compiles")
	}
}

// What passes compiles in Go to a bounded program, and what does not is quickly known.
func FuzzCheckRegex(f *testing.F) {
	for _, text := range []string{
		"(", `\Q`, "[[:alpha:]]", "a{1,2}", `\p{^L}`, "((a{10}){10}){10}", `(?i)[^\x00-\x{10FFFF}]`, "[]", "{", `\`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if err := checkRegex(text); err != nil {
			return
		}
		parsed, err := syntax.Parse(text, syntax.Perl)
		if err != nil {
			t.Fatalf("%q passes: %v", text, err)
		}
		program, err := syntax.Compile(parsed.Simplify())
		if err != nil || len(program.Inst) > maxRegexInstructions {
			t.Errorf("%q passes with %d instructions: %v", text, len(program.Inst), err)
		}
		if strings.Contains(strings.ReplaceAll(text, `\\`, ""), `\Q`) {
			t.Errorf("%q passes", text)
		}
	})
}

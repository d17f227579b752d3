package ruleobject

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"unicode"
)

// A rustCompiler is a process that compiles regular expressions as proxies do.
type rustCompiler struct {
	in  io.WriteCloser
	out *bufio.Reader
}

// newRustCompiler builds the crate in testdata/rust and starts it. The test is skipped with -short, without cargo, and
// without the registry of crates.
func newRustCompiler(tb testing.TB) *rustCompiler {
	tb.Helper()
	if testing.Short() {
		tb.Skip("cargo builds a crate")
	}
	cargo, err := exec.LookPath("cargo")
	if err != nil {
		tb.Skip("cargo is not installed")
	}
	const manifest = "testdata/rust/Cargo.toml"
	if out, err := exec.Command(cargo, "fetch", "--locked", "--manifest-path", manifest).CombinedOutput(); err != nil {
		tb.Skipf("the crates cannot be fetched: %v\n%s", err, out)
	}

	cache, err := os.UserCacheDir()
	if err != nil {
		tb.Fatal(err)
	}
	target := filepath.Join(cache, "fingerpost", "rust")
	build := exec.Command(cargo, "build", "--release", "--locked", "--manifest-path", manifest, "--target-dir", target)
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("cargo build: %v\n%s", err, out)
	}
	return startRustCompiler(tb, filepath.Join(target, "release", "regexes"))
}

func startRustCompiler(tb testing.TB, path string) *rustCompiler {
	tb.Helper()
	process := exec.Command(path)
	process.Stderr = os.Stderr
	in, err := process.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := process.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := process.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := in.Close(); err != nil {
			tb.Error(err)
		}
		if err := process.Wait(); err != nil {
			tb.Error(err)
		}
	})
	return &rustCompiler{in, bufio.NewReader(out)}
}

// compile returns why an expression does not compile.
func (r *rustCompiler) compile(tb testing.TB, text string) error {
	tb.Helper()
	if _, err := fmt.Fprintln(r.in, hex.EncodeToString([]byte(text))); err != nil {
		tb.Fatal(err)
	}
	answer, err := r.out.ReadString('\n')
	if err != nil {
		tb.Fatal(err)
	}
	if answer = strings.TrimSpace(answer); answer != "ok" {
		return fmt.Errorf("%.80q: %.300s", text, answer)
	}
	return nil
}

// What passes compiles in proxies. What is refused because no proxy compiles it does not.
func TestRustCompilesWhatPasses(t *testing.T) {
	rust := newRustCompiler(t)
	check := func(text string) (passes bool) {
		t.Helper()
		err := checkRegex(text)
		compiles := rust.compile(t, text)
		if err == nil && compiles != nil {
			t.Errorf("it passes, and does not compile: %v", compiles)
		}
		if isRefusedByAll(err) && compiles == nil {
			t.Errorf("%q compiles, and is refused as if no proxy did: %v", text, err)
		}
		return err == nil
	}
	for _, text := range regexParts {
		check(text)
	}
	for _, tables := range []map[string]*unicode.RangeTable{unicode.Categories, unicode.Scripts} {
		for name := range tables {
			check(`\p{` + name + `}`)
		}
	}
	for name := range unicode.CategoryAliases {
		check(`\p{` + name + `}`)
	}

	passed := 0
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 40_000 {
		if check(randomRegex(random)) {
			passed++
		}
	}
	if passed < 4_000 {
		t.Errorf("%d expressions passed", passed)
	}
}

// The most of a thing that passes compiles in proxies: they bound the size of what they make of it.
func TestRustCompilesTheLargest(t *testing.T) {
	rust := newRustCompiler(t)
	for _, text := range []string{
		"a", "ä", `\x{10FFFF}`, "(a)", "a?", "a*", "(?:a|b)", ".", "(?s).", "[a-z]", "[^a]", "(?i)a", "(?i)[a-z]", `\b`, `\d`,
		`\D`, `\w`, `\W`, `\s`, `\S`, `[^\w]`, `[^\d]`, `[\w-]`, `[\s\S]`, `\pL`, `\PL`, `\pC`, `\pN`, `\p{Lu}`, `\p{Nd}`, `[^\p{Nd}]`,
		`\p{Greek}`, `\P{Greek}`, `[\pL\pM\pN]`, `(?i)\pL`, "[ä-€]", `[\x{800}-\x{10FFFF}]`, "(?i)k", "[[:^word:]]",
	} {
		times := func(n int) string {
			return strings.Repeat("(?:"+text+"){1000}", n/1000) + fmt.Sprintf("(?:%s){%d}", text, n%1000)
		}
		most := sort.Search(100_000, func(n int) bool { return checkRegex(times(n)) != nil }) - 1
		if err := rust.compile(t, times(most)); err != nil || most < 100 {
			t.Errorf("%d times %s: %v", most, text, err)
		}
	}
}

// regexParts are what random expressions are made of: what both dialects have, and above all what they read otherwise.
var regexParts = []string{
	"a", "b", "Z", "0", "9", "-", "^", "$", ".", "|", "&", "~", ",", ":", "/", "_", " ", "#", "ä", "€", "\U0001F600",
	"(", ")", "(?:", "(?i)", "(?i:", "(?s-m:", "(?U)", "(?)", "(?ii)", "(?i-i)", "(?i-)", "(?-:", "(?x)", "(?-i)", "(?P<a>", "(?<b>", "(?P<1>", "(?P<a_1>", "(?<é>",
	"(?P<a", "(?=", "(?!", "(?#", "[", "]", "[^", "[]", "[^]", "[a-z]", "[[:alpha:]]", "[[:^word:]]", "[:alpha:]", "[-a]",
	"[a-]", "[a-c-e]", "[--a]", "[&&]", "[a&&b]", "[a--b]", "[a~~b]", "[\\d-z]", "[\\pL-z]", "[\\p{L}-z]", "[a-\\d]", "[\\x41-z]", "[+--]", "[^\\n]", "[\\]]", "[\\[]", "[\\-]",
	"{", "}", "{2}", "{2,}", "{2,3}", "{,3}", "{0}", "{0,0}", "{01}", "{ 2}", "{2, 3}", "{1000}", "{1001}", "*", "+", "?",
	"*?", "+?", "??", "{2}?", "**", "\\", "\\\\", "\\d", "\\D", "\\w", "\\s", "\\b", "\\B", "\\A", "\\z", "\\Z", "\\pL",
	"\\pN", "\\PL", "\\p{Greek}", "\\P{Greek}", "\\p{^Greek}", "\\p{L}", "\\p{Lu}", "\\p{Letter}", "\\p{Nosuch}", "\\p{Any}",
	"\\p{Zzzz}", "\\p{Co}", "\\p{Cs}", "\\p{cs}", "\\p{surrogate}", "\\p{lowercase_letter}", "\\p{ Lu }", "\\p{Cyrillic}", "\\p{Kawi}", "\\pZ", "\\pC", "\\C", "\\Q", "\\E", "\\G", "\\R", "\\X",
	"\\K", "\\h", "\\v", "\\n", "\\r", "\\t", "\\f", "\\a", "\\e", "\\0", "\\1", "\\07", "\\x41", "\\x4", "\\x{41}", "\\x{}",
	"\\x{D800}", "\\x{10FFFF}", "\\x{110000}", "\\x{0000000041}", "\\u0041", "\\.", "\\-", "\\/", "\\#", "\\ ", "\\&", "\\~",
	"\\_", "\\<", "\\>", "\\%", "\\!", "\\\"", "\\'", "\\,", "\\:", "\\;", "\\=", "\\@", "\\`", "\\ä", "\\a-z",
	"\x00", "\x7f", "\t", "\n",
}

func randomRegex(random *rand.Rand) string {
	var text strings.Builder
	for range 1 + random.IntN(8) {
		text.WriteString(regexParts[random.IntN(len(regexParts))])
	}
	return text.String()
}

// FuzzRust looks for expressions that pass and do not compile in proxies.
func FuzzRust(f *testing.F) {
	rust := newRustCompiler(f)
	for _, text := range regexParts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if checkRegex(text) == nil && len(text) < maxText {
			if err := rust.compile(t, text); err != nil {
				t.Error(err)
			}
		}
	})
}

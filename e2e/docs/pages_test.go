package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the repository, as this package sees it.
const root = "../.."

// A section is what stands below one headline of a page.
type section struct {
	headline string
	blocks   []block
}

// A block is what stands between two lines of three backticks, without its indent.
type block struct {
	language string
	text     string
}

// isCommands reports whether a reader is to run the block.
func (b block) isCommands() bool { return b.language == "" || b.language == "sh" }

var fileName = regexp.MustCompile(`^[^\n]*# (\S+\.yaml)\n`)

// file returns the name that a block has in its first line, as a comment; empty if it has none.
func (b block) file() string {
	if match := fileName.FindStringSubmatch(b.text); match != nil && b.language == "yaml" {
		return match[1]
	}
	return ""
}

// isShown reports whether the block is there to be read alone: what is printed, and parts of files.
func (b block) isShown() bool { return b.language == "text" || b.language == "yaml" }

// isObjects reports whether the block is what kubectl applies.
func (b block) isObjects() bool {
	return b.language == "yaml" && strings.HasPrefix(b.text, "apiVersion: ")
}

// sectionsOf returns the sections of a page. What stands before its first headline of the second level is of a section
// without a headline.
func sectionsOf(t *testing.T, page string) []section {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}

	sections, inBlock, indent := []section{{}}, false, ""
	for line := range strings.Lines(string(text)) {
		last := &sections[len(sections)-1]
		bare := strings.TrimLeft(line, " ")
		language, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isFence && !inBlock:
			last.blocks, inBlock = append(last.blocks, block{language: language}), true
			indent = line[:len(line)-len(bare)]
		case isFence:
			inBlock = false
		case inBlock:
			last.blocks[len(last.blocks)-1].text += strings.TrimPrefix(line, indent)
		case strings.HasPrefix(line, "## "):
			sections = append(sections, section{headline: strings.TrimSpace(line[len("## "):])})
		}
	}
	return sections
}

// isIn reports whether a text is a headline of a page, or in one of its blocks.
func isIn(t *testing.T, page, text string) bool {
	t.Helper()
	return slices.ContainsFunc(sectionsOf(t, page), func(s section) bool {
		return s.headline == text ||
			slices.ContainsFunc(s.blocks, func(b block) bool { return strings.Contains(b.text, text) })
	})
}

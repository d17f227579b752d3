// Package words makes counts agree with their nouns, in texts for people.
package words

import (
	"strconv"
	"strings"
)

// Count returns a number of things, in the plural unless there is one. The noun is one that takes s or es.
func Count(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "s"):
		return Number(n) + " " + noun + "es"
	default:
		return Number(n) + " " + noun + "s"
	}
}

// Are returns the verb for a number of things.
func Are(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// Number returns a number whose thousands are separated.
func Number(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// Some returns the first of several names, so many at most, and how many there are more.
func Some(names []string, most int) string {
	text := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		text += " and " + Number(more) + " more"
	}
	return text
}

package ruleobject

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// isIdentity reports whether a new MeshTLSAuthentication may name an identity: a DNS name, with a leading "*." or
// without, "*" alone, or a SPIFFE ID.
func isIdentity(text string) bool {
	if id, is := strings.CutPrefix(text, "spiffe://"); is {
		return isSPIFFE(id)
	}
	if text == "*" {
		return true
	}

	for label := range strings.SplitSeq(strings.TrimPrefix(text, "*."), ".") {
		if len(validation.IsDNS1123Label(label)) > 0 {
			return false
		}
	}
	return true
}

// isSPIFFE reports whether what follows the scheme is a SPIFFE ID, as SPIFFE-ID, section 2, defines trust domain and
// path. A path may be absent.
func isSPIFFE(id string) bool {
	domain, path, hasPath := strings.Cut(id, "/")
	if domain == "" || strings.Trim(domain, "abcdefghijklmnopqrstuvwxyz0123456789.-_") != "" {
		return false
	}
	if !hasPath {
		return true
	}

	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." || strings.ContainsFunc(segment, isOutsideSegment) {
			return false
		}
	}
	return true
}

func isOutsideSegment(c rune) bool {
	isLetter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
	return !isLetter && (c < '0' || c > '9') && !strings.ContainsRune(".-_", c)
}

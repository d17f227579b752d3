//go:build race

package fingerpost

// Race reports whether tests run with the race detector, and so the servers that they start.
const Race = true

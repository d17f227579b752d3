package words

import "testing"

func TestCount(t *testing.T) {
	for want, got := range map[string]string{
		"0 clusters": Count(0, "cluster"), "1 cluster": Count(1, "cluster"), "1,234 clusters": Count(1234, "cluster"),
		"1 address": Count(1, "address"), "2 addresses": Count(2, "address"),
		"a, b": Some([]string{"a", "b"}, 2), "a and 1 more": Some([]string{"a", "b"}, 1), "": Some(nil, 2),
		"is": Are(1), "are": Are(0),
		"999": Number(999), "1,000": Number(1000), "1,234,567": Number(1234567),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

package api

import (
	"encoding/base64"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

func TestExpiry(t *testing.T) {
	token := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	}
	for name, c := range map[string]struct {
		token string
		want  time.Time
	}{
		"a bound token":      {token(`{"exp": 1795183200}`), time.Unix(1795183200, 0)},
		"with a fraction":    {token(`{"exp": 1795183200.5}`), time.Unix(1795183200, 0)},
		"a lasting token":    {token(`{"sub": "system:serviceaccount:ns:name"}`), time.Time{}},
		"an opaque token":    {"opaque", time.Time{}},
		"junk in it":         {"a.b.c", time.Time{}},
		"a time of no sense": {token(`{"exp": -1}`), time.Time{}},
		"no time":            {token(`{"exp": "tomorrow"}`), time.Time{}},
		"beyond all":         {token(`{"exp": 1e300}`), time.Time{}},
	} {
		if got := Expiry(&rest.Config{BearerToken: c.token}); !got.Equal(c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if got := Expiry(&rest.Config{}); !got.IsZero() {
		t.Errorf("no credentials: %s", got)
	}
}

func FuzzTokenExpiry(f *testing.F) {
	f.Add("e30.eyJleHAiOjE3OTUxODMyMDB9.c2ln")
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		if at := tokenExpiry(token); !at.IsZero() && (at.Year() < 1969 || at.Year() > 5200) {
			t.Errorf("%s", at)
		}
	})
}

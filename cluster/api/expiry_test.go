package api

import (
	"encoding/base64"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

func TestValidity(t *testing.T) {
	token := func(writer string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(writer)) + ".c2ln"
	}
	at, never := time.Unix(1795183200, 0), time.Time{}
	for name, c := range map[string]struct {
		config          rest.Config
		issued, expires time.Time
	}{
		"a bound token": {
			rest.Config{BearerToken: token(`{"iat": 1795183200, "exp": 1795186800}`)}, at, at.Add(time.Hour),
		},
		"without iat":        {rest.Config{BearerToken: token(`{"exp": 1795183200}`)}, never, at},
		"with a fraction":    {rest.Config{BearerToken: token(`{"exp": 1795183200.5}`)}, never, at},
		"a lasting token":    {rest.Config{BearerToken: token(`{"iat": 1795183200, "sub": "account"}`)}, at, never},
		"an opaque token":    {rest.Config{BearerToken: "opaque"}, never, never},
		"junk in it":         {rest.Config{BearerToken: "a.b.c"}, never, never},
		"a time of no sense": {rest.Config{BearerToken: token(`{"exp": -1}`)}, never, never},
		"no time":            {rest.Config{BearerToken: token(`{"exp": "tomorrow"}`)}, never, never},
		"beyond all":         {rest.Config{BearerToken: token(`{"exp": 1e300}`)}, never, never},
		"one that is read from a file again": {
			rest.Config{BearerToken: token(`{"exp": 1795183200}`), BearerTokenFile: "token"}, never, never,
		},
		"no credentials": {rest.Config{}, never, never},
	} {
		if issued, expires := Validity(&c.config); !issued.Equal(c.issued) || !expires.Equal(c.expires) {
			t.Errorf("%s: issued %s, expires %s, want %s and %s", name, issued, expires, c.issued, c.expires)
		}
	}
}

func FuzzTokenExpiry(f *testing.F) {
	f.Add("e30.eyJleHAiOjE3OTUxODMyMDB9.c2ln")
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		if _, at := tokenValidity(token); !at.IsZero() && (at.Year() < 1969 || at.Year() > 5200) {
			t.Errorf("%s", at)
		}
	})
}

package debug

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fingerpost/fingerpost/cmd/fingerpost/server"
)

// A page is computed at most once a second, counted from when it was ready, however many clients ask.
func TestPagesAreCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		computed := 0
		page := serveCached(func() int {
			computed++
			time.Sleep(300 * time.Millisecond) //nolint:forbidigo // the fake clock's: the page takes long
			return computed
		})
		ask := func() string {
			w := httptest.NewRecorder()
			page(w, httptest.NewRequest(http.MethodGet, "/", nil))
			return w.Body.String()
		}
		for round, want := range []string{"1\n", "1\n", "2\n", "2\n"} {
			for range 100 {
				if got := ask(); got != want {
					t.Errorf("round %d: %q, want %q", round, got, want)
				}
			}
			time.Sleep(server.CachePeriod/2 + 1) //nolint:forbidigo // the fake clock's
		}
		if computed != 2 {
			t.Errorf("computed %d times", computed)
		}
	})
}
